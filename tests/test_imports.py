"""What an import loads: parts may be read, and sent to engines, without dragging the rest along."""

import doctest
import importlib
import pkgutil
import subprocess
import sys

import pytest

import parallab

HEAVY = {"torch", "numpy", "pandas", "matplotlib", "IPython", "ipywidgets", "ipyparallel", "zmq"}
FRONT_END = {"IPython", "ipyparallel", "ipywidgets", "matplotlib"}
MODULES = sorted(
    module.name
    for module in pkgutil.walk_packages(parallab.__path__, "parallab.")
    if not module.name.endswith("__main__")
)


def loaded_by(*modules):
    """Top-level packages in a fresh interpreter after importing `modules`."""
    code = f"import sys; import {', '.join(modules)}; print(*sys.modules, sep='\\n')"
    done = subprocess.run(
        [sys.executable, "-c", code], capture_output=True, text=True, timeout=120, check=False
    )
    assert done.returncode == 0, done.stderr
    return {name.partition(".")[0] for name in done.stdout.split()}


def within(*packages):
    return [m for m in MODULES if any(m == p or m.startswith(f"{p}.") for p in packages)]


@pytest.mark.parametrize("module", ["parallab", "parallab.predict", "parallab.cli"])
def test_quick_to_import(module):
    modules = within(module) if module == "parallab.predict" else [module]
    assert loaded_by(*modules) & HEAVY == set()


def test_plain_data_needs_the_standard_library_only():
    modules = within(*(f"parallab.{m}" for m in (
        "errors", "models", "catalog", "stages", "schedules", "plan", "report", "progress",
        "predict", "datasheets", "hardware", "advise", "compare", "take_home",
    )))  # fmt: skip
    assert len(modules) >= 24
    outside = loaded_by(*modules) - sys.stdlib_module_names - {"parallab"}
    # What an environment loads into every interpreter is not ours.
    assert outside - loaded_by("sys") <= set()


def test_a_ranks_code_needs_no_front_end():
    modules = within("parallab.rank", "parallab.meter", "parallab.parallel")
    assert len(modules) > 20
    loaded = loaded_by(*modules)
    assert "torch" in loaded
    assert loaded & FRONT_END == set()


def test_all_is_the_public_interface():
    assert parallab.__all__ == sorted(parallab.__all__)
    assert set(parallab.__all__) == {
        "Classroom", "Cluster", "ClusterError", "CorpusError", "Hardware", "HardwareError", "Lab",
        "Model", "ModelError", "ParallabError", "Plan", "PlanError", "RankError", "Replay",
        "Report", "ReportError", "Scaling", "advise", "check", "predict", "ranking", "show_code",
        "simulate", "summary", "sweep", "take_home",
    }  # fmt: skip


@pytest.mark.parametrize("name", parallab.__all__)
def test_every_public_name_is_there_and_documented(name):
    assert getattr(parallab, name).__doc__.strip()
    assert name in dir(parallab)


def test_a_function_is_not_hidden_by_the_file_of_its_name():
    importlib.import_module("parallab.advise")
    assert callable(parallab.advise)
    assert parallab.advise is sys.modules["parallab.advise"].advise


def test_an_unknown_name_is_an_attribute_error():
    with pytest.raises(AttributeError, match="module 'parallab' has no attribute 'Nothing'"):
        parallab.Nothing  # noqa: B018


@pytest.mark.parametrize("error", [n for n in parallab.__all__ if n.endswith("Error")])
def test_every_error_is_ours_and_a_builtin_kind(error):
    kind = getattr(parallab, error)
    assert issubclass(kind, parallab.ParallabError)
    assert kind is parallab.ParallabError or issubclass(kind, ValueError | RuntimeError)


@pytest.mark.parametrize("module", MODULES)
def test_the_examples_in_docstrings(module):
    result = doctest.testmod(importlib.import_module(module))
    assert result.failed == 0


def test_some_docstrings_hold_examples():
    attempted = [doctest.testmod(importlib.import_module(f"parallab.{m}")).attempted
                 for m in ("models.spec", "plan")]  # fmt: skip
    assert attempted == [3, 2]
