"""Limits TensorFlow to the one accelerator of this trainer."""

from __future__ import annotations

import ctypes
from contextlib import suppress

import tensorflow as tf

from agents.trainer.failures import TrainerError
from controlplane.core.wire import AcceleratorInfo

#: Options of mallopt(3).
M_TRIM_THRESHOLD, M_MMAP_THRESHOLD = -1, -3
#: Pieces of memory up to this size come out of the heap (glibc gets there by itself, step by step),
#: of whose free end so much is kept. Larger pieces go back at once: kept, they tear the heap apart.
HEAP_PIECE_BYTES = 32 * 1024**2
KEPT_BYTES = 1024**3


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
        _keep_freed_memory()
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


def _keep_freed_memory() -> None:
    """Let glibc keep memory that a step frees for the next one; other C libraries do as they do.

    A step frees and takes hundreds of megabytes. By default much of it goes back to the kernel,
    which clears every page anew when it is touched again: on a virtual machine a quarter of a
    step's processor time (docs/decisions/0010). The peak is the same, but it is held.
    """
    with suppress(OSError, AttributeError):
        library = ctypes.CDLL(None)
        library.mallopt(M_MMAP_THRESHOLD, HEAP_PIECE_BYTES)
        library.mallopt(M_TRIM_THRESHOLD, KEPT_BYTES)
