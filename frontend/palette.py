"""Names of the jobs' colours, the same on all pages and from a job's first start on.

The colours themselves are custom properties of the style sheet (`--job-0` ... `--job-11`, one set
for light and one for dark); pages and charts refer to them by name only. Colour alone never
identifies a job: its name or number stands beside it, and areas and lines have a pattern or a dash.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from jobs.models.jobs import NUM_COLOURS

#: Colour of jobs without a colour of their own in a chart.
OTHER_JOBS_TOKEN = "--other-jobs"  # noqa: S105
#: Dashes of lines, the most different ones first.
DASHES = ("solid", "dash", "dot", "dashdot", "longdash")
#: Shape and distance of the strokes in an area, one for each of the colours.
_PATTERNS = (
    *(("", 8), ("/", 6), (".", 6), ("x", 8), ("-", 6), ("\\", 6), ("+", 8), ("|", 6)),
    *(("/", 14), ("-", 14), ("\\", 14), ("|", 14)),
)


def text_on(token: str) -> str:
    """Return the token of black or white, whichever is read better on a colour."""
    return token.replace("--", "--text-on-", 1)


def job_colour_token(colour: int) -> str:
    """Return the custom property that holds the colour of jobs with this `Job.colour`."""
    return f"--job-{colour}"


def pattern(token: str, place: int) -> dict[str, Any]:
    """Return Plotly's pattern of an area in a colour; `place` is from 0 to below `NUM_COLOURS`."""
    shape, size = _PATTERNS[place]
    return {
        "shape": shape,
        "size": size,
        "solidity": 0.25,
        "bgcolor": token,
        "fgcolor": text_on(token),
        "fgopacity": 0.4,
    }


def colours_apart(colours: Sequence[int]) -> list[int]:
    """Return a colour per job, its own where no job before it has taken it.

    Up to `NUM_COLOURS` jobs get different ones.
    """
    free = [colour for colour in range(NUM_COLOURS) if colour not in colours]
    given: list[int] = []
    for colour in colours:
        given.append(free.pop(0) if colour in given and free else colour)
    return given
