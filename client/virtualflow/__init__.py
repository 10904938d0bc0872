"""Python client of a VirtualFlow site."""

from __future__ import annotations

from importlib import import_module
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from virtualflow.client import Client
    from virtualflow.errors import VirtualFlowError

__version__ = "0.1.0"
__all__ = ["Client", "VirtualFlowError"]

_MODULES = {"Client": "virtualflow.client", "VirtualFlowError": "virtualflow.errors"}


def __getattr__(name: str) -> Any:
    """Import a name at its first use, after `virtualflow.__main__` has seen to Ctrl-C."""
    if name not in _MODULES:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    return getattr(import_module(_MODULES[name]), name)
