"""The accelerators of this machine: GPUs that NVML lists, and emulated ones (CPU threads)."""

from __future__ import annotations

import logging
import os
import re
import threading
from collections.abc import Mapping
from typing import Any

import psutil
import pynvml

from agents.settings import AgentSettings
from agents.trainer.contract.environment import heap_environment
from controlplane.core.protocol.wire import AcceleratorInfo

log = logging.getLogger("agents")

#: Time after which it is told that NVML, whose calls have no time limit, does not answer.
SLOW_S = 15.0
_SLOW = (
    "NVML has not answered yet, and the agent waits for it; see whether nvidia-smi answers and "
    "what the kernel says of the driver (dmesg), or start the agent with --gpus none"
)
#: Words of a product name that do not distinguish kinds.
_VENDOR_WORDS = re.compile(r"\b(nvidia|tesla|graphics device)\b")


def accelerators_found(settings: AgentSettings, nvml: Any = pynvml) -> tuple[AcceleratorInfo, ...]:
    """List GPUs first, then emulated accelerators, numbered from 0.

    Raises:
        ValueError: there is none, or `settings.gpus` names a missing GPU.
    """
    slow = threading.Timer(SLOW_S, log.warning, [_SLOW])
    slow.daemon = True
    slow.start()
    try:
        gpus, lost = _gpus_found(settings.gpus, nvml) if settings.gpus != "none" else ((), set())
    finally:
        slow.cancel()
    first_free = max({gpu.index for gpu in gpus} | lost, default=-1) + 1
    found = (*gpus, *_emulated(settings, first_index=first_free))
    if not found:
        raise ValueError(
            "this machine has no GPU that NVML can see; give --emulate 2 to offer two emulated "
            "accelerators made of CPU threads"
        )
    return found


#: Limits of a validation: no GPU, and a single heap as trainers have; with several, a step's memory
#: depends on the timing of threads.
VALIDATION_ENVIRONMENT = {
    "CUDA_VISIBLE_DEVICES": "-1",
    "OMP_NUM_THREADS": "1",
    **heap_environment(1),
}


def accelerator_environment(accelerator: AcceleratorInfo) -> Mapping[str, str]:
    """Return the variables that limit a trainer to its accelerator, and settings to match."""
    if accelerator.uuid:
        return {
            "CUDA_VISIBLE_DEVICES": accelerator.uuid,
            "CUDA_DEVICE_ORDER": "PCI_BUS_ID",
            "TF_FORCE_GPU_ALLOW_GROWTH": "true",
        }
    return {
        "CUDA_VISIBLE_DEVICES": "-1",
        "OMP_NUM_THREADS": str(max(1, accelerator.threads)),
        **heap_environment(accelerator.threads),
    }


def kind_of(product_name: str) -> str:
    """Derive the kind from a product name: "Tesla T4" -> "t4", "NVIDIA H200" -> "h200".

    The kind includes memory size and form factor: results are bitwise equal within a kind only.
    """
    words = _VENDOR_WORDS.sub(" ", product_name.lower())
    return re.sub(r"[^a-z0-9]+", "-", words).strip("-") or "gpu"


def _emulated(settings: AgentSettings, first_index: int) -> tuple[AcceleratorInfo, ...]:
    if not settings.emulated:
        return ()
    memory_bytes = psutil.virtual_memory().total // settings.emulated
    cores = os.cpu_count() or 1
    name = f"emulated, {settings.threads} of {cores} CPU threads"
    return tuple(
        AcceleratorInfo(
            index=first_index + place,
            kind=settings.kind,
            name=name,
            memory_bytes=memory_bytes,
            threads=settings.threads,
        )
        for place in range(settings.emulated)
    )


def _gpus_found(wanted: str, nvml: Any) -> tuple[tuple[AcceleratorInfo, ...], set[int]]:
    """List the GPUs that `wanted` names, and the indices of lost ones; no driver means no GPU."""
    try:
        nvml.nvmlInit()
    except nvml.NVMLError as error:
        if wanted == "all":
            return (), set()
        raise ValueError(f"--gpus {wanted}: NVML does not start: {error}") from error
    described, lost = [], set[int]()
    try:
        for place in range(nvml.nvmlDeviceGetCount()):
            try:
                described.append(_gpu_described(place, nvml))
            except nvml.NVMLError as error:  # such as "GPU is lost": the others keep their indices
                log.warning("GPU %d of this machine is left out: %s", place, error)
                lost.add(place)
    except nvml.NVMLError as error:
        raise ValueError(f"NVML does not list the GPUs: {error}") from error
    finally:
        nvml.nvmlShutdown()
    return _chosen(wanted, described, lost)


def _gpu_described(place: int, nvml: Any) -> AcceleratorInfo:
    handle = nvml.nvmlDeviceGetHandleByIndex(place)
    name = nvml.nvmlDeviceGetName(handle)
    return AcceleratorInfo(
        index=place,
        kind=kind_of(name),
        name=name,
        memory_bytes=int(nvml.nvmlDeviceGetMemoryInfo(handle).total),
        uuid=nvml.nvmlDeviceGetUUID(handle),
    )


def _chosen(
    wanted: str, described: list[AcceleratorInfo], lost: set[int]
) -> tuple[tuple[AcceleratorInfo, ...], set[int]]:
    """Select what `wanted` names; indices are kept, so that a subset is stable.

    A lost GPU does not tell its UUID: one that no other has may be its.
    """
    if wanted == "all":
        return tuple(described), lost
    names = [name.strip() for name in wanted.split(",") if name.strip()]
    by_name = {str(gpu.index): gpu for gpu in described} | {gpu.uuid: gpu for gpu in described}
    missing = [name for name in names if name not in by_name and name not in map(str, lost)]
    unknown = {name for name in missing if not name.isdecimal()}
    if len(unknown) < len(missing) or len(unknown) > len(lost):
        raise ValueError(f"--gpus names {', '.join(missing)}; there are {', '.join(by_name)}")
    chosen = {by_name[name].uuid: by_name[name] for name in names if name in by_name}
    return tuple(chosen.values()), {place for place in lost if unknown or str(place) in names}
