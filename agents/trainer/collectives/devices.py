"""Limits TensorFlow to the one accelerator of this trainer."""

from __future__ import annotations

import tensorflow as tf

from agents.trainer.contract.failures import TrainerError
from controlplane.core.protocol.wire import AcceleratorInfo


def configure_devices(accelerator: AcceleratorInfo) -> None:
    """Limit TensorFlow to one accelerator; call before any other use of the runtime.

    An emulated accelerator is a CPU thread budget; a real one is the only GPU that the agent left
    visible. Results are bitwise equal between trainers only with equal thread counts.

    Raises:
        TrainerError: `internal`, TensorFlow does not see exactly one GPU.
    """
    tf.config.experimental.enable_op_determinism()
    if is_emulated(accelerator):
        threads = max(1, accelerator.threads)
        tf.config.threading.set_intra_op_parallelism_threads(threads)
        tf.config.threading.set_inter_op_parallelism_threads(threads)
        tf.config.set_visible_devices([], "GPU")
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
    """Return whether an accelerator is a budget of CPU threads rather than a device."""
    return accelerator.threads > 0 or accelerator.kind == "cpu"
