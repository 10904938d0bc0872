"""`python -m tests.support.base_images lock|check`: digests of the base images.

`lock` pulls the images that Dockerfile and docker-compose.yml name and writes their digests into
requirements/images.txt. `check` compares these with the images of this machine's container engine.
"""

from __future__ import annotations

import json
import re
import subprocess
import sys
from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path

import yaml

ROOT = Path(__file__).resolve().parents[2]
LOCK = ROOT / "requirements" / "images.txt"
ENGINE = ("docker",)
_DIGEST = re.compile(r"sha256:[0-9a-f]{64}")
_LIMIT_S = 1800.0


def images_used(root: Path = ROOT) -> set[str]:
    """Return the images that are pulled: no stages of a build, and none that is built here."""
    lines = re.findall(
        r"^FROM\s+(?:--\S+\s+)*(\S+)(?:\s+AS\s+(\S+))?",
        (root / "Dockerfile").read_text(),
        re.MULTILINE | re.IGNORECASE,
    )
    stages = {stage for _, stage in lines}
    services = yaml.safe_load((root / "docker-compose.yml").read_text())["services"].values()
    pulled = {service["image"] for service in services if "build" not in service}
    return {image for image, _ in lines if image not in stages} | pulled


def digests_locked(lock: Path = LOCK) -> dict[str, str]:
    """Return the recorded digest of each image, empty if it has none.

    Raises:
        ValueError: a line is no image with or without a digest.
    """
    digests = {}
    for line in lock.read_text().splitlines():
        if not line or line.startswith("#"):
            continue
        name, has_digest, digest = line.partition("@")
        if has_digest and not _DIGEST.fullmatch(digest):
            raise ValueError(f"{lock.name}: {line!r} has no digest sha256:<64 hex digits>")
        digests[name] = digest
    return digests


def images_lock(lock: Path = LOCK, engine: Sequence[str] = ENGINE, root: Path = ROOT) -> None:
    """Pull all images and write their digests; comments stay.

    Raises:
        CalledProcessError: an image cannot be pulled; nothing is written.
        ValueError: the engine knows no digest of an image.
    """
    digests = {}
    for image in sorted(images_used(root)):
        subprocess.run([*engine, "pull", image], check=True, timeout=_LIMIT_S)
        found = _digests_of(image, engine)
        if not found:
            raise ValueError(f"the engine has no digest of {image}: it was not pulled")
        digests[image] = found[0]
    comments = [line for line in lock.read_text().splitlines() if line.startswith("#")]
    pins = [f"{image}@{digest}" for image, digest in digests.items()]
    lock.write_text("\n".join([*comments, *pins]) + "\n")


def images_check(lock: Path = LOCK, engine: Sequence[str] = ENGINE, root: Path = ROOT) -> list[str]:
    """Return a sentence per image that is not the recorded one; none if all are."""
    used = images_used(root)
    found = {image: _digests_of(image, engine) for image in used}
    return [*_faults(used, digests_locked(lock), found)]


def _faults(
    used: Iterable[str], locked: Mapping[str, str], found: Mapping[str, Sequence[str] | None]
) -> Iterable[str]:
    for image in sorted(used):
        there = found[image]
        if not locked.get(image):
            yield f"{image}: no digest is recorded; run `make lock-images`, commit the result"
        elif there is None:
            yield f"{image}: the engine has no such image; pull it, then check again"
        elif not there:
            yield f"{image}: the engine's image was made on this machine, not pulled"
        elif locked[image] not in there:
            yield f"{image}: the engine has {', '.join(there)}, recorded is {locked[image]}"


def _digests_of(image: str, engine: Sequence[str]) -> list[str] | None:
    """Return the digests under which the engine has pulled an image; None if it has no such one."""
    command = [*engine, "image", "inspect", "--format", "{{json .RepoDigests}}", image]
    try:
        done = subprocess.run(command, capture_output=True, check=False, timeout=60)
    except FileNotFoundError:
        return None
    if done.returncode != 0:
        return None
    return [name.partition("@")[2] for name in json.loads(done.stdout) or []]


def main(arguments: Sequence[str]) -> int:
    """Lock or check; return the exit status."""
    if arguments == ["lock"]:
        images_lock()
        return 0
    if arguments != ["check"]:
        sys.stderr.write(f"{__doc__}\n")
        return 2
    faults = images_check()
    sys.stdout.writelines(f"{fault}\n" for fault in faults)
    return 1 if faults else 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
