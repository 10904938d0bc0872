"""What glibc is told about the memory of trainers on CPUs: to keep what a step frees for the next.

It has to stand in the environment before the process starts: threads that are there when it is told
later (`mallopt`) have heaps of their own already, and those that come inherit these from them.
Other C libraries do as they do.
"""

from __future__ import annotations

#: So much free memory is kept at the end of a heap.
KEPT_BYTES = 1024**3
#: Up to so many threads share one heap: what one frees another takes, and nobody waits for long.
FEW_THREADS = 4
#: Where each thread has a heap, larger pieces go back at once: kept, they tear these heaps apart.
HEAP_PIECE_BYTES = 32 * 1024**2


def heap_environment(threads: int) -> dict[str, str]:
    """Give the variables for a trainer of so many threads.

    A step frees and takes hundreds of megabytes. By default much of it goes back to the kernel,
    which clears every page anew when it is touched again: on a virtual machine a quarter of a
    step's processor time (docs/decisions/0010). With one heap for all threads the peak is not
    higher for it.
    """
    kept = {"MALLOC_TRIM_THRESHOLD_": str(KEPT_BYTES)}
    if threads <= FEW_THREADS:
        return {**kept, "MALLOC_ARENA_MAX": "1", "MALLOC_MMAP_THRESHOLD_": str(KEPT_BYTES)}
    return {**kept, "MALLOC_MMAP_THRESHOLD_": str(HEAP_PIECE_BYTES)}
