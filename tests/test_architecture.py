"""What may know what: import contracts, and what a fresh interpreter really loads."""

from __future__ import annotations

import pkgutil
import subprocess
import sys
from pathlib import Path

import pytest

import controlplane.core

ROOT = Path(__file__).parent.parent
#: Loaded by a pure module, any of these means that the core cannot be used (or tested) alone.
HEAVY = ("django", "celery", "rest_framework", "redis", "httpx", "tensorflow", "keras")
#: Modules of an agent's daemon may talk HTTP, but never load Django or TensorFlow: a daemon that
#: imports TensorFlow takes a gigabyte, and could hold the accelerators that its trainers need.
HEAVY_FOR_AGENTS = ("django", "celery", "rest_framework", "redis", "tensorflow", "keras")


def _modules(package: str) -> list[str]:
    """Name every module below `package` by its files, without importing any."""
    directory = ROOT / package.replace(".", "/")
    found = pkgutil.walk_packages([str(directory)], prefix=f"{package}.")
    return [package, *(module.name for module in found if not module.name.endswith("__main__"))]


def _loaded_by(module: str, suspects: tuple[str, ...]) -> list[str]:
    """Import `module` alone in a fresh interpreter and name the suspects that came with it."""
    code = f"import sys, {module}\nprint(*[name for name in {suspects!r} if name in sys.modules])"
    done = subprocess.run(
        [sys.executable, "-c", code],
        cwd=ROOT, capture_output=True, text=True, timeout=120, check=True,
    )  # fmt: skip
    return done.stdout.split()


def _pure_modules() -> list[str]:
    return _modules("controlplane.core")


def _daemon_modules() -> list[str]:
    return [name for name in _modules("agents") if not name.startswith("agents.trainer")]


def test_the_lists_of_modules_are_not_empty() -> None:
    assert "controlplane.core.protocol.wire" in _pure_modules()
    assert len(_daemon_modules()) > 1


@pytest.mark.parametrize("module", _pure_modules())
def test_pure_module_loads_no_framework(module: str) -> None:
    assert _loaded_by(module, HEAVY) == []


def test_the_simulator_loads_no_framework() -> None:
    """All its modules at once: each alone would take a second for SciPy."""
    modules = _modules("controlplane.simulator")
    assert "controlplane.simulator.engine.event_clock" in modules
    assert _loaded_by(", ".join(modules), (*HEAVY, "plotly")) == []


@pytest.mark.parametrize("module", _daemon_modules())
def test_agent_module_loads_neither_django_nor_tensorflow(module: str) -> None:
    assert _loaded_by(module, HEAVY_FOR_AGENTS) == []


def test_the_site_and_its_tasks_never_load_tensorflow() -> None:
    code = (
        "import sys, django\n"
        "django.setup()\n"
        "import controlplane.urls, jobs.tasks\n"
        "print(*[name for name in ('tensorflow', 'keras') if name in sys.modules])"
    )
    done = subprocess.run(
        [sys.executable, "-c", code],
        cwd=ROOT, capture_output=True, text=True, timeout=120, check=True,
    )  # fmt: skip
    assert done.stdout.split() == []


def test_the_check_sees_what_is_loaded() -> None:
    assert _loaded_by("django.conf", HEAVY) == ["django"]


def test_package_roots_are_empty() -> None:
    """An `__init__` that imports pulls Django or TensorFlow into every pure module under it."""
    for package in ("controlplane", "controlplane/core", "agents"):
        assert (ROOT / package / "__init__.py").read_text().strip() in ("", _docstring(package))


def _docstring(package: str) -> str:
    """Give the text of `__init__` when it is nothing but a docstring, otherwise nothing."""
    text = (ROOT / package / "__init__.py").read_text().strip()
    is_docstring = text.startswith('"""') and text.endswith('"""') and text.count('"""') == 2
    return text if is_docstring else ""


def test_import_contracts_are_kept() -> None:
    """Run import-linter over the contracts in pyproject.toml."""
    done = subprocess.run(
        [Path(sys.executable).with_name("lint-imports"), "--no-logo", "--no-cache"],
        cwd=ROOT, capture_output=True, text=True, timeout=120, check=False,
    )  # fmt: skip
    assert done.returncode == 0, done.stdout + done.stderr


def test_core_is_found_where_the_paths_say() -> None:
    assert Path(controlplane.core.__file__ or "").parent == ROOT / "controlplane/core"
