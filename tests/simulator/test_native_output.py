"""Standard output holds the results alone."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

PROGRAM = """
import ctypes
from controlplane.simulator.native_output import native_output_dropped
library = ctypes.CDLL(None)
print("before")
library.puts(b"kept before")
with native_output_dropped():
    library.puts(b"dropped")
    print("dropped, too", flush=True)
library.puts(b"kept after")
print("after", flush=True)
"""


def test_lines_of_native_code_are_dropped() -> None:
    """Also those that stay in the library's buffer: standard output is no terminal here."""
    done = subprocess.run(
        [sys.executable, "-c", PROGRAM], cwd=Path(__file__).parents[2], timeout=60,
        capture_output=True, text=True, check=True,
    )  # fmt: skip
    assert sorted(done.stdout.splitlines()) == ["after", "before", "kept after", "kept before"]
