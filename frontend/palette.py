"""Which colour a job has, everywhere and for its whole life.

The colours themselves are custom properties of the style sheet (`--job-0` ... `--job-7`, one set
for light and one for dark); the pages and charts only ever name them. A job is never told apart by
colour alone: its name or number stands beside it.
"""

from __future__ import annotations

NUM_JOB_COLOURS = 8
#: Jobs that have no colour of their own in a chart.
OTHER_JOBS_TOKEN = "--other-jobs"  # noqa: S105


def job_colour_index(job_id: int) -> int:
    """Give the palette place of a job; jobs submitted one after another never share one."""
    return job_id % NUM_JOB_COLOURS


def job_colour_token(job_id: int) -> str:
    """Give the custom property that holds the job's colour."""
    return f"--job-{job_colour_index(job_id)}"
