"""Names of the jobs' colours, the same on all pages and for a job's whole life.

The colours themselves are custom properties of the style sheet (`--job-0` ... `--job-11`, one set
for light and one for dark); pages and charts refer to them by name only. Colour alone never
identifies a job: its name or number stands beside it.
"""

from __future__ import annotations

#: Colour of jobs without a colour of their own in a chart.
OTHER_JOBS_TOKEN = "--other-jobs"  # noqa: S105


def job_colour_token(colour: int) -> str:
    """Return the custom property that holds the colour of jobs with this `Job.colour`."""
    return f"--job-{colour}"
