"""Environment variables of trainer processes that have to be set before the process starts."""

from __future__ import annotations

#: Set to 0: the trainer attaches no socket filter (`peers.socket_filter`).
FILTER_VARIABLE = "VIRTUALFLOW_PEER_FILTER"
#: Log levels at which TensorFlow reports only errors that end the process. Errors of operations
#: and devices are raised in Python as well; operators may set other levels (docs/node-agents.md).
QUIET_ENVIRONMENT = {"TF_CPP_MIN_LOG_LEVEL": "3", "GRPC_VERBOSITY": "NONE"}
#: Gives a job's sets one order of iteration, and `hash` of text one value, in all of its trainers.
HASH_ENVIRONMENT = {"PYTHONHASHSEED": "0"}
#: Bytes of free memory that glibc keeps at the end of a heap.
KEPT_BYTES = 1024**3
#: Up to this number of threads share one heap without waiting long for each other.
FEW_THREADS = 4
#: Larger allocations are returned to the kernel where each thread has a heap of its own, because
#: keeping them would fragment these heaps.
HEAP_PIECE_BYTES = 32 * 1024**2


def heap_environment(threads: int) -> dict[str, str]:
    """Return glibc's allocator settings for a trainer of `threads` threads.

    A step frees and allocates hundreds of megabytes. By default glibc returns much of this memory
    to the kernel, which clears every page on the next use: on a virtual machine a quarter of a
    step's processor time (docs/decisions/0010). One heap for all threads does not raise the peak.

    The settings have no effect after the start: threads that exist when `mallopt` is called have
    heaps of their own, which new threads inherit. Other C libraries ignore the settings.
    """
    kept = {"MALLOC_TRIM_THRESHOLD_": str(KEPT_BYTES)}
    if threads <= FEW_THREADS:
        return {**kept, "MALLOC_ARENA_MAX": "1", "MALLOC_MMAP_THRESHOLD_": str(KEPT_BYTES)}
    return {**kept, "MALLOC_MMAP_THRESHOLD_": str(HEAP_PIECE_BYTES)}
