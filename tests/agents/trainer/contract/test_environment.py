"""What a trainer frees is there for its next step."""

from __future__ import annotations

import json
import os
import platform
import subprocess
import sys

import pytest

from agents.trainer.contract.environment import FEW_THREADS, heap_environment

PAGE_BYTES = os.sysconf("SC_PAGE_SIZE")
PIECE_BYTES = 16 * 1024**2
NUM_PIECES = 8
#: Two threads in turns take and free memory, the second one begun when the first had its heap.
PROGRAM = f"""
import json, resource
from concurrent.futures import ThreadPoolExecutor

def step():
    before = resource.getrusage(resource.RUSAGE_SELF).ru_minflt
    pieces = [bytearray({PIECE_BYTES}) for _ in range({NUM_PIECES})]
    return resource.getrusage(resource.RUSAGE_SELF).ru_minflt - before

with ThreadPoolExecutor(1) as first, ThreadPoolExecutor(1) as second:
    print(json.dumps([each.submit(step).result() for each in [first, second] * 3]))
"""


@pytest.mark.skipif(platform.libc_ver()[0] != "glibc", reason="only glibc can be told")
def test_memory_that_a_step_frees_is_there_for_the_next_whatever_thread_does_it() -> None:
    faults, by_default = (
        faults_of(environment) for environment in (heap_environment(FEW_THREADS), {})
    )
    fresh = NUM_PIECES * PIECE_BYTES / PAGE_BYTES
    assert all(number < 0.1 * fresh for number in faults[1:])
    assert by_default[1] > 0.9 * fresh, "this test would not see a difference"


def faults_of(environment: dict[str, str]) -> list[int]:
    done = subprocess.run(
        [sys.executable, "-c", PROGRAM],
        env={**os.environ, **environment},
        stdout=subprocess.PIPE,
        timeout=60,
        check=True,
    )
    faults: list[int] = json.loads(done.stdout)
    return faults
