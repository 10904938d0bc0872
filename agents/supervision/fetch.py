"""What has to lie in a folder before a trainer or a validation can be started there."""

from __future__ import annotations

import tempfile
from functools import partial
from pathlib import Path

from agents.session.client import ControlPlaneClient
from agents.supervision.cache import FileCache
from agents.supervision.run_directory import RunDirectory
from controlplane.core.protocol.code_archive import archive_unpack
from controlplane.core.protocol.wire import TrainingSpec, WantedTrainer

#: Beside the folder of the code; the trainer knows it by this name.
SOURCE_FILE = "source.keras"


def trainer_prepare(
    wanted: WantedTrainer, directory: RunDirectory, client: ControlPlaneClient, cache: FileCache
) -> None:
    """Make the run directory anew, with the job's code, and the checkpoint and model to use.

    Raises:
        ControlPlaneAwayError: try again.
        RequestRefusedError, DigestMismatchError, ValueError, OSError: it will not work.
    """
    directory.prepare()
    job_id = wanted.spec.job_id
    code_sha256 = wanted.spec.code_sha256
    code_fetch(job_id, code_sha256, wanted.code_name, directory.code, client, cache)
    source_fetch(wanted.spec, directory.path, client, cache)
    if wanted.checkpoint_sha256 is not None:
        fetch = partial(client.fetch_checkpoint, job_id, wanted.checkpoint_sha256)
        cache.take(wanted.checkpoint_sha256, fetch, directory.restore)


def source_fetch(
    spec: TrainingSpec, folder: Path, client: ControlPlaneClient, cache: FileCache
) -> None:
    """Put the model that a job predicts with, if it is another job's, into `folder`."""
    if spec.model_sha256 is not None:
        fetch = partial(client.fetch_source, spec.job_id, spec.model_sha256)
        cache.take(spec.model_sha256, fetch, folder / SOURCE_FILE)


def code_fetch(
    job_id: int,
    sha256: str,
    code_name: str,
    target: Path,
    client: ControlPlaneClient,
    cache: FileCache,
) -> None:
    """Unpack the job's code into the empty folder `target`."""
    with tempfile.TemporaryDirectory(dir=target.parent) as passing:
        archive = Path(passing) / "archive"
        cache.take(sha256, partial(client.fetch_code, job_id, sha256), archive)
        archive_unpack(archive.read_bytes(), code_name, target)
