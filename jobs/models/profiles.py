"""Step times of a job's code by kind of accelerator, kept for later jobs with the same code."""

from __future__ import annotations

from django.db import models


class StepTimeProfile(models.Model):
    """Measured seconds of one code with one set of settings and one size of slice.

    With `measures` `compute` the row is about one kind of accelerator, and `samples` is by number
    of virtual nodes; with `sync` it is about the kinds that trained together ("fast+slow") and the
    rows that each trainer sent, and `samples` is by number of trainers. A sample is a
    `core.estimates.step_time.Sample` as [count, mean_s, recent_s].
    """

    COMPUTE = "compute"
    SYNC = "sync"

    code_sha256 = models.CharField(max_length=64)
    settings_sha256 = models.CharField(max_length=64)
    measures = models.CharField(max_length=10, choices=((COMPUTE, COMPUTE), (SYNC, SYNC)))
    kind = models.CharField(max_length=200)
    num_rows = models.PositiveSmallIntegerField(default=1)
    samples = models.JSONField(default=dict)
    updated_at = models.DateTimeField()

    class Meta:
        constraints = (
            models.UniqueConstraint(
                name="step_time_profile_once",
                fields=("code_sha256", "settings_sha256", "measures", "kind", "num_rows"),
            ),
        )

    def __str__(self) -> str:
        return f"{self.measures} times on {self.kind} of code {self.code_sha256[:8]}"
