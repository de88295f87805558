"""The project's own files: what is declared, what the README promises, what a notebook may hold."""

import ast
import importlib.metadata
import json
import re
import stat
import subprocess
import sys
import tomllib
from pathlib import Path

import pytest
import yaml

import parallab

ROOT = Path(__file__).parents[1]
PROJECT = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]
README = (ROOT / "README.md").read_text()
NOTEBOOKS = sorted((ROOT / "labs").glob("*.ipynb"))
TEST_COMMAND = 'pip install -e ".[test]" && pytest -n 2'
SOURCES = sorted((ROOT / "parallab").rglob("*.py"))

# Where conda-forge's name differs; matplotlib-base leaves its Qt window out, which we never open.
CONDA = {"torch": "pytorch", "matplotlib": "matplotlib-base"}
# How a package is imported where that is not its name.
IMPORTED = {"nvidia-ml-py": "pynvml", "pillow": "PIL", "pyyaml": "yaml"}
# Declared though no module imports them.
USED_OTHERWISE = {"jupyterlab"}  # `parallab lab` becomes its process


def name_and_bounds(requirement):
    name, bounds = re.fullmatch(r"([A-Za-z0-9_-]+)(.*)", requirement.replace(" ", "")).groups()
    return name.lower(), set(bounds.split(","))


def requirements(extra=None):
    listed = PROJECT["optional-dependencies"][extra] if extra else PROJECT["dependencies"]
    return dict(name_and_bounds(r) for r in listed)


def third_party_imports(paths):
    found = set()
    for path in paths:
        for node in ast.walk(ast.parse(path.read_text())):
            if isinstance(node, ast.Import):
                found |= {alias.name.partition(".")[0] for alias in node.names}
            elif isinstance(node, ast.ImportFrom) and node.level == 0:
                found.add(node.module.partition(".")[0])
    return found - sys.stdlib_module_names - {"parallab"}


def imported_names(listed):
    return {IMPORTED.get(name, name) for name in listed}


def test_environment_yml_names_the_same_requirements():
    environment = yaml.safe_load((ROOT / "environment.yml").read_text())
    *conda, last = environment["dependencies"]
    assert environment["channels"] == ["conda-forge"]
    assert conda[:2] == ["python=3.12", "pip"]
    assert last == {"pip": ["-e ."]}
    assert dict(name_and_bounds(r) for r in conda[2:]) == {
        CONDA.get(name, name): bounds for name, bounds in requirements().items()
    }


def test_every_dependency_has_both_bounds():
    for name, bounds in {**requirements(), **requirements("test")}.items():
        assert {b[:1] for b in bounds} == {">", "<"}, name


def test_what_the_package_imports_is_declared_and_the_other_way_round():
    declared = imported_names(requirements())
    optional = imported_names({"pandas", *requirements("gpu")})
    imported = third_party_imports(SOURCES)
    # These come with jupyterlab and ipyparallel, which are built on them.
    built_on = {"IPython", "ipykernel", "jupyter_client", "traitlets", "zmq", "tornado"}
    assert imported - declared - optional <= built_on
    assert declared - imported == USED_OTHERWISE


def test_what_the_tests_import_is_declared():
    declared = imported_names({**requirements(), **requirements("test")})
    imported = third_party_imports(sorted((ROOT / "tests").rglob("*.py")))
    local = {path.stem for path in (ROOT / "tests").rglob("*.py")} | {"tests"}
    comes_along = {"IPython", "jupyter_client", "traitlets", "zmq"}
    assert imported - local - comes_along <= declared


def test_version_is_the_installed_one():
    assert importlib.metadata.version("parallab") == parallab.__version__
    assert f"## {parallab.__version__}" in (ROOT / "CHANGELOG.md").read_text()


def test_readme_has_exactly_two_set_up_commands_near_the_top():
    commands = re.findall(r"^pip install .*-e .*$", README, re.MULTILINE)
    assert commands == ["pip install -e . && parallab lab", TEST_COMMAND]
    assert README[: README.index(commands[1])].count("\n") < 30


def test_readme_tree_is_the_real_one():
    tree = README[README.index("## What is where") :]
    tree = tree[tree.index("```") + 3 :]
    tree = tree[: tree.index("```")]
    listed, folders = set(), []
    for line in tree.strip().splitlines():
        depth = (len(line) - len(line.lstrip())) // 2
        name, _, role = line.strip().partition(" ")
        assert role.strip(), f"{name} has no role"
        folders[depth:] = [name.rstrip("/")]
        assert (ROOT / Path(*folders)).exists(), "/".join(folders)
        listed.add("/".join(folders))
    modules = {
        f"parallab/{p.name}"
        for p in (ROOT / "parallab").iterdir()
        if (p.suffix == ".py" and not p.name.startswith("_")) or (p / "__init__.py").exists()
    }
    assert modules <= listed


def test_imports_only_point_upwards_in_the_readmes_list():
    tree = README[README.index("## What is where") :]
    order = re.findall(r"^  (\w+)(?:\.py|/) ", tree, re.MULTILINE)
    assert len(order) > 30
    downwards = []
    for source in SOURCES:
        own = source.relative_to(ROOT / "parallab").parts[0].removesuffix(".py")
        below = order[order.index(own) + 1 :] if own in order else []
        for node in ast.parse(source.read_text()).body:
            if isinstance(node, ast.ImportFrom):
                imported = [f"{node.module}.{alias.name}".split(".") for alias in node.names]
                downwards += [n for n in imported if n[0] == "parallab" and n[1] in below]
    assert downwards == []


def test_readme_links_exist():
    links = re.findall(r"\]\(([^)#:]+)\)", README)
    assert links
    for link in links:
        assert (ROOT / link).exists(), link


def test_ci_runs_the_readmes_test_command():
    script = ROOT / ".ci" / "run"
    assert script.stat().st_mode & stat.S_IXUSR
    subprocess.run(["bash", "-n", str(script)], check=True)
    pattern = re.search(r"grep -m 1 -E '(.*)' README\.md", script.read_text())[1]
    assert re.findall(pattern, README, re.MULTILINE) == [TEST_COMMAND]


LOGIC = (
    ast.FunctionDef, ast.AsyncFunctionDef, ast.ClassDef, ast.Lambda, ast.For, ast.AsyncFor,
    ast.While, ast.If, ast.Try, ast.Match,
)  # fmt: skip


def cells(notebook):
    return json.loads(notebook.read_text())["cells"]


def code_cells(notebook):
    return [c for c in cells(notebook) if c["cell_type"] == "code"]


def test_the_first_lab_is_there():
    assert (ROOT / "labs" / "00_start.ipynb") in NOTEBOOKS


@pytest.mark.parametrize("notebook", NOTEBOOKS, ids=lambda n: n.name)
def test_notebook_is_short(notebook):
    assert len(cells(notebook)) <= 15
    for cell in code_cells(notebook):
        assert len("".join(cell["source"]).splitlines()) <= 10


@pytest.mark.parametrize("notebook", NOTEBOOKS, ids=lambda n: n.name)
def test_notebook_holds_no_results(notebook):
    for cell in code_cells(notebook):
        assert cell["outputs"] == []
        assert cell["execution_count"] is None
    assert "widgets" not in json.loads(notebook.read_text())["metadata"]


@pytest.mark.parametrize("notebook", NOTEBOOKS, ids=lambda n: n.name)
def test_notebook_holds_no_logic(notebook):
    for cell in code_cells(notebook):
        source = "".join(cell["source"])
        plain = "\n".join(line for line in source.splitlines() if not line.startswith(("%", "!")))
        # A learner writes functions; test_labs sees that none has a body yet.
        allowed = ast.FunctionDef if "exercise" in cell["metadata"].get("tags", []) else ()
        logic = [
            node
            for node in ast.walk(ast.parse(plain))
            if isinstance(node, LOGIC) and not isinstance(node, allowed)
        ]
        assert logic == [], f"logic belongs in the package: {source}"
