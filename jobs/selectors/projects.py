"""Projects: their quotas for policies, and what they hold now."""

from __future__ import annotations

from collections import defaultdict
from dataclasses import dataclass
from typing import Any

from django.db.models import Count, QuerySet

from controlplane.core.values.lifecycle import JobStatus
from controlplane.core.values.projects import ProjectQuota
from jobs.exceptions import NotFoundError
from jobs.models import Accelerator, Allocation, Job, Project, ProjectMembership
from jobs.models.jobs import LIVE_JOB_STATUSES
from jobs.selectors.access import Person, projects_visible_to


@dataclass(frozen=True, slots=True)
class ProjectState:
    """A project as it is now.

    Attributes:
        held_by_kind: accelerators that its jobs hold.
        live_jobs, waiting_jobs: jobs that have not ended, and those of them without accelerators.
        role: of the person who asks; empty: no member.
    """

    project: Project
    held_by_kind: dict[str, int]
    live_jobs: int
    waiting_jobs: int
    num_members: int
    role: str

    @property
    def held(self) -> int:
        """Accelerators of all kinds that its jobs hold."""
        return sum(self.held_by_kind.values())

    @property
    def borrowed_by_kind(self) -> dict[str, int]:
        """Accelerators that its jobs hold beyond its guarantees; given back when others need them.

        What the guarantee of all kinds is more than that of the kinds held covers the kinds of
        which most are held beyond their own first.
        """
        own = self.project.guaranteed_by_kind
        beyond = {kind: max(n - own.get(kind, 0), 0) for kind, n in self.held_by_kind.items()}
        covered = max(self.project.guaranteed - self.held + sum(beyond.values()), 0)
        borrowed = {}
        for kind, count in sorted(beyond.items(), key=lambda item: (-item[1], item[0])):
            if count > covered:
                borrowed[kind] = count - covered
            covered = max(covered - count, 0)
        return borrowed

    @property
    def borrowed(self) -> int:
        """Accelerators of all kinds that its jobs hold beyond its guarantees."""
        return sum(self.borrowed_by_kind.values())

    @property
    def kinds(self) -> list[tuple[str, int, int, int | None, int]]:
        """Kind, held, guaranteed, limit and borrowed, of kinds held or with a quota."""
        own, limits = self.project.guaranteed_by_kind, self.project.limit_by_kind
        borrowed, held = self.borrowed_by_kind, self.held_by_kind
        return [
            (kind, held.get(kind, 0), own.get(kind, 0), limits.get(kind), borrowed.get(kind, 0))
            for kind in sorted({*held, *own, *limits})
        ]


def project_quotas() -> dict[int, ProjectQuota]:
    """Return the quotas of all projects that have a guarantee or a limit."""
    no_kinds: dict[str, object] = {"guaranteed_by_kind": {}, "limit_by_kind": {}}
    rows = Project.objects.exclude(guaranteed=0, limit=None, user_limit=None, **no_kinds)
    return {
        row.pk: ProjectQuota(
            row.guaranteed,
            row.limit,
            row.user_limit,
            guaranteed_by_kind=row.guaranteed_by_kind,
            limit_by_kind=row.limit_by_kind,
        )
        for row in rows.order_by()
    }


def project_states(person: Person, project_id: int | None = None) -> list[ProjectState]:
    """Return the projects of a person, or one of them, as they are now; admins see all."""
    projects = projects_visible_to(person)
    if project_id is not None:
        projects = projects.filter(pk=project_id)
    rows = list(projects.order_by("name"))
    ids = [row.pk for row in rows]
    held: dict[int, dict[str, int]] = defaultdict(dict)
    allocations = Allocation.objects.filter(released_at=None, job__project__in=ids).order_by()
    by_kind = allocations.values_list("job__project", "accelerator__kind")
    for number, kind, count in by_kind.annotate(number=Count("pk")).order_by("accelerator__kind"):
        held[number][kind] = count
    live = Job.objects.filter(project__in=ids, status__in=LIVE_JOB_STATUSES, trial_of=None)
    waiting = live.filter(status=JobStatus.PENDING)
    members = _counts(ProjectMembership.objects.filter(project__in=ids), "project")
    mine = ProjectMembership.objects.filter(project__in=ids, user=person.pk).order_by()
    roles = dict(mine.values_list("project_id", "role"))
    num_live, num_waiting = _counts(live, "project"), _counts(waiting, "project")
    return [
        ProjectState(
            row,
            held.get(row.pk, {}),
            num_live.get(row.pk, 0),
            num_waiting.get(row.pk, 0),
            members.get(row.pk, 0),
            roles.get(row.pk, ""),
        )
        for row in rows
    ]


def project_state(person: Person, project_id: int) -> ProjectState:
    """Return a project as it is now.

    Raises:
        NotFoundError: no project has this number, or the person is no member.
    """
    if found := project_states(person, project_id):
        return found[0]
    raise NotFoundError("There is no such project, or you are no member.")


def accelerators_by_kind() -> dict[str, int]:
    """Count the accelerators of each kind on enrolled nodes, whether or not they take work now."""
    rows = Accelerator.objects.filter(is_present=True, node__removed_at=None).order_by("kind")
    return dict(rows.values_list("kind").annotate(number=Count("pk")))


def guaranteed_total() -> int:
    """Return the accelerators guaranteed to all projects together."""
    rows = Project.objects.values_list("guaranteed", "guaranteed_by_kind")
    return sum(max(count, sum(by_kind.values())) for count, by_kind in rows)


def _counts(rows: QuerySet[Any], column: str) -> dict[int, int]:
    return dict(rows.order_by().values_list(column).annotate(number=Count("pk")))
