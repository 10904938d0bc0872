"""Downloads the files that a trainer or a validation needs in its folder."""

from __future__ import annotations

import tempfile
from functools import partial
from pathlib import Path

from agents.session.client import ControlPlaneClient
from agents.supervision.cache import FileCache
from agents.supervision.run_directory import RunDirectory
from agents.trainer.contract.plain_files import (
    plain_file_delete,
    plain_file_open,
    plain_file_write,
)
from controlplane.core.protocol.code_archive import archive_unpack
from controlplane.core.protocol.fork import Adoption
from controlplane.core.protocol.wire import TrainingSpec, WantedTrainer

#: Name of the other job's model, beside the code folder; the trainer uses the same name.
SOURCE_FILE = "source.keras"
#: Name of the state that a validated job starts from; the trainer uses the same name.
FORKED_FILE = "restore.npz"


def trainer_prepare(
    wanted: WantedTrainer, directory: RunDirectory, client: ControlPlaneClient, cache: FileCache
) -> None:
    """Create the run directory from scratch, with the job's code, checkpoint and source model.

    Raises:
        ControlPlaneAwayError: retry later.
        RequestRefusedError, DigestMismatchError, ValueError, OSError: permanent failure.
    """
    directory.prepare()
    code_sha256 = wanted.spec.code_sha256
    resource = f"jobs/{wanted.spec.job_id}"
    code_fetch(resource, code_sha256, wanted.code_name, directory.code, client, cache)
    source_fetch(resource, wanted.spec, directory.path, client, cache)
    if wanted.checkpoint_sha256 is not None:
        fetch = partial(client.fetch, resource, "checkpoint", wanted.checkpoint_sha256)
        cache.take(wanted.checkpoint_sha256, fetch, directory.restore)


def source_fetch(
    resource: str, spec: TrainingSpec, folder: Path, client: ControlPlaneClient, cache: FileCache
) -> None:
    """Place the model with which a job predicts, if it is another job's, into `folder`."""
    if spec.model_sha256 is not None:
        fetch = partial(client.fetch, resource, "source", spec.model_sha256)
        cache.take(spec.model_sha256, fetch, folder / SOURCE_FILE)


def forked_state_fetch(
    resource: str, spec: TrainingSpec, folder: Path, client: ControlPlaneClient, cache: FileCache
) -> None:
    """Place the state of another job from which a job starts, if there is one, into `folder`."""
    if spec.fork is not None:
        fetch = partial(client.fetch, resource, "checkpoint", spec.fork.sha256)
        cache.take(spec.fork.sha256, fetch, folder / FORKED_FILE)


def adopted_state_fetch(
    resource: str,
    adoption: Adoption,
    previous: int,
    directory: RunDirectory,
    client: ControlPlaneClient,
    cache: FileCache,
) -> None:
    """Give a running trainer its copy of the state that its job goes on with.

    Its job can write into the folder, so the file gets there by way of the agent's records.

    Args:
        previous: number of the adoption before, whose file is deleted.
    """
    passing = directory.records / "adopted.npz"
    passing.unlink(missing_ok=True)
    fetch = partial(client.fetch, resource, "adopted", adoption.sha256)
    try:
        cache.take(adoption.sha256, fetch, passing)
        with plain_file_open(passing) as file:
            plain_file_write(directory.adopted(adoption.number), file)
        plain_file_delete(directory.adopted(previous), directory.path)
    finally:
        passing.unlink(missing_ok=True)


def code_fetch(
    resource: str,
    sha256: str,
    code_name: str,
    target: Path,
    client: ControlPlaneClient,
    cache: FileCache,
) -> None:
    """Unpack the code of `resource` (see `fetch`) into the empty folder `target`."""
    with tempfile.TemporaryDirectory(dir=target.parent) as passing:
        archive = Path(passing) / "archive"
        cache.take(sha256, partial(client.fetch, resource, "code", sha256), archive)
        archive_unpack(archive.read_bytes(), code_name, target)
