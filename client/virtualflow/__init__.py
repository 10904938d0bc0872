"""Python client of a VirtualFlow site."""

from virtualflow.client import Client
from virtualflow.errors import VirtualFlowError

__version__ = "0.1.0"
__all__ = ["Client", "VirtualFlowError"]
