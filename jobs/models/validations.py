"""Validations: a job's code is built once on a node, before or after the job is submitted."""

from __future__ import annotations

from django.conf import settings
from django.db import models
from django.db.models import Q

from controlplane.core.values.lifecycle import ValidationStatus
from jobs.models.choices import choices, values
from jobs.models.jobs import Job, code_path

OPEN_STATUSES = (ValidationStatus.WAITING, ValidationStatus.RUNNING)
#: Status of a job whose validation waits, before the cause is known.
WAITS_FOR_NODE = {
    "status_code": "no_node",
    "status_reason": "Waits for a node to build its code on.",
}


class Validation(models.Model):
    """One validation: of a submitted job, or of a submission that was not submitted.

    A job has its own columns, code and facts; `job_fields`, `code` and `facts` are of the others.

    Attributes:
        job_fields: columns of the job that the submission would make.
        attempt: number of nodes that were asked.
    """

    owner = models.ForeignKey(
        settings.AUTH_USER_MODEL, on_delete=models.PROTECT, related_name="validations"
    )
    job = models.OneToOneField(
        Job, null=True, blank=True, on_delete=models.CASCADE, related_name="validation"
    )
    job_fields = models.JSONField(default=dict, blank=True)
    code = models.FileField(upload_to=code_path, max_length=200, blank=True)
    code_sha256 = models.CharField(max_length=64, blank=True, db_index=True)

    status = models.CharField(
        max_length=12, choices=choices(ValidationStatus), default=ValidationStatus.WAITING.value
    )
    status_code = models.CharField(max_length=40, blank=True)
    status_reason = models.TextField(blank=True)
    error_field = models.CharField(max_length=60, blank=True)
    error_traceback = models.TextField(blank=True)
    facts = models.JSONField(default=dict, blank=True)
    attempt = models.PositiveSmallIntegerField(default=0)
    node = models.ForeignKey(
        "jobs.Node", null=True, blank=True, on_delete=models.SET_NULL, related_name="validations"
    )
    deadline_at = models.DateTimeField(null=True, blank=True)
    requested_at = models.DateTimeField()
    ended_at = models.DateTimeField(null=True, blank=True)

    class Meta:
        ordering = ("-id",)
        constraints = (
            models.CheckConstraint(
                name="validation_status_known", condition=Q(status__in=values(ValidationStatus))
            ),
            models.CheckConstraint(
                name="validation_deadline_when_running",
                condition=Q(status=ValidationStatus.RUNNING.value, deadline_at__isnull=False)
                | (~Q(status=ValidationStatus.RUNNING.value) & Q(deadline_at__isnull=True)),
            ),
        )
        indexes = (
            models.Index(
                name="validation_open",
                fields=("id",),
                condition=Q(status__in=values(OPEN_STATUSES)),
            ),
        )

    def __str__(self) -> str:
        return f"validation {self.pk}"

    @property
    def validated_job(self) -> Job:
        """The job; before its submission, an unsaved one with the same columns."""
        if self.job is not None:
            return self.job
        return Job(**self.job_fields, owner=self.owner, code=self.code.name, facts=self.facts)
