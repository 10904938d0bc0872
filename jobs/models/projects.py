"""Projects, their members, and prices of accelerators."""

from __future__ import annotations

from enum import StrEnum

from django.conf import settings
from django.core.validators import MaxValueValidator, MinValueValidator, RegexValidator
from django.db import models
from django.db.models import F, Q

from jobs.models.choices import choices, values

#: Most accelerators of a quota, and most jobs of a limit.
QUOTA_LIMIT = 100_000
NAME_PATTERN = r"[a-z0-9][a-z0-9-]{0,39}"


class ProjectRole(StrEnum):
    """Role of a member, each with the rights of those before it."""

    VIEWER = "viewer"  # sees all jobs of the project
    MEMBER = "member"  # submits jobs to it, and manages the own ones
    OPERATOR = "operator"  # manages all jobs of it
    ADMIN = "admin"  # manages its members


#: Roles that may submit jobs, and those that may change other people's.
SUBMITTING_ROLES = (ProjectRole.MEMBER, ProjectRole.OPERATOR, ProjectRole.ADMIN)
MANAGING_ROLES = (ProjectRole.OPERATOR, ProjectRole.ADMIN)


class ProjectManager(models.Manager["Project"]):
    """The projects that are not deleted."""

    def get_queryset(self) -> models.QuerySet[Project]:
        return super().get_queryset().filter(deleted_at=None)


class Project(models.Model):
    """A group of people and jobs with a share of the cluster. Jobs without one have no quota.

    Attributes:
        guaranteed: accelerators that its jobs get at once if they can use them; others borrow them.
        limit: most accelerators that its jobs may hold; None: no limit.
        user_limit: most that the jobs of one user may hold in it; None: no limit.
        live_jobs_limit: most of its jobs that have not ended; None: no limit.
        user_live_jobs_limit: most of these that one user may have; None: no limit.
        guaranteed_by_kind, limit_by_kind: `guaranteed` and `limit` of one kind, where it has them.
        is_closed: no job can be submitted to it.
        deleted_at: since then it is only the name of its ended jobs and of their use; `objects`
            leaves it out, `with_deleted` does not.
    """

    name = models.CharField(
        max_length=40, unique=True, validators=[RegexValidator(f"^{NAME_PATTERN}$")]
    )
    description = models.CharField(max_length=300, blank=True)
    guaranteed = models.PositiveIntegerField(default=0, validators=[MaxValueValidator(QUOTA_LIMIT)])
    limit = models.PositiveIntegerField(
        null=True, blank=True, validators=[MinValueValidator(1), MaxValueValidator(QUOTA_LIMIT)]
    )
    user_limit = models.PositiveIntegerField(
        null=True, blank=True, validators=[MinValueValidator(1), MaxValueValidator(QUOTA_LIMIT)]
    )
    live_jobs_limit = models.PositiveIntegerField(
        null=True, blank=True, validators=[MinValueValidator(1), MaxValueValidator(QUOTA_LIMIT)]
    )
    user_live_jobs_limit = models.PositiveIntegerField(
        null=True, blank=True, validators=[MinValueValidator(1), MaxValueValidator(QUOTA_LIMIT)]
    )
    guaranteed_by_kind = models.JSONField(default=dict, blank=True)
    limit_by_kind = models.JSONField(default=dict, blank=True)
    is_closed = models.BooleanField(default=False)
    created_at = models.DateTimeField()
    deleted_at = models.DateTimeField(null=True, blank=True, editable=False)

    objects = ProjectManager()
    with_deleted = models.Manager["Project"]()

    class Meta:
        ordering = ("name",)
        constraints = (
            models.CheckConstraint(
                name="project_guarantee_within_limit",
                condition=Q(limit=None) | Q(guaranteed__lte=F("limit")),
            ),
        )

    def __str__(self) -> str:
        return self.name


class ProjectMembership(models.Model):
    """A person's role in a project."""

    project = models.ForeignKey(Project, on_delete=models.CASCADE, related_name="memberships")
    user = models.ForeignKey(
        settings.AUTH_USER_MODEL, on_delete=models.CASCADE, related_name="memberships"
    )
    role = models.CharField(
        max_length=10, choices=choices(ProjectRole), default=ProjectRole.MEMBER.value
    )
    since = models.DateTimeField()

    class Meta:
        ordering = ("user__username",)
        constraints = (
            models.UniqueConstraint(name="membership_once", fields=("user", "project")),
            models.CheckConstraint(
                name="membership_role_known", condition=Q(role__in=values(ProjectRole))
            ),
        )

    def __str__(self) -> str:
        return f"{self.user} as {self.role} of {self.project}"


class AcceleratorPrice(models.Model):
    """Price of an hour of one accelerator of a kind, in the site's currency."""

    kind = models.CharField(max_length=40, primary_key=True)
    per_hour = models.FloatField(validators=[MinValueValidator(0.0), MaxValueValidator(1e6)])

    class Meta:
        ordering = ("kind",)
        constraints = (
            models.CheckConstraint(
                name="price_in_range", condition=Q(per_hour__gte=0.0, per_hour__lte=1e6)
            ),
        )

    def __str__(self) -> str:
        return f"{self.kind}: {self.per_hour:g}"
