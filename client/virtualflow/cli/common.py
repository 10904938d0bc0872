"""Parts that the commands share: the client, arguments, and the end of a failed command."""

from __future__ import annotations

import os
import re
import sys
import traceback
from collections.abc import Iterable, Mapping
from datetime import datetime
from enum import IntEnum
from typing import Any

import click

from virtualflow.cli import completing, screen
from virtualflow.errors import VirtualFlowError

_JOB = re.compile(r"#?([0-9]{1,18})")


class ExitCode(IntEnum):
    """Exit codes; docs/client.md lists them."""

    FINE = 0
    JOB_FAILED = 1
    USAGE = 2
    REFUSED = 3
    UNREACHABLE = 4
    TIMED_OUT = 5
    INTERRUPTED = 130


as_json = click.option("--json", "as_json", is_flag=True, help="Print JSON on standard output.")
reason = click.option("--reason", default="", help="Why, for the job's or node's events.")
timeout = click.option(
    "--timeout", "timeout_s", type=click.FloatRange(0, min_open=True), metavar="SECONDS",
    help=f"Stop waiting then, with exit code {ExitCode.TIMED_OUT}.",
)  # fmt: skip
changes = click.option(
    "--set", "changes", multiple=True, metavar="KEY=VALUE", help="As of `virtualflow submit`."
)
template = click.option(
    "--template",
    shell_complete=completing.templates,
    help="Start from a ready job; `virtualflow templates` lists them.",
)


def counted(number: int, noun: str) -> str:
    """Return a number with its noun, which ends in s unless there is one: `1 job`, `2 jobs`."""
    return f"{number} {noun}{'' if number == 1 else 's'}"


def empty_refuse(*values: object) -> None:
    """Refuse empty options, as of a variable that is not set: they would count as not given.

    Raises:
        click.UsageError: a value is empty.
    """
    if any(value in ("", ("",)) for value in values):
        raise click.UsageError("An option is empty: give it a value, or leave it out.")


def job_number(text: str) -> int:
    """Read the number of a job, with or without `#`.

    Raises:
        click.BadParameter: it is none.
    """
    match = _JOB.fullmatch(text)
    if match is None or int(match[1]) == 0:
        raise click.BadParameter(f"{text!r:.60} is no number of a job; see `virtualflow ls`.")
    return int(match[1])


def local_time(text: str) -> str:
    """Give a time of ISO 8601 without an offset that of the local zone, as tables show times.

    Raises:
        click.BadParameter: it is none.
    """
    try:
        at = datetime.fromisoformat(text)
        return text if at.tzinfo else at.astimezone().isoformat()
    except (ValueError, OverflowError):
        hint = f"Give a time such as 2026-11-25 or 2026-11-25T18:30, not {text!r:.60}."
        raise click.BadParameter(hint) from None


def row_number(rows: Iterable[Mapping[str, Any]], text: str, noun: str) -> int:
    """Find a row by name or else by number: names may be numbers.

    Raises:
        click.BadParameter: there is none.
    """
    found: list[tuple[str, int]] = [(row["name"], row["id"]) for row in rows]
    named = {str(number): number for _, number in found} | dict(found)
    if text in named:
        return named[text]
    names = ", ".join(sorted(name for name, _ in found)[:20]) or "none yet"
    raise click.BadParameter(
        f"There is no {noun} {text!r:.60}. {noun.capitalize()}s: {screen.plain(names)}.",
        param_hint=noun.upper(),
    )


job_argument = click.argument("job", type=job_number, shell_complete=completing.jobs)
jobs_argument = click.argument(
    "jobs", type=job_number, nargs=-1, required=True, shell_complete=completing.jobs
)


def error_code(error: VirtualFlowError) -> ExitCode:
    if error.code == "timed_out":
        return ExitCode.TIMED_OUT
    if error.code in ("bad_input", "not_logged_in"):
        return ExitCode.USAGE
    return ExitCode.REFUSED if error.is_refusal else ExitCode.UNREACHABLE


def error_show(error: VirtualFlowError) -> None:
    """Print what is wrong, each field on a line of its own, and what may help."""
    screen.note(f"Error: {error}")
    if error.status == 401:
        screen.note("Fix: make a token on the site's account page, then run `virtualflow login`.")
    if error.retry_after_s:
        screen.note(f"Fix: wait for {screen.duration(error.retry_after_s)}, then try again.")


def output_error_show(error: OSError) -> ExitCode:
    """Print why standard output cannot be written to, drop what is left of it, and return the code.

    Errors of files and of the network are VirtualFlowErrors: any other OSError is of the output.
    """
    # Also what Python still writes at its end.
    os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
    if isinstance(error, BrokenPipeError):  # as of `virtualflow ls | head`: nobody reads on
        return ExitCode.FINE
    screen.note(f"Error: Cannot write the output: {error.strerror or error}.")
    return ExitCode.USAGE


class CommandGroup(click.Group):
    """Group of commands that ends with one of the documented exit codes."""

    def invoke(self, ctx: click.Context) -> Any:
        try:
            return super().invoke(ctx)
        except VirtualFlowError as error:
            error_show(error)
            ctx.exit(error_code(error))
        except OSError as error:
            ctx.exit(output_error_show(error))
        except completing.ODD_ANSWER as error:  # of a site of another version
            what = traceback.format_exception_only(error)[-1].strip()
            screen.note(f"Error: An answer of the site is not as expected ({what:.200}).")
            screen.note("Fix: install the client of the site's version.")
            ctx.exit(ExitCode.UNREACHABLE)
