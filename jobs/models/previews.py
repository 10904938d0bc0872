"""Previews of the examples that a job's selection chooses most often."""

from __future__ import annotations

from django.db import models

from controlplane.core.protocol.selection import LABEL_LENGTH
from jobs.models.jobs import Job


class ExamplePreview(models.Model):
    """One example of a job's training data.

    Attributes:
        place: in the data.
        label: as text; "" if it is no class, number or text.
        image: PNG; null if the example is no image.
    """

    job = models.ForeignKey(Job, on_delete=models.CASCADE, related_name="example_previews")
    place = models.PositiveBigIntegerField()
    label = models.CharField(max_length=LABEL_LENGTH, blank=True)
    image = models.BinaryField(null=True, blank=True)

    class Meta:
        constraints = (
            models.UniqueConstraint(name="example_preview_once", fields=("job", "place")),
        )

    def __str__(self) -> str:
        return f"example {self.place} of job {self.job_id}"
