"""Projects: their quotas for policies, and what they hold now."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from django.db.models import Count, QuerySet

from controlplane.core.values.lifecycle import JobStatus
from controlplane.core.values.projects import ProjectQuota
from jobs.models import Allocation, Job, Project, ProjectMembership
from jobs.models.jobs import LIVE_JOB_STATUSES
from jobs.selectors.access import Person, projects_visible_to


@dataclass(frozen=True, slots=True)
class ProjectState:
    """A project as it is now.

    Attributes:
        held: accelerators that its jobs hold.
        borrowed: the part of `held` beyond its guarantee; given back when others need theirs.
        live_jobs, waiting_jobs: jobs that have not ended, and those of them without accelerators.
        role: of the person who asks; empty: no member.
    """

    project: Project
    held: int
    live_jobs: int
    waiting_jobs: int
    num_members: int
    role: str

    @property
    def borrowed(self) -> int:
        """Accelerators that its jobs hold beyond its guarantee."""
        return max(self.held - self.project.guaranteed, 0)


def project_quotas() -> dict[int, ProjectQuota]:
    """Return the quotas of all projects that have a guarantee or a limit."""
    rows = Project.objects.exclude(guaranteed=0, limit=None, user_limit=None)
    return {
        row.pk: ProjectQuota(row.guaranteed, row.limit, row.user_limit) for row in rows.order_by()
    }


def project_states(person: Person, project_id: int | None = None) -> list[ProjectState]:
    """Return the projects of a person, or one of them, as they are now; admins see all."""
    projects = projects_visible_to(person)
    if project_id is not None:
        projects = projects.filter(pk=project_id)
    rows = list(projects.order_by("name"))
    ids = [row.pk for row in rows]
    held = _counts(
        Allocation.objects.filter(released_at=None, job__project__in=ids), "job__project"
    )
    live = Job.objects.filter(project__in=ids, status__in=LIVE_JOB_STATUSES, trial_of=None)
    waiting = live.filter(status=JobStatus.PENDING)
    members = _counts(ProjectMembership.objects.filter(project__in=ids), "project")
    mine = ProjectMembership.objects.filter(project__in=ids, user=person.pk).order_by()
    roles = dict(mine.values_list("project_id", "role"))
    num_live, num_waiting = _counts(live, "project"), _counts(waiting, "project")
    return [
        ProjectState(
            row,
            held.get(row.pk, 0),
            num_live.get(row.pk, 0),
            num_waiting.get(row.pk, 0),
            members.get(row.pk, 0),
            roles.get(row.pk, ""),
        )
        for row in rows
    ]


def guaranteed_total() -> int:
    """Return the accelerators guaranteed to all projects together."""
    return sum(Project.objects.values_list("guaranteed", flat=True))


def _counts(rows: QuerySet[Any], column: str) -> dict[int, int]:
    return dict(rows.order_by().values_list(column).annotate(number=Count("pk")))
