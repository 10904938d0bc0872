"""Limits TensorFlow to the one accelerator of this trainer."""

from __future__ import annotations

import ctypes
from contextlib import suppress

import tensorflow as tf

from agents.trainer.failures import TrainerError
from controlplane.core.wire import AcceleratorInfo

#: Options of mallopt(3).
M_TRIM_THRESHOLD, M_MMAP_THRESHOLD, M_ARENA_MAX = -1, -3, -8
#: So much free memory is kept at the end of the heap.
KEPT_BYTES = 1024**3
#: Up to so many threads share one heap: what one frees another takes, and nobody waits for long.
FEW_THREADS = 4
#: Where each thread has a heap, larger pieces go back at once: kept, they tear these heaps apart.
HEAP_PIECE_BYTES = 32 * 1024**2


def configure_devices(accelerator: AcceleratorInfo) -> None:
    """Limit TensorFlow to one accelerator; call it before anything else touches the runtime.

    An emulated accelerator is a CPU thread budget; a real one is the only GPU that the agent left
    visible. Results are bitwise equal between trainers only with equal thread counts.

    Raises:
        TrainerError: `internal`, there is no GPU where one was promised.
    """
    tf.config.experimental.enable_op_determinism()
    if is_emulated(accelerator):
        threads = max(1, accelerator.threads)
        tf.config.threading.set_intra_op_parallelism_threads(threads)
        tf.config.threading.set_inter_op_parallelism_threads(threads)
        tf.config.set_visible_devices([], "GPU")
        _keep_freed_memory(threads)
        return
    gpus = tf.config.list_physical_devices("GPU")
    if len(gpus) != 1:
        raise TrainerError(
            "internal",
            f"TensorFlow sees {len(gpus)} GPUs where it should see {accelerator.name} alone: its "
            "CUDA libraries (tensorflow[and-cuda]) and the driver must be installed on the node",
        )
    tf.config.experimental.set_memory_growth(gpus[0], True)


def is_emulated(accelerator: AcceleratorInfo) -> bool:
    """Say whether an accelerator is a budget of CPU threads rather than a device."""
    return accelerator.threads > 0 or accelerator.kind == "cpu"


def _keep_freed_memory(threads: int) -> None:
    """Let glibc keep memory that a step frees for the next one; other C libraries do as they do.

    A step frees and takes hundreds of megabytes. By default much of it goes back to the kernel,
    which clears every page anew when it is touched again: on a virtual machine a quarter of a
    step's processor time (docs/decisions/0010). With one heap for all threads the peak is not
    higher for it.
    """
    is_shared = threads <= FEW_THREADS
    with suppress(OSError, AttributeError):
        library = ctypes.CDLL(None)
        if is_shared:
            library.mallopt(M_ARENA_MAX, 1)
        library.mallopt(M_MMAP_THRESHOLD, KEPT_BYTES if is_shared else HEAP_PIECE_BYTES)
        library.mallopt(M_TRIM_THRESHOLD, KEPT_BYTES)
