"""Code of a submission: a `.py` file or a `.zip` archive."""

from __future__ import annotations

import re

from controlplane.core.protocol.code_archive import CodeArchiveError, archive_check
from jobs.job_templates import JobTemplate
from jobs.python_text import python_parse
from jobs.submission import name_start

_PARSED_LIMIT_BYTES = 256 * 1024
_NAME_LIMIT = 120
#: Names of files, which would be valid Python expressions, too.
_FILE_NAME = re.compile(r"[^\s()\"']+\.(py|zip)")


def code_read(
    text: str | None, name: str, file: tuple[bytes, str] | None, template: JobTemplate | None
) -> dict[str, bytes | str]:
    """Choose and check the code: a file, else text, else a template's.

    Returns:
        `code`, `code_name` and `entry_file` of the submission.

    Raises:
        CodeArchiveError: there is none, it is no such file, or it has a syntax error.
    """
    if file is not None:
        content, name = file[0], file[1] or name
    elif text is not None:
        if _FILE_NAME.fullmatch(text.strip()):
            message = "Send the file, as by `--code FILE` or `--form code=@FILE`; this is its name."
            raise CodeArchiveError("file_name", message)
        content = text.encode()
    elif template is not None:
        content, name = template.code.encode(), template.path.name
    else:
        message = "Give a .py or .zip file, its text, or the name of a template."
        raise CodeArchiveError("no_code", message)
    # Only the last part of the name: browsers and clients may send a path.
    name = name.replace("\\", "/").rsplit("/", 1)[-1]
    if len(name) > _NAME_LIMIT:
        stem, dot, ending = name.rpartition(".")
        name = name_start(stem, _NAME_LIMIT - len(dot + ending)) + dot + ending
    entry_file = archive_check(content, name)
    if name.lower().endswith(".py") and (error := _syntax_error(content, entry_file)):
        raise CodeArchiveError("syntax_error", error)
    return {"code": content, "code_name": name[:_NAME_LIMIT], "entry_file": entry_file}


def _syntax_error(content: bytes, file_name: str) -> str | None:
    """Describe the first syntax error of a file, up to `_PARSED_LIMIT_BYTES`.

    The file is never compiled here: code of a few hundred bytes can keep the compiler busy for
    minutes. Its validation compiles it on a node.
    """
    if len(content) > _PARSED_LIMIT_BYTES:
        return None
    try:
        python_parse(content, file_name)
    except SyntaxError as error:
        return f"Line {error.lineno}: {error.msg}."
    except (ValueError, RecursionError, MemoryError) as error:
        return f"This is no Python text: {error}."
    return None
