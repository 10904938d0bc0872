"""Faults of a job's own code: one coded error, with the traceback cut down to the user's frames."""

from __future__ import annotations

import re
import traceback as traceback_module
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from agents.trainer.failures import TrainerError

MESSAGE_LIMIT = 4_000
TRACEBACK_LIMIT = 20_000
_FRAME = re.compile(r'\s*File "(?P<path>[^"]*)", line \d+')
_PROJECT_FOLDER = Path(__file__).resolve().parents[1]


class JobCodeError(Exception):
    """The job's code or data cannot be used; the user has to change something.

    Attributes:
        code: machine word for what is wrong ("user_code", "not_compiled", "length_mismatch" ...).
        field: what has to change: "code", "code.build", "data.train", "data.validation" or a field
            of the submission.
        message: one or two sentences: what is wrong and the fix.
        traceback: the user's own frames, empty when no exception of theirs is behind it.
    """

    def __init__(self, code: str, field: str, message: str, traceback: str = "") -> None:
        super().__init__(f"{field}: {message}")
        self.code = code
        self.field = field
        self.message = message[:MESSAGE_LIMIT]
        self.traceback = traceback[-TRACEBACK_LIMIT:]


@contextmanager
def user_code(code_dir: Path, field: str, doing: str) -> Iterator[None]:
    """Turn whatever the user's code raises inside the block into a `JobCodeError`.

    SystemExit is caught too: a script that calls `sys.exit` must not end the trainer silently.

    Raises:
        JobCodeError: with code "user_code", or the one that was raised inside.
        Exception: as it was, when a line of the project itself raised it.
    """
    try:
        yield
    except JobCodeError:
        raise
    except (Exception, SystemExit) as error:
        if _is_own_fault(error):
            raise
        reason = user_frames(str(error), code_dir)
        message = f"{doing} raised {type(error).__name__}: {reason}{_import_advice(error)}"
        trace = user_traceback(error, code_dir)
        raise JobCodeError("user_code", field, message, trace) from error


def user_traceback(error: BaseException, code_dir: Path) -> str:
    """Format `error` and its causes with only the frames in `code_dir`, paths relative to it."""
    return user_frames("".join(traceback_module.format_exception(error)), code_dir)


def user_frames(text: str, code_dir: Path) -> str:
    """Take all frames out of a text that are not in `code_dir`; give the others relative paths.

    Messages are filtered like tracebacks: TensorFlow writes frames of its own into them.
    """
    root = code_dir.resolve()
    kept: list[str] = []
    dropped_indent: int | None = None
    for line in text.splitlines():
        indent = len(line) - len(line.lstrip())
        if dropped_indent is not None and (indent > dropped_indent or not line.strip()):
            continue  # the source line of a frame that was taken out, or the gap after it
        dropped_indent = None
        frame = _FRAME.match(line)
        if frame and not _is_within(frame["path"], root):
            dropped_indent = indent
            continue
        kept.append(line)
    return "\n".join(kept).replace(f"{root}/", "").replace(f"{code_dir}/", "")


def own_frames_kept(error: TrainerError, code_dir: Path) -> TrainerError:
    """Cut message and traceback of a failed step down to the user's own frames."""
    message = user_frames(error.message, code_dir)[:MESSAGE_LIMIT]
    traceback = user_frames(error.traceback, code_dir)[-TRACEBACK_LIMIT:]
    return TrainerError(error.code, message, traceback)


def _import_advice(error: BaseException) -> str:
    """Say which class of Keras asked for a missing package, and what to do instead."""
    if not isinstance(error, ImportError):
        return ""
    frames = traceback_module.walk_tb(error.__traceback__)
    owners = [type(frame.f_locals["self"]) for frame, _ in frames if "self" in frame.f_locals]
    of_keras = [
        owner.__name__
        for owner in owners
        if owner.__module__.startswith("keras.") and hasattr(owner, "get_config")
    ]
    asked = f", which {of_keras[-1]} needs" if of_keras else ""
    return f"{asked}; trainers have the packages of the product only: use what needs no other"


def _is_own_fault(error: BaseException) -> bool:
    """Say whether `error` was raised by a line of the project itself, not below the user's code."""
    # AutoGraph raises anew and writes the frames of the first exception into its message.
    paths = _FRAME.findall(str(error))
    paths = paths or [frame.filename for frame in traceback_module.extract_tb(error.__traceback__)]
    return bool(paths) and _is_within(paths[-1], _PROJECT_FOLDER)


def _is_within(filename: str, root: Path) -> bool:
    try:
        return Path(filename).resolve().is_relative_to(root)
    except (OSError, ValueError):  # "<string>" and the like
        return False
