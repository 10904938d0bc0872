"""Faults of a job's own code: one coded error, with the traceback cut down to the user's frames."""

from __future__ import annotations

import re
import sys
import traceback as traceback_module
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import keras
import tensorflow as tf

from agents.trainer.contract.error_sentences import (
    import_sentence,
    known_sentence,
    missing_key_sentence,
    missing_output_sentence,
    reason_line,
    syntax_sentence,
)
from agents.trainer.contract.failures import TrainerError
from agents.trainer.contract.shape_sentences import DataShapes
from controlplane.core.protocol.plain_text import plain_text

MESSAGE_LIMIT = 4_000
TRACEBACK_LIMIT = 20_000
#: Most characters of a quoted error message in a headline.
SENTENCE_LIMIT = 500
#: The module name under which a job's entry file is imported, regardless of the file's name.
ENTRY_MODULE = "job_code"
_CHAIN_LIMIT = 20
_FRAME = re.compile(r'\s*File "(?P<path>[^"]*)", line \d+')
_FRAME_IN_TEXT = re.compile(
    r'File "(?P<path>[^"\n]*)", line (?P<line>\d{1,9})(?:, in (?P<name>[\w<>]+))?'
)
#: Keras's function that lists labels in the order of a model's outputs.
_OUTPUTS_LISTED = "_flatten_y"
#: Keras's method that raises an error without a message.
_LOSS_ADDED = "add_loss"
#: Start of Keras's message when a model's call fails before the model is built.
_ADVICE = "Unable to automatically build the model"
_OWN_PACKAGES = "trainers have the product's packages only, so use what needs no other"
#: An ordinary word at the beginning of a sentence; identifiers have dots and brackets.
_WORD = re.compile(r"[a-z]+(?:'s)?[ ,]")
_SHOWN_ESCAPE = re.compile(r"\\x1b\[[0-9;]*m")
_PROJECT_FOLDER = Path(__file__).resolve().parents[2]


class JobCodeError(Exception):
    """The job's code or data cannot be used and have to be changed by the user.

    Attributes:
        code: identifier of the error ("user_code", "not_compiled", "length_mismatch" ...).
        field: the part to change: "code", "code.build", "data.train", "data.validation" or a field
            of the submission.
        message: one or two sentences: the problem and the fix.
        traceback: the user's own frames; empty if no exception of the user's code is the cause.
    """

    def __init__(self, code: str, field: str, message: str, traceback: str = "") -> None:
        super().__init__(f"{field}: {message}")
        self.code = code
        self.field = field
        self.message = plain_text(_capital(_cut(message)))
        self.traceback = plain_text(traceback[-TRACEBACK_LIMIT:])


#: Exit status of argparse, and of most programs, for a command line that they cannot read.
_USAGE_STATUS = 2
_BESIDE = "files of the .zip lie beside the job's file: Path(__file__).with_name('table.csv')"
_NO_COMMAND_LINE = (
    "a job has no command line of its own: give parse_args([]), and values as settings of the job"
)

_NO_ADD_LOSS = (
    "Sequential models and those of keras.Model(inputs, outputs) have no add_loss() in Keras 3; "
    "call self.add_loss() in the call() of a layer of your own, or write compute_loss() of a model"
)


@contextmanager
def user_code(
    code_dir: Path,
    field: str,
    doing: str,
    sample: Any = None,
    is_all_theirs: bool = False,
) -> Iterator[None]:
    """Convert any exception of the user's code inside the block to a `JobCodeError`.

    SystemExit is caught too: a script that calls `sys.exit` must not end the trainer silently.

    Args:
        sample: examples as arrays, in any structure; their shapes tell data from layer outputs.
        is_all_theirs: the block only calls the user's code, so that even errors that Python raises
            outside that code are the user's: `len` of an object whose length is negative.

    Raises:
        JobCodeError: with code "user_code", or the one that was raised inside.
        Exception: unchanged, if a line of the project itself raised it.
    """
    try:
        yield
    except JobCodeError as error:
        if (cause := error.__cause__) is None or error.traceback:
            raise
        below = _below(cause, user_place(cause, code_dir), code_dir)
        raise JobCodeError(error.code, error.field, error.message, below) from cause
    except (Exception, SystemExit) as error:
        if not is_all_theirs and _is_own_fault(error):
            raise
        shown = _unwrapped(error)
        place = user_place(shown, code_dir)
        headline = _headline(shown, doing, place, _example_shapes(sample))
        below = _below(error, place, code_dir)
        raise JobCodeError("user_code", field, user_frames(headline, code_dir), below) from error


def _below(error: BaseException, place: str, code_dir: Path) -> str:
    """Return what stands below the sentence: the user's line and frames."""
    return f"{place or _maker(code_dir)}\n\n{user_traceback(error, code_dir)}".lstrip("\n")


def user_traceback(error: BaseException, code_dir: Path) -> str:
    """Format `error` and its causes with only the frames in `code_dir`, paths relative to it.

    Causes without such a frame are left out; `error` itself is always included.
    """
    texts = []
    for link in _chain(error):
        lines = traceback_module.format_exception(link, chain=False)
        text = user_frames(plain_text(_SHOWN_ESCAPE.sub("", "".join(lines))), code_dir)
        has_frames = any(_FRAME.match(line) for line in text.splitlines())
        if not has_frames:
            text = text.removeprefix("Traceback (most recent call last):\n")
        if has_frames or link is error:
            texts.append(text)
    return "\n\nThis led to:\n\n".join(texts)


def user_frames(text: str, code_dir: Path) -> str:
    """Remove all frames outside `code_dir` from a text; make the other paths relative.

    Messages are filtered like tracebacks, because TensorFlow includes its own frames in messages.
    """
    root = code_dir.resolve()
    kept: list[str] = []
    dropped_indent: int | None = None
    for line in text.splitlines():
        indent = len(line) - len(line.lstrip())
        if dropped_indent is not None and (indent > dropped_indent or not line.strip()):
            continue  # the source line of a removed frame, or the gap after it
        dropped_indent = None
        frame = _FRAME.match(line)
        if frame and not _is_within(frame["path"], root):
            dropped_indent = indent
            continue
        kept.append(line)
    return "\n".join(kept).replace(f"{root}/", "").replace(f"{code_dir}/", "")


def user_place(error: BaseException, code_dir: Path) -> str:
    """Return the user's line that raised an error: "job.py, line 12, in build"; empty if none."""
    root = code_dir.resolve()
    if isinstance(error, SyntaxError) and error.filename and _is_within(error.filename, root):
        return f"{Path(error.filename).resolve().relative_to(root)}, line {error.lineno}"
    frames = [
        (frame.filename, frame.lineno, frame.name)
        for frame in traceback_module.extract_tb(error.__traceback__)
    ]
    return _place_of(frames, root) or _place_in_text(str(error), root)


def own_frames_kept(error: TrainerError, code_dir: Path) -> TrainerError:
    """Describe a failed step in one sentence, with only the user's frames in the traceback."""
    root = code_dir.resolve()
    text = plain_text(error.message)
    place = _place_in_text(text, root)
    message = user_frames(text, code_dir)
    trace = user_frames(plain_text(error.traceback), code_dir)
    doing, _, said = message.partition(": ")
    sentence = known_sentence(text.partition(": ")[2]) or _unknown(doing, reason_line(said), place)
    below = "\n\n".join(part for part in (place or _maker(code_dir), trace or message) if part)
    return TrainerError(error.code, _cut(sentence), below[-TRACEBACK_LIMIT:])


def _headline(error: BaseException, doing: str, place: str, shapes: DataShapes) -> str:
    """Return the sentence for an error: of its family, or its type and most telling line."""
    if isinstance(error, SyntaxError):
        return syntax_sentence(error, place.partition(",")[0] or "The file")
    if isinstance(error, ImportError):
        owner = _keras_class_of(error)
        said = import_sentence(error)
        return f"{said}. {owner} asks for it; {_OWN_PACKAGES}" if owner else said
    frames = traceback_module.extract_tb(error.__traceback__)[-2:]  # a comprehension's, too
    if isinstance(error, KeyError) and _OUTPUTS_LISTED in [frame.name for frame in frames]:
        return missing_output_sentence(str(error.args[0]))
    if isinstance(error, NotImplementedError) and frames and _is_keras_add_loss(frames[-1]):
        return _NO_ADD_LOSS
    # str() of a KeyError is the repr of its argument, into which Keras puts a text of many lines.
    is_story = isinstance(error, KeyError) and error.args and "\n" in str(error.args[0])
    text = plain_text(str(error.args[0]) if is_story else str(error))
    sentence = (missing_key_sentence(text) if is_story else None) or known_sentence(text, shapes)
    sentence = sentence or _unknown(
        f"{doing} raised {type(error).__name__}", reason_line(text), place
    )
    is_usage = isinstance(error, SystemExit) and error.code == _USAGE_STATUS
    if isinstance(error, FileNotFoundError) and not str(error.filename or text).startswith("/"):
        return f"{sentence}; {_BESIDE}"
    return f"{sentence}; {_NO_COMMAND_LINE}" if is_usage else sentence


def _unknown(what: str, reason: str, place: str) -> str:
    """Compose event, reason and place of an error of no known family."""
    said = f": {reason}" if reason else ""
    where = f" ({place.partition(', in ')[0]})" if place else ""
    return f"{what}{_cut(said, SENTENCE_LIMIT)}{where}"


def _unwrapped(error: BaseException) -> BaseException:
    """Return the error to report: Keras wraps some in advice on building a model."""
    while str(error).startswith(_ADVICE) and (cause := error.__cause__ or error.__context__):
        error = cause
    return error


def _chain(error: BaseException) -> list[BaseException]:
    """List an error and its causes, the first cause first."""
    links = [error]
    for _ in range(_CHAIN_LIMIT):
        link = links[-1]
        cause = link.__cause__ or (None if link.__suppress_context__ else link.__context__)
        if cause is None or cause in links:
            break
        links.append(cause)
    return links[::-1]


def _place_in_text(text: str, root: Path) -> str:
    """Return the user's innermost line from frames that TensorFlow includes in messages."""
    frames = [(m["path"], int(m["line"]), m["name"] or "") for m in _FRAME_IN_TEXT.finditer(text)]
    return _place_of(frames, root)


def _place_of(frames: Sequence[tuple[str, int | None, str]], root: Path) -> str:
    for filename, line, name in reversed(frames):
        if _is_within(filename, root):
            where = f"{Path(filename).resolve().relative_to(root)}, line {line}"
            return f"{where}, in {name}" if name and name != "<module>" else where
    return ""


def _maker(code_dir: Path) -> str:
    """Return where the model is made, for errors raised by no line of the user's code."""
    build = getattr(sys.modules.get(ENTRY_MODULE), "build", None)
    code = getattr(build, "__code__", None)
    if code is None:
        return ""
    frame = (code.co_filename, code.co_firstlineno, code.co_name)
    place = _place_of([frame], code_dir.resolve())
    return f"The model is made in {place}" if place else ""


def _example_shapes(sample: Any) -> DataShapes:
    leaves = [] if sample is None else keras.tree.flatten(sample)
    return {tuple(leaf.shape[1:]) for leaf in leaves if hasattr(leaf, "shape")}


def _cut(text: str, limit: int = MESSAGE_LIMIT) -> str:
    return text if len(text) <= limit else f"{text[: limit - 1]}…"


def _capital(text: str) -> str:
    """Capitalize the first letter, unless the sentence begins with code."""
    return text[:1].upper() + text[1:] if _WORD.match(text) else text


def _is_keras_add_loss(frame: traceback_module.FrameSummary) -> bool:
    """Return whether a frame is of Keras's method; a job may have an `add_loss` of its own."""
    is_of_keras = Path(frame.filename).is_relative_to(Path(keras.__file__).parent)
    return frame.name == _LOSS_ADDED and is_of_keras


def _keras_class_of(error: ImportError) -> str:
    """Return the name of the Keras class that imports a missing package; empty if none does."""
    frames = traceback_module.walk_tb(error.__traceback__)
    owners = [type(frame.f_locals["self"]) for frame, _ in frames if "self" in frame.f_locals]
    of_keras = [
        owner.__name__
        for owner in owners
        if owner.__module__.startswith("keras.") and hasattr(owner, "get_config")
    ]
    return of_keras[-1] if of_keras else ""


def _is_own_fault(error: BaseException) -> bool:
    """Return whether a line of the project itself, not called by user code, raised `error`."""
    if isinstance(error, tf.errors.OpError):  # an operation got values that it cannot process
        return False
    # AutoGraph raises a new error with the frames of the first exception in its message.
    paths = _FRAME.findall(str(error))
    paths = paths or [frame.filename for frame in traceback_module.extract_tb(error.__traceback__)]
    return bool(paths) and _is_within(paths[-1], _PROJECT_FOLDER)


def _is_within(filename: str, root: Path) -> bool:
    if filename.startswith("<"):  # "<string>", "<frozen runpy>": no path, so none below the cwd
        return False
    try:
        return Path(filename).resolve().is_relative_to(root)
    except (OSError, ValueError):
        return False
