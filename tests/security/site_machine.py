"""A site for random moves in a transaction, and a choice of what a move is about."""

from __future__ import annotations

from typing import Any
from unittest import mock

from django.db import transaction
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize

from jobs.models import Job
from tests.jobs.world import PlayedNode, PlayedTrainer
from tests.security.hostile_values import HOSTILE
from tests.security.site_actors import Actor, AgentActor, Site
from tests.support.builders import at, submission_values

API = "/api/v1"
picks = st.integers(0, 1000)
people = st.sampled_from(["ada", "bob", "root"])
users = st.sampled_from(["ada", "bob"])
#: Values for any field. Numbers of thousands of digits are among them, texts without a meaning too.
odd = st.sampled_from([*HOSTILE, {}, [], 1.5, "1", "ada", "../x", "a\nb"]) | st.text(max_size=5)


def submission_of(actor: str, /, **other: Any) -> dict[str, Any]:
    """Give a submission with the words of an actor."""
    code = f"# CODE-OF-{actor}\ndef build(settings): ...\n"
    return submission_values(**{"code": code, "note": f"NOTE-OF-{actor}", **other})


class SiteMachine(RuleBasedStateMachine):
    """One site in a transaction that is rolled back at the end."""

    site: Site

    def __init__(self) -> None:
        super().__init__()
        self.clock = mock.patch("django.utils.timezone.now", self.now)
        self.clock.start()
        self.undone = transaction.atomic()
        self.undone.__enter__()

    def now(self) -> Any:
        return at(self.site.now_s if hasattr(self, "site") else 0)

    def teardown(self) -> None:
        transaction.set_rollback(True)
        self.undone.__exit__(None, None, None)
        self.clock.stop()

    @initialize()
    def begin(self) -> None:
        self.site = site = Site(2)
        self.tokens: list[Actor] = []
        self.enrolments: list[str] = []
        for name in ("ada", "bob"):
            body = {"value": f"SECRET-OF-{name}"}
            assert site.actors[name].ask("PUT", f"{API}/secrets/A/", body).status_code == 201
            assert self.submit_sound(name).status_code == 201

    def actor(self, name: str, pick: int) -> Actor:
        """Choose a way of a person to come: by token, by session, by a token made meanwhile."""
        own = [actor for actor in self.tokens if actor.user == self.site.people[name]]
        ways = [self.site.actors[name], self.site.sessions[name], self.site.actors[name], *own]
        return ways[pick % len(ways)]

    def job(self, pick: int) -> int:
        """Choose a job of anybody, sometimes none that exists."""
        numbers = [*Job.objects.order_by("id").values_list("id", flat=True)]
        numbers = [*numbers * 4, 0, numbers[-1] + 1, 2**63, 10**30]
        return numbers[pick % len(numbers)]

    def node(self, pick: int) -> PlayedNode:
        self.site.now_s += 0.1
        return self.site.nodes[pick % len(self.site.nodes)]

    def agent(self, played: PlayedNode) -> AgentActor:
        return self.site.agents[played.node.pk]

    def trainer(self, pick: int) -> tuple[PlayedNode, PlayedTrainer]:
        """Choose a trainer; one that never was if none is there."""
        rows = [(node, trainer) for node in self.site.nodes for trainer in node.trainers.values()]
        invented = (self.node(pick), PlayedTrainer(self.job(pick) % 2**31, 0, 0))
        return rows[pick % len(rows)] if rows else invented

    def submit_sound(self, name: str, **other: Any) -> Any:
        body = submission_of(name, **{"max_accelerators": 2, "secrets": ["A"], **other})
        return self.site.actors[name].ask("POST", f"{API}/jobs/", body)
