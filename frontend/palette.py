"""Assignment of colours to jobs, the same on all pages and for a job's whole life.

The colours themselves are custom properties of the style sheet (`--job-0` ... `--job-7`, one set
for light and one for dark); pages and charts refer to them by name only. Colour alone never
identifies a job: its name or number stands beside it.
"""

from __future__ import annotations

NUM_JOB_COLOURS = 8
#: Colour of jobs without a colour of their own in a chart.
OTHER_JOBS_TOKEN = "--other-jobs"  # noqa: S105


def job_colour_index(job_id: int) -> int:
    """Return a job's palette index; jobs submitted one after another never share one."""
    return job_id % NUM_JOB_COLOURS


def job_colour_token(job_id: int) -> str:
    """Return the custom property that holds the job's colour."""
    return f"--job-{job_colour_index(job_id)}"
