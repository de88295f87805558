"""A real JupyterLab with private settings, and notebooks opened in headless Chromium.

Without a browser these tests are skipped with the reason; they fail with
PARALLAB_REQUIRE_BROWSER=1.
"""

from __future__ import annotations

import io
import json
import os
import secrets
import shutil
import signal
import socket
import subprocess
import sys
import time
import urllib.request
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import nbformat
import numpy as np
import pytest
from PIL import Image
from playwright.sync_api import expect, sync_playwright

TESTS = Path(__file__).parents[1]
ARTIFACTS = TESTS.parent / "test-artifacts"
PATIENCE = 60_000  # milliseconds
NAMES = ("chromium", "chromium-browser", "google-chrome", "chrome")
CHROMIUM_OPTIONS = [
    "--no-sandbox", "--disable-gpu", "--disable-dev-shm-usage", "--no-first-run",
    "--disable-background-networking", "--disable-component-update", "--disable-sync",
]  # fmt: skip
IDLE = """() => {
    const kernel = window.jupyterapp?.shell?.currentWidget?.sessionContext?.session?.kernel;
    return kernel && kernel.connectionStatus === 'connected' && kernel.status === 'idle';
}"""

# Two frames on: what has arrived is decoded, laid out and painted.
PAINTED = "() => new Promise(done => requestAnimationFrame(() => requestAnimationFrame(done)))"

EVALUATE = """async expression => {
    const kernel = window.jupyterapp.shell.currentWidget.sessionContext.session.kernel;
    const asked = {code: '', user_expressions: {it: expression}};
    const reply = await kernel.requestExecute(asked).done;
    return reply.content.user_expressions.it.data['text/plain'];
}"""


def unavailable(reason: str) -> None:
    """Skips, or fails where a browser is required."""
    if os.environ.get("PARALLAB_REQUIRE_BROWSER") == "1":
        pytest.fail(f"PARALLAB_REQUIRE_BROWSER=1, but {reason}")
    pytest.skip(reason)


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    for item in items:
        if Path(__file__).parent in item.path.parents:
            item.add_marker(pytest.mark.browser)


@pytest.fixture(scope="session")
def browser() -> Iterator[Any]:
    found = next((path for name in NAMES if (path := shutil.which(name))), None)
    if found is None:
        unavailable("there is no Chromium (Debian: apt-get install chromium)")
    # What a page shows follows some messages later: all that is expected of it is waited for.
    expect.set_options(timeout=PATIENCE)
    with sync_playwright() as playwright:
        chromium = playwright.chromium.launch(
            executable_path=found, headless=True, args=CHROMIUM_OPTIONS
        )
        yield chromium
        chromium.close()


@dataclass
class Server:
    url: str
    token: str
    root: Path
    log: Path


@pytest.fixture(scope="session")
def server(browser: Any, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Server]:
    home = tmp_path_factory.mktemp("jupyter")
    root = home / "labs"
    shutil.copytree(TESTS.parent / "labs", root)
    for plugin, settings in {
        "@jupyterlab/apputils-extension/notification": {
            "fetchNews": "false", "checkForUpdates": False
        },
        "@jupyterlab/docmanager-extension/plugin": {"autosave": False},
    }.items():  # fmt: skip
        file = home / "settings" / f"{plugin}.jupyterlab-settings"
        file.parent.mkdir(parents=True, exist_ok=True)
        file.write_text(json.dumps(settings))
    private = {
        "HOME": "", "JUPYTER_CONFIG_DIR": "config", "JUPYTER_DATA_DIR": "data",
        "JUPYTER_RUNTIME_DIR": "runtime", "IPYTHONDIR": "ipython",
        "JUPYTERLAB_SETTINGS_DIR": "settings", "JUPYTERLAB_WORKSPACES_DIR": "workspaces",
    }  # fmt: skip
    environment = {k: v for k, v in os.environ.items() if not k.lower().endswith("_proxy")}
    environment |= {name: str(home / path) for name, path in private.items()}
    environment["PYTHONPATH"] = os.pathsep.join(
        [str(TESTS.parent), os.environ.get("PYTHONPATH", "")]
    )
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        port = free.getsockname()[1]
    # Below a prefix, as behind JupyterHub's proxy: a panel has no port and no path of its own.
    prefix = "/user/ada"
    url = f"http://127.0.0.1:{port}{prefix}"
    it = Server(url, secrets.token_hex(16), root, home / "server.log")
    with it.log.open("w") as log:
        process = subprocess.Popen(
            [
                sys.executable, "-m", "jupyterlab", "--no-browser", "--allow-root",
                "--ip=127.0.0.1", f"--port={port}", "--ServerApp.port_retries=0",
                f"--IdentityProvider.token={it.token}", f"--ServerApp.root_dir={root}",
                f"--ServerApp.base_url={prefix}/",
                "--LabApp.expose_app_in_browser=True", "--LabApp.extension_manager=readonly",
            ],
            env=environment, cwd=root, stdout=log, stderr=subprocess.STDOUT,
            start_new_session=True,
        )  # fmt: skip
    try:
        wait_for_server(it, process)
        yield it
    finally:
        # The first SIGTERM shuts the kernels down as well, and their engines with them.
        process.send_signal(signal.SIGTERM)
        try:
            process.wait(20)
        except subprocess.TimeoutExpired:
            process.kill()


def wait_for_server(server: Server, process: subprocess.Popen[bytes]) -> None:
    end = time.monotonic() + 90
    while True:
        assert process.poll() is None, server.log.read_text()[-3000:]
        try:
            urllib.request.urlopen(f"{server.url}/api/status?token={server.token}", timeout=5)
            return
        except OSError:
            assert time.monotonic() < end, server.log.read_text()[-3000:]
            time.sleep(0.1)


class Notebook:
    """A notebook that is open in a page, and its panel."""

    def __init__(
        self, page: Any, server: Server, path: str, console: list[tuple[str, str]]
    ) -> None:
        self.page, self.console = page, console
        # /doc shows the notebook alone; ?reset forgets the last test's layout.
        page.goto(f"{server.url}/doc/tree/{path}?token={server.token}&reset")
        page.wait_for_selector(".jp-Notebook .jp-Cell")
        page.wait_for_function(IDLE)
        # A page remembers its theme, so the test before this one may have left it dark.
        if page.locator("body").get_attribute("data-jp-theme-light") == "false":
            self.theme("Light")

    def command(self, name: str, **arguments: Any) -> None:
        self.page.evaluate(
            "([name, args]) => window.jupyterapp.commands.execute(name, args).then(() => true)",
            [name, arguments],
        )

    def theme(self, name: str) -> None:
        """Light or Dark."""
        self.command("apputils:change-theme", theme=f"JupyterLab {name}")
        light = "true" if name == "Light" else "false"
        self.page.wait_for_selector(f"[data-jp-theme-light='{light}']", state="attached")
        # JupyterLab covers the page while it changes.
        self.page.wait_for_selector("#jupyterlab-splash", state="detached")

    def width(self, pixels: int) -> None:
        """Makes the window so wide."""
        self.page.set_viewport_size({"width": pixels, "height": 1150})
        self.page.evaluate(PAINTED)

    def evaluate(self, expression: str) -> str:
        """The repr of a Python expression in the notebook's kernel."""
        return str(self.page.evaluate(EVALUATE, expression))

    def run_all(self) -> None:
        """Runs all cells, and fails where one did."""
        self.command("notebook:run-all-cells")
        broken = self.page.locator(
            ".jp-RenderedText[data-mime-type='application/vnd.jupyter.error'], "
            ".jp-RenderedText[data-mime-type='application/vnd.jupyter.stderr']"
        ).all_inner_texts()
        assert broken == []

    def panel(self, state: str = "", which: int = 0) -> Any:
        """The panel, once it is in that state."""
        panel = self.page.locator(".pl-panel" + (f".pl-{state}" if state else "")).nth(which)
        panel.wait_for(timeout=90_000)
        return panel

    def pixels(self, which: int = 0) -> Any:
        """The plots as they are painted: (height, width, 3)."""
        picture = self.page.locator("img.pl-fig").nth(which)
        picture.scroll_into_view_if_needed()
        self.page.evaluate(PAINTED)
        shot = Image.open(io.BytesIO(picture.screenshot())).convert("RGB")
        return np.asarray(shot).astype(int)

    def expect_painted(
        self, colour: str, share: float, which: int = 0, top: float = 0, bottom: float = 1
    ) -> None:
        """Waits until more than that share of the plots, from top to bottom, has a colour."""
        end = time.monotonic() + PATIENCE / 1000
        while (painted := share_of(self.pixels(which), colour, top, bottom)) <= share:
            assert time.monotonic() < end, f"{painted:.4f} of the pixels are {colour}"

    def errors(self) -> list[str]:
        """What the page complained of in its console."""
        return [text for kind, text in self.console if kind == "error"]

    def screenshot(self, name: str) -> None:
        ARTIFACTS.mkdir(exist_ok=True)
        self.page.screenshot(path=ARTIFACTS / f"{name}.png", full_page=True)

    def screenshot_panel(self, name: str) -> None:
        ARTIFACTS.mkdir(exist_ok=True)
        self.panel().screenshot(path=ARTIFACTS / f"{name}.png")


def share_of(
    pixels: Any, colour: str, top: float = 0, bottom: float = 1, tolerance: int = 14
) -> float:
    """The share of the pixels from top to bottom (0 to 1) that have a colour, given as #RRGGBB."""
    rows = pixels[int(top * len(pixels)) : int(bottom * len(pixels))]
    rgb = np.array([int(colour[i : i + 2], 16) for i in (1, 3, 5)])
    return float((np.abs(rows - rgb).max(axis=2) <= tolerance).mean())


# A page that is busy with something else may never hear that its kernels have ended.
SHUT_DOWN = """() => Promise.race([
    window.jupyterapp?.serviceManager.sessions.shutdownAll(),
    new Promise(given_up => setTimeout(given_up, 10000)),
])"""
Open = Callable[..., Notebook]


@pytest.fixture(scope="session")
def window(browser: Any) -> Iterator[Any]:
    """What all pages share, so that JupyterLab's own code is loaded and compiled once."""
    context = browser.new_context(viewport={"width": 1440, "height": 1150})
    yield context
    context.close()


@pytest.fixture
def open_notebook(window: Any, server: Server, request: pytest.FixtureRequest) -> Iterator[Open]:
    """Opens a notebook of labs/, or one that is made of the given cells."""
    page = window.new_page()
    page.set_default_timeout(PATIENCE)
    console: list[tuple[str, str]] = []
    page.on("console", lambda message: console.append((message.type, message.text)))
    page.on("pageerror", lambda error: console.append(("error", str(error))))

    def open_it(path: str = "", *, cells: tuple[str, ...] = (), width: int = 1440) -> Notebook:
        page.set_viewport_size({"width": width, "height": 1150})
        if cells:
            path = f"{request.node.name}.ipynb"
            notebook = nbformat.v4.new_notebook(
                cells=[nbformat.v4.new_code_cell(cell) for cell in cells],
                metadata={"kernelspec": {"name": "python3", "display_name": "Python 3"}},
            )
            nbformat.write(notebook, server.root / path)
        return Notebook(page, server, path, console)

    yield open_it
    report = getattr(request.node, "report_of_call", None)
    if report is not None and report.failed:
        ARTIFACTS.mkdir(exist_ok=True)
        page.screenshot(path=ARTIFACTS / f"{request.node.name}.png", full_page=True)
        print(server.log.read_text()[-2000:], console[-10:])
    # The next test gets the machine to itself.
    page.evaluate(SHUT_DOWN)
    page.close()


@pytest.hookimpl(wrapper=True)
def pytest_runtest_makereport(item: pytest.Item, call: pytest.CallInfo[None]) -> Iterator[None]:
    report = yield
    if call.when == "call":
        item.report_of_call = report  # type: ignore[attr-defined]
    return report
