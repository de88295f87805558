"""`%parallab …`: the terminal's words in a notebook, in an IPython that is no notebook."""

import signal
from contextlib import contextmanager

import pytest
from IPython.core.interactiveshell import InteractiveShell

import parallab as pl
from parallab import magic
from parallab.panels import engines as panel_engines
from tests.synthetic import FakeRunner


@pytest.fixture
def shell():
    """An IPython with the extension loaded."""
    shell = InteractiveShell()
    shell.run_cell("%load_ext parallab")
    return shell


def run(shell, line):
    """A cell's value; what it raised is raised."""
    done = shell.run_cell(line)
    done.raise_error()
    return done.result


def test_predict_is_the_reports_own(shell):
    report = run(shell, "%parallab predict --model micro --strategy zero2 --devices 2 --seq 64")
    plan = pl.Plan("zero2", 2, seq=64)
    assert report.to_dict() == pl.predict(pl.Model("micro"), plan).to_dict()


def test_names_of_the_notebook_are_filled_in(shell):
    shell.user_ns.update(name="nano", ranks=8)
    report = run(shell, "report = %parallab predict --model {name} --devices $ranks\nreport")
    assert (report.model.name, report.plan.devices) == ("nano", 8)


def test_advice_and_what_is_taken_home_are_values(shell, tmp_path):
    advice = run(shell, "%parallab advise --model gpt2 --gpu a100-40 --gpus-per-node 4")
    assert advice.hardware.devices == 4
    home = run(shell, f"%parallab take-home --strategy zero1 --to {tmp_path}")
    assert home.plan == pl.Plan("zero1", 4)
    assert (tmp_path / "plan.json").exists()


def test_what_prints_in_a_terminal_prints_here(shell, capsys, tmp_path):
    assert run(shell, "%parallab strategies") is None
    assert "zero3: ZeRO-3 (FSDP)" in capsys.readouterr().out
    for name, strategy in (("a.json", "ddp"), ("b.json", "zero1")):
        run(shell, f"%parallab predict --strategy {strategy} --json {tmp_path / name};")
    assert "predicted Report" not in capsys.readouterr().out  # because of the semicolon
    run(shell, f"%parallab compare {tmp_path / 'a.json'} {tmp_path / 'b.json'}")
    assert "At its peak B holds, beyond A" in capsys.readouterr().out
    assert run(shell, "%parallab run --help") is None
    assert capsys.readouterr().out.startswith("usage: %parallab run")


@pytest.mark.parametrize(
    ("line", "sentence"),
    [
        ("predict --strategy zero9", "there is no strategy called 'zero9'"),
        ("predict --devices 3 --batch 4", "does not divide over 3 data-parallel ranks"),
        ("predict --nothing", "there is no argument --nothing here"),
        ("predict --text 'a", "No closing quotation"),
        ("walk", "invalid choice: 'walk'"),
        ("lab", "you are in a notebook already; pl.Lab() shows the panels here"),
        ("compare nowhere.json", "nowhere.json cannot be read: No such file"),
    ],
)
def test_an_error_is_one_sentence_and_ends_the_cell(shell, capsys, line, sentence):
    done = shell.run_cell(f"%parallab {line}\nafterwards = 1")
    said = capsys.readouterr()
    assert sentence in said.out + said.err
    assert (said.out + said.err).strip().count("\n") == 0
    assert "Traceback" not in said.out + said.err
    assert not done.success
    assert "afterwards" not in shell.user_ns


@pytest.fixture
def notebooks(cluster, monkeypatch):
    """The session's engines as those that a panel of this kernel has."""
    engines = panel_engines.Engines(cluster)
    monkeypatch.setattr(panel_engines, "at_hand", lambda: engines)
    return engines


@pytest.mark.engines
def test_a_run_uses_the_notebooks_engines(shell, notebooks, tmp_path):
    saved = tmp_path / "r.json"
    line = f"run --model nano --strategy zero2 --devices 2 --seq 32 --steps 2 --json {saved}"
    report = run(shell, f"%parallab {line}")
    assert (report.source, report.steps, report.plan.strategy) == ("measured", 2, "zero2")
    assert pl.Report.load(saved).to_dict() == report.to_dict()
    found = run(shell, "%parallab verify --model nano --devices 2 --seq 32 --steps 1")
    assert found.ok
    with notebooks.claim(2, print):
        done = shell.run_cell("%parallab run --model nano --devices 2")
    assert "busy with another panel's run" in str(done.error_in_exec)


class InterruptedRunner(FakeRunner):
    """A run whose watcher is interrupted at its third look, as by the kernel's button."""

    def submit(self, model, plan, steps, **options):
        run = super().submit(model, plan, steps)
        plain_poll = run.poll

        def poll():
            if run._polls == 3:
                signal.raise_signal(signal.SIGINT)
            return plain_poll()

        run.poll = poll
        run.report = run.result()
        return run


def test_an_interrupt_stops_between_steps(shell, monkeypatch):
    @contextmanager
    def cluster(plan, device, say):
        yield InterruptedRunner().submitter

    runner = InterruptedRunner()
    monkeypatch.setattr(InterruptedRunner, "submitter", runner, raising=False)
    monkeypatch.setattr(magic, "_cluster", cluster)
    report = run(shell, "%parallab run --model nano --devices 2 --device cpu --steps 50")
    assert 1 <= report.steps < 5
