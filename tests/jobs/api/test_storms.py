"""Every writing operation of the API, many at once on the same few things, beside the tasks.

No request may fail because of another one: no deadlock, no row that vanishes between two
statements, no name that two requests take at once.
"""

from __future__ import annotations

import datetime
import json
import random
import threading
from collections import Counter
from collections.abc import Callable, Sequence
from typing import Any

import pytest
from django.db import connection, connections
from django.test import Client
from django.utils import timezone

from controlplane.core.protocol.wire import ReportKind
from controlplane.core.values.lifecycle import JobStatus
from jobs import tasks
from jobs.api.addresses import query_parameters
from tests.jobs.world import PlayedNode, World
from tests.support.builders import api_token_make, job_make, submission_values, user_make

pytestmark = pytest.mark.django_db(transaction=True)

NUM_PEOPLE = 8
DEADLINE_S = 600.0  # of a deadlock, not of a slow machine
#: Marks of a long storm, which pytest would otherwise end before its own deadline.
NIGHTLY = (pytest.mark.nightly, pytest.mark.timeout(2 * DEADLINE_S))
NAMES = ("a", "b", "c")
TASKS: Sequence[Callable[[], object]] = (
    tasks.allocate_cluster, tasks.allocate_cluster, tasks.expire_nodes, tasks.expire_generations,
    tasks.expire_validations, tasks.advance_forks, tasks.advance_tuning, tasks.expire_records,
    tasks.expire_files, tasks.sum_usage_days, tasks.send_notifications, tasks.fit_models,
)  # fmt: skip


class LiveWorld(World):
    """Nodes that follow their orders by the clock of the site."""

    @property
    def now(self) -> datetime.datetime:
        return timezone.now()


class Things:
    """People, jobs and nodes that all requests are about."""

    def __init__(self) -> None:
        self.world = LiveWorld()
        self.world.hear()
        ada, bob, boss = user_make("ada"), user_make("bob"), user_make("boss", is_staff=True)
        self.tokens = [api_token_make(person) for person in (boss, boss, ada, bob)]
        self.nodes = [played.node.pk for played in self.world.nodes]
        self.jobs = [
            job_make(owner, status=status).pk
            for status in (JobStatus.PENDING, JobStatus.PENDING, JobStatus.CANCELLED)
            for owner in (ada, bob)
        ]

    def request(self, chance: random.Random) -> tuple[str, str, Any]:
        """Draw a request: method, path, body."""
        number, name = chance.randint(1, 6), chance.choice(NAMES)
        job, node = chance.choice(self.jobs), chance.choice(self.nodes)
        change = {"priority": chance.randint(1, 100), "reason": "because"}
        submission = submission_values(name=name, tags=[name], seed=number)
        some = {"jobs": chance.sample(self.jobs, 3), "reason": "because"}
        begin = timezone.now() + datetime.timedelta(hours=number)
        times = {"starts_at": begin, "ends_at": begin + datetime.timedelta(minutes=30)}
        window = {"nodes": self.nodes[: chance.randint(1, 2)], "reason": "disk", **times}
        channel = {"name": name, "kind": "webhook", "address": "https://a.example/b"}
        return chance.choice([
            ("POST", "jobs/", submission),
            ("PATCH", f"jobs/{job}/", {"tags": [name], "note": name}),
            ("POST", f"jobs/{job}/cancel/", {"reason": "because"}),
            ("POST", f"jobs/{job}/clone/", {"name": name}),
            ("DELETE", f"jobs/{job}/files/", None),
            ("POST", f"jobs/{job}/fork/", {"name": name, "checkpoint": "now"}),
            ("POST", f"jobs/{job}/pause/", {"reason": "because"}),
            ("POST", f"jobs/{job}/resume/", {"reason": "because"}),
            ("POST", f"jobs/{job}/reprioritise/", change),
            ("POST", "jobs/actions/", {"action": "tag", "tag": name, **some}),
            ("POST", "jobs/actions/", {"action": "untag", "tag": name, **some}),
            ("POST", "jobs/actions/", {"action": "reprioritise", **some, **change}),
            ("POST", "jobs/actions/preview/",
             {"action": "reprioritise", "changes": [{"job": job, "priority": 5}]}),
            ("POST", "maintenance-windows/", window),
            ("POST", f"maintenance-windows/{number}/cancel/", {}),
            ("POST", f"nodes/{node}/cordon/", {"reason": name}),
            ("POST", f"nodes/{node}/drain/", {"reason": name}),
            ("POST", f"nodes/{node}/uncordon/", {}),
            ("POST", f"nodes/{node}/unquarantine/", {}),
            ("POST", f"nodes/{node}/new-token/", None),
            ("POST", "enrolment-tokens/", None),
            ("DELETE", f"enrolment-tokens/{number}/", None),
            ("PUT", "policy/", {"policy": chance.choice(["fifo", "goodput_fair"])}),
            ("PUT", "prices/", {"per_hour": {"cpu": number}}),
            ("POST", "projects/", {"name": name}),
            ("PATCH", f"projects/{number}/", {"limit": number}),
            ("DELETE", f"projects/{number}/", None),
            ("PUT", f"projects/{number}/members/ada/", {"role": "member"}),
            ("DELETE", f"projects/{number}/members/ada/", None),
            ("POST", "replays/", {"policy": "fifo", "hours": 1}),
            ("DELETE", f"replays/{number}/", None),
            ("POST", "saved-filters/", {"name": name, "query": "tag=b"}),
            ("DELETE", f"saved-filters/{number}/", None),
            ("PUT", f"secrets/{name.upper()}/", {"value": "x" * 20}),
            ("DELETE", f"secrets/{name.upper()}/", None),
            ("POST", "sweeps/", {**submission, "sweep": {"space": {"a": [1, 2]}}}),
            ("PATCH", f"sweeps/{number}/", {"max_running": number}),
            ("POST", f"sweeps/{number}/cancel/", {"reason": "because"}),
            ("POST", f"sweeps/{number}/pause/", {"reason": "because"}),
            ("POST", f"sweeps/{number}/resume/", {"reason": "because"}),
            ("PATCH", "users/ada/", {"share_factor": number}),
            ("POST", "validations/", submission),
            ("POST", "channels/", channel),
            ("PATCH", f"channels/{number}/", {"name": name}),
            ("DELETE", f"channels/{number}/", None),
            ("POST", f"channels/{number}/test/", None),
            ("GET", "jobs/?page_size=50", None),
            ("GET", f"jobs/{job}/", None),
            ("GET", "cluster/", None),
        ])  # fmt: skip


class Storm:
    """Threads of people, nodes and tasks; `failures` has what went wrong."""

    def __init__(self, things: Things, seed: int, num_rounds: int) -> None:
        self._things = things
        self._seed = seed
        self._num_rounds = num_rounds
        self.failures: list[str] = []
        self.statuses: Counter[int] = Counter()

    def run(self) -> None:
        """Run all threads to their ends."""
        acts: list[Callable[[random.Random], None]] = [self._task, self._task]
        acts += [self._person(number) for number in range(NUM_PEOPLE)]
        acts += [self._node(played) for played in self._things.world.nodes]
        threads = [
            threading.Thread(target=self._repeat, args=(act, number))
            for number, act in enumerate(acts)
        ]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join(DEADLINE_S)
        assert not any(thread.is_alive() for thread in threads)

    def _repeat(self, act: Callable[[random.Random], None], number: int) -> None:
        chance = random.Random(f"{self._seed} {number}")
        try:
            for _ in range(self._num_rounds):
                act(chance)
        except Exception as error:
            self.failures.append(f"{act}: {error!r}")
        finally:
            connections.close_all()

    def _task(self, chance: random.Random) -> None:
        chance.choice(TASKS)()

    def _person(self, number: int) -> Callable[[random.Random], None]:
        token = self._things.tokens[number % len(self._things.tokens)]
        # Django's client takes errors of other threads for its own.
        client = Client(headers={"Authorization": f"Bearer {token}"}, raise_request_exception=False)

        def ask(chance: random.Random) -> None:
            method, path, body = self._things.request(chance)
            content = b"" if body is None else json.dumps(body, default=str).encode()
            answer = client.generic(method, f"/api/v1/{path}", content, "application/json")
            self.statuses[answer.status_code] += 1
            if answer.status_code >= 500 or answer.status_code == 429:
                self.failures.append(f"{method} {path}: {answer.status_code} {answer.content!r}")

        return ask

    def _node(self, played: PlayedNode) -> Callable[[random.Random], None]:
        world = self._things.world

        def follow(chance: random.Random) -> None:
            world.follow(played)
            for trainer in [row for row in played.trainers.values() if row.has_joined]:
                step = world.steps[trainer.job_id] = world.steps.get(trainer.job_id, 0) + 1
                played.say(
                    trainer, ReportKind.STEPS, first_step=step, last_step=step, epoch=0,
                    examples=32, seconds=0.5, loss=chance.random(), num_accelerators=1,
                )  # fmt: skip

        return follow


@pytest.mark.parametrize(
    ("seed", "num_rounds"),
    [(0, 12), *(pytest.param(seed, 80, marks=NIGHTLY) for seed in range(1, 13))],
)
def test_a_storm_of_requests(seed: int, num_rounds: int, settings: Any) -> None:
    if connection.vendor != "postgresql":
        pytest.skip("needs PostgreSQL: SQLite lets one writer in at a time")
    settings.API_RATE_LIMIT = settings.PREVIEWS_PER_MINUTE = 10**6
    query_parameters()  # as servers do before their first request
    storm = Storm(Things(), seed, num_rounds)
    storm.run()
    assert storm.failures == []
    assert {200, 201, 404} <= storm.statuses.keys()
