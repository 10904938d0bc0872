"""Uploads the files that a report names before the report itself is sent."""

from __future__ import annotations

import logging
import math
import os
import re
from collections.abc import Collection, Sequence
from concurrent.futures import Future
from dataclasses import dataclass, field
from functools import partial
from itertools import islice
from pathlib import Path
from typing import Any

import httpx

from agents.session.background import Background
from agents.session.backoff import Backoff
from agents.session.client import (
    ConflictResponseError,
    ControlPlaneAwayError,
    ControlPlaneClient,
    RequestRefusedError,
    is_passing,
    wished_wait_s,
)
from agents.settings import AgentSettings
from agents.supervision.run_directory import TrainerKey
from agents.supervision.trainer_handle import TrainerHandle
from agents.trainer.contract.plain_files import is_plain_file, plain_file_delete
from controlplane.core.protocol.prediction_parts import part_of
from controlplane.core.protocol.wire import ReportKind, TrainerReport

log = logging.getLogger("agents")

CHECKPOINT = "checkpoint.npz"
UPLOADABLE = frozenset(
    {CHECKPOINT, "model.keras", "model.weights.h5", "history.csv", "metrics.json"}
)
#: Periodic checkpoints of a running trainer, which keeps the two newest and deletes the others.
_PASSING_CHECKPOINT = re.compile(r"checkpoint-\d{1,18}\.npz")
#: Number of waiting reports that are searched for the next one with files.
LOOK_AHEAD = 64
#: Least time between the beginnings of two uploads. Each is some requests, which take the control
#: plane longer than the trainer that writes small files in a loop.
SPACING_S = 0.1


@dataclass(slots=True)
class Upload:
    """Upload state of one report's files.

    Attributes:
        is_superseded: the checkpoint that the report names was not stored: a newer one is or will
            be, or there is no room for it.
    """

    names: Sequence[str]
    backoff: Backoff
    done: set[str] = field(default_factory=set)
    errors: dict[str, str] = field(default_factory=dict)
    is_superseded: bool = False
    call: Future[None] | None = None
    not_before: float = 0.0
    is_over: bool = False


class Uploads:
    """Uploads for all trainers of an agent; a report is held back until `is_over`.

    Attributes:
        is_spacing: an upload only waits for `SPACING_S` to be over; call `step` soon.
    """

    def __init__(
        self, client: ControlPlaneClient, transfers: Background, settings: AgentSettings
    ) -> None:
        self._client = client
        self._transfers = transfers
        self._settings = settings
        self._uploads: dict[tuple[TrainerKey, int], Upload] = {}
        self._turns: dict[TrainerKey, int] = {}  # when each trainer's last upload began
        self._next_at = -math.inf
        self.is_spacing = False

    def is_over(self, report: TrainerReport) -> bool:
        """Return whether no upload is left to do before `report` may be sent."""
        if not files_named(report):
            return True
        upload = self._uploads.get(_place(report))
        return upload is not None and upload.is_over

    def remarks(self, report: TrainerReport) -> dict[str, Any]:
        """Return the data to add to `report` about files that will not arrive."""
        upload = self._uploads.get(_place(report))
        if upload is None:
            return {}
        errors = {"upload_errors": upload.errors} if upload.errors else {}
        return {**errors, "superseded": True} if upload.is_superseded else errors

    def forget(self, report: TrainerReport) -> None:
        """Drop the upload state of an accepted report."""
        self._uploads.pop(_place(report), None)

    def step(self, now: float, trainers: Collection[TrainerHandle]) -> None:
        """Start or continue the next upload of each trainer; never blocks.

        Few run at a time, so the trainer whose last one began first comes first.
        """
        self.is_spacing = False
        turns = {trainer.key: self._turns.get(trainer.key, 0) for trainer in trainers}
        self._turns = turns
        for trainer in sorted(trainers, key=lambda trainer: turns[trainer.key]):
            for queued in islice(trainer.queue.head(LOOK_AHEAD), LOOK_AHEAD):
                if not self.is_over(queued.report):
                    if self._advance(now, queued.report, trainer):
                        turns[trainer.key] = max(turns.values()) + 1
                    break

    def _advance(self, now: float, report: TrainerReport, trainer: TrainerHandle) -> bool:
        """Start or continue an upload; returns whether it was started."""
        upload = self._uploads.get(_place(report))
        if upload is None:
            backoff = Backoff(self._settings.backoff_first_s, self._settings.backoff_cap_s)
            upload = self._uploads[_place(report)] = Upload(files_named(report), backoff)
        if upload.call is None:
            if now < upload.not_before:
                return False
            self.is_spacing = now < self._next_at
            if not self.is_spacing:
                call = partial(_files_upload, self._client, report, trainer, upload)
                upload.call = self._transfers.start(f"upload-{report.job_id}", call)
                if upload.call is not None:
                    self._next_at = now + SPACING_S
            return upload.call is not None
        if not upload.call.done():
            return False
        error = upload.call.exception()
        upload.call = None
        if error is None:
            upload.is_over = True
            return False
        upload.not_before = now + upload.backoff.next_delay_s(wished_wait_s(error))
        log.warning(
            "uploading files of job %d is tried again: %s",
            report.job_id,
            error,
            extra=_fields(report),
        )
        return False


def files_named(report: TrainerReport) -> Sequence[str]:
    """List the files that `report` announces."""
    if report.kind in (ReportKind.CHECKPOINTED, ReportKind.PART):
        names: Any = [report.data.get("file")]
    elif report.kind in (ReportKind.FINISHED, ReportKind.FAILED):
        names = report.data.get("files")
    else:
        return ()
    if not isinstance(names, list):
        return ()
    return tuple(name for name in names if isinstance(name, str))


def _files_upload(
    client: ControlPlaneClient, report: TrainerReport, trainer: TrainerHandle, upload: Upload
) -> None:
    """Send the files that are not uploaded yet.

    Raises:
        ControlPlaneAwayError, NotAuthorisedError, NodeRemovedError: retry the rest later.
    """
    outputs = trainer.directory.outputs
    for name in upload.names:
        if name in upload.done:
            continue
        path = outputs / name
        is_passing_one = _is_passing_checkpoint(report, name)
        is_part = report.kind is ReportKind.PART and part_of(name) is not None
        if is_part and not os.access(path, os.F_OK):
            pass  # it was sent before this agent was restarted
        elif not (name in UPLOADABLE or is_passing_one or is_part):
            upload.errors[name] = "is not a file that a trainer may leave"
        elif is_passing_one and not os.access(path, os.F_OK):
            upload.is_superseded = True
        elif not is_plain_file(path, outputs.parent):
            upload.errors[name] = "was named by the trainer, but it is not there"
        else:
            _file_upload(client, report, path, CHECKPOINT if is_passing_one else name, upload)
            if is_part and name not in upload.errors:
                # The parts of a long job would fill the disk.
                with trainer.watched():
                    plain_file_delete(path, outputs.parent)
        upload.done.add(name)


def _is_passing_checkpoint(report: TrainerReport, name: str) -> bool:
    """Return whether `name` is a periodic checkpoint of a running trainer."""
    is_beside = report.kind is ReportKind.CHECKPOINTED and report.data.get("is_last") is False
    return is_beside and _PASSING_CHECKPOINT.fullmatch(name) is not None


def _file_upload(
    client: ControlPlaneClient, report: TrainerReport, path: Path, name: str, upload: Upload
) -> None:
    try:
        client.upload(report.job_id, report.slot, report.generation, name, path, path.parents[1])
    except ConflictResponseError:
        upload.is_superseded = path.name != name
        log.warning(
            "job %d has gone on without slot %d", report.job_id, report.slot, extra=_fields(report)
        )
    except FileNotFoundError:
        upload.is_superseded = path.name != name
        if not upload.is_superseded:
            upload.errors[path.name] = "went away before it could be sent"
    except ControlPlaneAwayError as error:
        if path.name == name or error.status != httpx.codes.INSUFFICIENT_STORAGE:
            raise
        # The reports behind this checkpoint, which a newer one replaces, are worth more than it.
        upload.is_superseded = True
        log.warning(
            "%s of job %d found no room on the site's disk",
            path.name,
            report.job_id,
            extra=_fields(report),
        )
    except (RequestRefusedError, OSError) as error:
        if is_passing(error):
            raise
        log.warning(
            "%s of job %d cannot be uploaded: %s",
            path.name,
            report.job_id,
            error,
            extra=_fields(report),
        )
        upload.errors[path.name] = str(error)


def _fields(report: TrainerReport) -> dict[str, int]:
    """Return the fields of a log line about a trainer."""
    return {"job": report.job_id, "slot": report.slot, "generation": report.generation}


def _place(report: TrainerReport) -> tuple[TrainerKey, int]:
    return (report.job_id, report.slot), report.sequence
