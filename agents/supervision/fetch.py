"""Downloads the files that a trainer or a validation needs in its folder."""

from __future__ import annotations

import tempfile
from dataclasses import dataclass
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
from controlplane.core.protocol.node_messages import WantedTrainer
from controlplane.core.protocol.wire import TrainingSpec

#: Name of the other job's model, beside the code folder; the trainer uses the same name.
SOURCE_FILE = "source.keras"
#: Name of the state that a validated job starts from; the trainer uses the same name.
FORKED_FILE = "restore.npz"


@dataclass(frozen=True, slots=True)
class SiteFiles:
    """Files of a job or a validation on the site, by way of the node's cache.

    Attributes:
        resource: "jobs/7", or "validations/7".
    """

    client: ControlPlaneClient
    cache: FileCache
    resource: str

    def take(self, part: str, sha256: str, target: Path) -> None:
        """Place a part (see `ControlPlaneClient.fetch`) at `target`."""
        fetch = partial(self.client.fetch, self.resource, part, sha256)
        self.cache.take(sha256, fetch, target)


def trainer_prepare(files: SiteFiles, wanted: WantedTrainer, directory: RunDirectory) -> None:
    """Create the run directory from scratch, with the job's code, checkpoint and source model.

    Raises:
        ControlPlaneAwayError: retry later.
        RequestRefusedError, DigestMismatchError, ValueError, OSError: permanent failure.
    """
    directory.prepare()
    code_fetch(files, wanted.spec.code_sha256, wanted.code_name, directory.code)
    source_fetch(files, wanted.spec, directory.path)
    if wanted.checkpoint_sha256 is not None:
        files.take("checkpoint", wanted.checkpoint_sha256, directory.restore)


def source_fetch(files: SiteFiles, spec: TrainingSpec, folder: Path) -> None:
    """Place the model with which a job predicts, if it is another job's, into `folder`."""
    if spec.model_sha256 is not None:
        files.take("source", spec.model_sha256, folder / SOURCE_FILE)


def forked_state_fetch(files: SiteFiles, spec: TrainingSpec, folder: Path) -> None:
    """Place the state of another job from which a job starts, if there is one, into `folder`."""
    if spec.fork is not None:
        files.take("checkpoint", spec.fork.sha256, folder / FORKED_FILE)


def adopted_state_fetch(
    files: SiteFiles, adoption: Adoption, previous: int, directory: RunDirectory
) -> None:
    """Give a running trainer its copy of the state that its job goes on with.

    Its job can write into the folder, so the file gets there by way of the agent's records.

    Args:
        previous: number of the adoption before, whose file is deleted.
    """
    passing = directory.records / "adopted.npz"
    passing.unlink(missing_ok=True)
    try:
        files.take("adopted", adoption.sha256, passing)
        with plain_file_open(passing) as file:
            plain_file_write(directory.adopted(adoption.number), file)
        plain_file_delete(directory.adopted(previous), directory.path)
    finally:
        passing.unlink(missing_ok=True)


def code_fetch(files: SiteFiles, sha256: str, code_name: str, target: Path) -> None:
    """Unpack the code into the empty folder `target`."""
    with tempfile.TemporaryDirectory(dir=target.parent) as passing:
        archive = Path(passing) / "archive"
        files.take("code", sha256, archive)
        archive_unpack(archive.read_bytes(), code_name, target)
