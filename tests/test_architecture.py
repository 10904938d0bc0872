"""What a fresh interpreter loads with each part of the product; `make contracts` checks imports."""

from __future__ import annotations

import ast
import pkgutil
import re
import subprocess
import sys
from pathlib import Path

import pytest

import controlplane.core
from jobs import models

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


def _printed(code: str) -> list[str]:
    """Run code in a fresh interpreter and give the words that it printed."""
    done = subprocess.run(
        [sys.executable, "-c", code],
        cwd=ROOT, capture_output=True, text=True, timeout=120, check=True,
    )  # fmt: skip
    return done.stdout.split()


def _loaded_by(modules: str, suspects: tuple[str, ...]) -> list[str]:
    """Import `modules` in a fresh interpreter and name the suspects that came with them."""
    code = f"import sys, {modules}\nprint(*[name for name in {suspects!r} if name in sys.modules])"
    return _printed(code)


def _guilty(modules: list[str], suspects: tuple[str, ...]) -> dict[str, list[str]]:
    """Give module -> suspects that come with it; modules are imported alone only if any is guilty.

    All of them together take as long as the slowest: a second for SciPy.
    """
    if not _loaded_by(", ".join(modules), suspects):
        return {}
    return {module: found for module in modules if (found := _loaded_by(module, suspects))}


def _daemon_modules() -> list[str]:
    return [name for name in _modules("agents") if not name.startswith("agents.trainer")]


def test_core_modules_load_no_framework() -> None:
    modules = _modules("controlplane.core")
    assert "controlplane.core.protocol.wire" in modules
    assert _guilty(modules, HEAVY) == {}


def test_simulator_modules_load_no_framework() -> None:
    modules = _modules("controlplane.simulator")
    assert "controlplane.simulator.engine.event_clock" in modules
    assert _guilty(modules, (*HEAVY, "plotly")) == {}


def test_daemon_modules_load_neither_django_nor_tensorflow() -> None:
    modules = _daemon_modules()
    assert "agents.loop" in modules
    assert _guilty(modules, HEAVY_FOR_AGENTS) == {}


@pytest.mark.parametrize(
    ("imports", "absent"),
    [
        ("controlplane.urls, jobs.tasks", ["tensorflow", "keras", "scipy.optimize"]),
        ("celery.bin.celery", ["controlplane.urls", "jobs.api", "frontend.views"]),
    ],
    ids=["site", "worker"],
)
def test_what_is_not_loaded_at_the_start(imports: str, absent: list[str]) -> None:
    """Heavy imports cost every process of a site time and memory."""
    code = (
        "import sys, django\n"
        "django.setup()\n"
        f"import {imports}\n"
        "from controlplane.celery import app\n"
        "app.loader.import_default_modules()\n"
        f"print(*[name for name in {absent} if name in sys.modules])"
    )
    assert _printed(code) == []


def test_the_check_names_the_guilty_module() -> None:
    assert _guilty(["json", "django.conf"], HEAVY) == {"django.conf": ["django"]}


def test_package_roots_are_empty() -> None:
    """An `__init__` that imports pulls Django or TensorFlow into every pure module under it."""
    for package in ("controlplane", "controlplane/core", "agents"):
        assert (ROOT / package / "__init__.py").read_text().strip() in ("", _docstring(package))


def _docstring(package: str) -> str:
    """Give the text of `__init__` when it is nothing but a docstring, otherwise nothing."""
    text = (ROOT / package / "__init__.py").read_text().strip()
    is_docstring = text.startswith('"""') and text.endswith('"""') and text.count('"""') == 2
    return text if is_docstring else ""


def test_a_class_name_means_one_thing() -> None:
    """A model may have the name of the value that it stores; nested classes are not counted."""
    found: dict[str, list[str]] = {}
    for package in ("agents", "controlplane", "frontend", "jobs"):
        for path in sorted((ROOT / package).rglob("*.py")):
            for node in ast.parse(path.read_text()).body:
                if isinstance(node, ast.ClassDef) and node.name not in ("Command", "Migration"):
                    found.setdefault(node.name, []).append(str(path.relative_to(ROOT)))
    most = {name: 2 if hasattr(models, name) else 1 for name in found}
    assert not {name: paths for name, paths in found.items() if len(paths) > most[name]}


def test_core_is_found_where_the_paths_say() -> None:
    assert Path(controlplane.core.__file__ or "").parent == ROOT / "controlplane/core"


#: Functions that lock rows together with their keys, because they may delete them.
MAY_DELETE = {"channel_of", "project_delete"}


def test_rows_are_locked_without_their_keys() -> None:
    """Decision 83: a lock of the key and a row that refers to it wait for each other."""
    with_keys = set()
    for path in sorted((ROOT / "jobs").rglob("*.py")):
        for function in ast.walk(ast.parse(path.read_text())):
            if isinstance(function, ast.FunctionDef):
                with_keys |= {function.name for call in ast.walk(function) if _locks_keys(call)}
    assert with_keys == MAY_DELETE


def _locks_keys(call: ast.AST) -> bool:
    is_lock = (
        isinstance(call, ast.Call)
        and isinstance(call.func, ast.Attribute)
        and call.func.attr == "select_for_update"
    )
    return is_lock and not any(word.arg == "no_key" for word in call.keywords)  # type: ignore[attr-defined]


def test_percents_are_written_with_a_space() -> None:
    """Texts have it before every unit; the format of Python for percents has none."""
    found = [
        f"{path.relative_to(ROOT)}: {text}"
        for package in ("agents", "client", "controlplane", "frontend", "jobs")
        for suffix in ("py", "html")
        for path in (ROOT / package).rglob(f"*.{suffix}")
        for text in re.findall(r":[.\d]*%\}|\}%(?![sd(])", path.read_text())
    ]
    assert found == []
