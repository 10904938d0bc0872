"""Reports and facts that are accepted, and a world in which hostile ones take their place."""

from __future__ import annotations

from typing import Any

from controlplane.core.protocol.wire import ReportKind
from jobs.models import Job
from tests.jobs.losses import fresh
from tests.jobs.world import PlayedNode, PlayedTrainer, World
from tests.security.hostile_values import HOSTILE
from tests.support.builders import job_make

STEPS = {
    "first_step": 11,
    "last_step": 20,
    "epoch": 0,
    "examples": 320,
    "candidates": 640,
    "analysed": 640,
    "pass_s": 0.25,
    "seconds": 1.0,
    "loss": 0.5,
    "last_loss": 0.4,
    "num_accelerators": 2,
    "batch_size": 32,
    "learning_rate": 0.1,
    "compute_s": {"0": 0.1},
    "nonfinite": None,
    "noise": {"sqr": 1.0, "var": 1.0},
}
PICTURE = {"height": 1, "width": 2, "channels": 1, "pixels": "AP8="}
#: A report of each kind that is accepted.
SOUND: dict[ReportKind, dict[str, Any]] = {
    ReportKind.PHASE: {"phase": "training"},
    ReportKind.READY: {"boot_s": 1.0, "build_s": 1.0, "trace_s": 1.0, "profile": {"4": 0.5}},
    ReportKind.SWITCHED: {"step": 0, "pause_s": 0.1, "bytes_moved": 5, "adopted": 1},
    ReportKind.DIGEST: {"step": 0, "sha256": "a", "role": "after"},
    ReportKind.STEPS: STEPS,
    ReportKind.EPOCH: {
        "epoch": 0,
        "step": 20,
        "logs": {"loss": 0.5},
        "nonfinite": [],
        "most_chosen": [[7, 3]],
        "previews": [{"place": 7, "label": "3", "picture": PICTURE}],
    },
    ReportKind.SELECTION_ENDED: {"epoch": 3, "step": 20, "reason": "guard", "ratio": 1.1},
    ReportKind.TRIAL: {
        "number": 2,
        "search": 1,
        "values": {"learning_rate": 0.1},
        "step": 20,
        "steps": 10,
        "start_loss": 1.0,
        "losses": [0.5],
        "verdict": "converging",
        "speed": 0.1,
        "end": "slower",
        "is_running": False,
        "search_end": None,
    },
    ReportKind.CHECKPOINTED: {
        "step": 20,
        "epoch": 0,
        "file": "checkpoint-20.npz",
        "sha256": "a",
        "bytes": 5,
        "is_last": False,
        "upload_errors": {"checkpoint-20.npz": "too large"},
    },
    ReportKind.PART: {"first": 0, "end": 5, "file": "x", "bytes": 5, "upload_errors": {"x": "no"}},
    ReportKind.STALLED: {"step": 20, "message": "", "unreachable": [4]},
    ReportKind.LEFT: {"step": 20},
    ReportKind.FINISHED: {
        "step": 20,
        "epoch": 1,
        "reason": "steps",
        "metrics": {"loss": 0.5},
        "digest": "a",
        "files": ["model.keras"],
        "num_examples": 5,
        "passed": {"candidates": 64, "analysed": 64, "seconds": 0.5},
        "not_finite": {},
        "nonfinite": [],
    },
    ReportKind.FAILED: {
        "code": "peer_lost",
        "message": "m",
        "traceback": "t",
        "step": 20,
        "nonfinite": None,
        "files": [],
    },
    ReportKind.EXITED: {"exit_code": 1, "accelerator_index": 0, "reason": "r"},
}
FACTS: dict[str, Any] = {
    "num_examples": 100,
    "num_validation_examples": 10,
    "steps_per_epoch": 4,
    "slice_examples": 8,
    "num_parameters": 12,
    "num_trainable_parameters": 12,
    "state_bytes": 48,
    "build_s": 1.0,
    "trace_s": 0.0,
    "slice_s": 0.1,
    "memory": {"process_bytes": 9, "base_bytes": 8, "bytes_per_example": 7, "measured_slices": [1]},
    "data_fingerprint": "a",
    "is_merged": False,
    "not_merged_because": "of its layers",
    "metrics": ["loss"],
    "outputs": ["a: float32 [1]"],
    "warnings": ["slow"],
    "summary": "Model",
}


def two_jobs() -> tuple[World, Job, Job]:
    """Let two jobs of different people train on one node."""
    world = World(1, 4)
    jobs = [job_make(stop_kind="epochs", max_accelerators=2) for _ in range(2)]
    world.settle(4)
    for job in jobs:
        world.train(job)
    return world, fresh(jobs[0]), fresh(jobs[1])


def offered(played: PlayedNode, trainer: PlayedTrainer, kind: ReportKind) -> None:
    """Say a kind of report once for each of its values and each hostile one in its place."""
    for name in SOUND[kind]:
        for value in HOSTILE:
            played.say(trainer, kind, **{**SOUND[kind], name: value})
            if isinstance(SOUND[kind][name], dict):
                inner = dict.fromkeys(SOUND[kind][name], value)
                played.say(trainer, kind, **{**SOUND[kind], name: inner})
