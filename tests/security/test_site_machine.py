"""The running site under random moves of two users, an admin, a visitor and agents, over HTTP.

After every move: no answer is a 5xx, none has another person's code, note or secret, a refusal is a
problem document and has changed nothing (tests/security/site_actors.py looks at each answer); the
site is ready, a scheduling cycle succeeds, and no accelerator is held twice.
"""

from __future__ import annotations

import json
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import pytest
from django.db import transaction
from django.db.models import Count
from django.test import Client
from hypothesis import HealthCheck, Phase, settings
from hypothesis import strategies as st
from hypothesis.stateful import invariant, rule, run_state_machine_as_test

from controlplane.core.policies import POLICIES
from controlplane.core.protocol.wire import ReportKind, encode
from jobs import tasks
from jobs.api import health
from jobs.models import Accelerator, Allocation, ApiToken, ClusterSetting, Job, Node, Replay
from tests.jobs.world import PlayedTrainer
from tests.security.hostile_reports import FACTS, SOUND
from tests.security.site_actors import PASSWORD, Actor
from tests.security.site_machine import API, SiteMachine, odd, people, picks, submission_of, users
from tests.support.builders import enrol_request

names = st.sampled_from(["A", "B", "lower", "X" * 70, "A-B", "%00", "é"])
TASKS = (
    tasks.expire_nodes, tasks.expire_generations, tasks.fit_models, tasks.join_predictions,
    tasks.expire_validations, tasks.expire_records, tasks.expire_files, tasks.file_logs,
)  # fmt: skip
PAGES = ("/", "/jobs/", "/jobs/?q=CODE-OF", "/nodes/", "/submit/", "/account/", "/queue/",
         "/audit/", "/jobs/{job}/", "/jobs/{job}/figures/", "/compare/?job={job}",
         "/tokens/")  # fmt: skip
READS = (
    "jobs/", "jobs/?q={odd}", "jobs/?owner=ada", "jobs/?order={odd}", "jobs/?p={odd}",
    "jobs/{job}/", "jobs/{job}/events/", "jobs/{job}/generations/", "jobs/{job}/allocations/",
    "jobs/{job}/metrics/", "jobs/{job}/logs/", "jobs/{job}/code/", "jobs/{job}/files/",
    "jobs/{job}/files/model.keras/", "jobs/{job}/files/{odd}/",
    "jobs/{job}/examples/7/image/", "jobs/compare/?job={job}&job=1",
    "validations/{job}/", "nodes/", "nodes/{node}/", "cluster/", "policy/", "secrets/", "account/",
    "users/", "users/{odd}/", "audit/", "audit/?actor={odd}", "replays/", "replays/{job}/",
    "templates/{odd}/", "tokens/", "enrolment-tokens/", "jobs/?tag=t&fields=note,{odd}",
    "jobs/{job}/?wait=0&since_version={odd}", "jobs/{job}/metrics/?limit={odd}",
    "cluster/?last_s={odd}",
)  # fmt: skip
FIELDS = ("global_batch_size", "num_virtual_nodes", "min_accelerators", "max_accelerators", "seed",
          "priority", "accepted_kinds", "settings", "stop", "tags", "note", "name", "code", "task",
          "secrets", "selection", "batch_size_min", "reduction", "source_job")  # fmt: skip


class RunningSite(SiteMachine):
    """The moves, and what holds after each."""

    @rule(name=users, pick=picks, most=st.integers(1, 4))
    def submit(self, name: str, pick: int, most: int) -> None:
        self.submit_sound(name, max_accelerators=most, priority=1 + pick % 100)

    @rule(
        name=users,
        field=st.sampled_from(FIELDS),
        value=odd,
        path=st.sampled_from(["jobs/", "jobs/?dry_run=1", "validations/"]),
    )
    def submit_odd(self, name: str, field: str, value: Any, path: str) -> None:
        body = submission_of(name, **{field: value})
        self.site.actors[name].ask("POST", f"{API}/{path}", body)

    @rule(
        name=people,
        pick=picks,
        other=picks,
        value=odd,
        what=st.sampled_from(
            ["cancel", "pause", "resume", "pause", "resume", "reprioritise", "clone"]
        ),
    )
    def act(self, name: str, pick: int, other: int, value: Any, what: str) -> None:
        body: dict[str, Any] = {"reason": "because"}
        if what == "reprioritise":
            body["priority"] = value if other % 2 else 1 + other % 90
        if what == "clone":
            body = {FIELDS[other % len(FIELDS)]: value} if other % 2 else {}
        elif other % 7 == 0:
            body["reason"] = value
        self.actor(name, other).ask("POST", f"{API}/jobs/{self.job(pick)}/{what}/", body)

    @rule(
        name=people,
        pick=picks,
        value=odd,
        field=st.sampled_from(["tags", "note"]),
        match=st.sampled_from(["", "*", '"1-1"', '"x"', 'W/"2"', '"9999999999999999999999-1"']),
    )
    def describe(self, name: str, pick: int, value: Any, field: str, match: str) -> None:
        body = {field: ["t", "u"] if field == "tags" and pick % 2 else value}
        headers = {"If-Match": match} if match else {}
        path = f"{API}/jobs/{self.job(pick)}/"
        self.actor(name, pick).ask("PATCH", path, body, **headers)

    @rule(
        name=people,
        first=picks,
        second=picks,
        priority=st.integers(-1, 1001),
        value=odd,
        action=st.sampled_from(["cancel", "reprioritise", "reprioritise", "tag", "untag"]),
    )
    def bulk(
        self, name: str, first: int, second: int, priority: int, value: Any, action: str
    ) -> None:
        own = {"reprioritise": {"priority": priority}, "tag": {"tag": "t"}, "untag": {"tag": "t"}}
        body = {"action": action, "jobs": [self.job(first), self.job(second)],
                "reason": "because", **own.get(action, {})}  # fmt: skip
        if second % 5 == 0:
            body[["action", "jobs", "tag", "expected_priority", "reason"][first % 5]] = value
        before = dict(Job.objects.values_list("pk", "revision"))
        actor = self.actor(name, first)
        answer = actor.ask("POST", f"{API}/jobs/actions/", body)
        if answer.status_code == 200:
            self.outcomes_check(json.loads(answer.all_text), before)
            actor.undo = json.loads(answer.all_text)["undo"]

    def outcomes_check(self, answer: dict[str, Any], before: dict[int, int]) -> None:
        """Check that what is called changed has changed, and nothing else."""
        after = dict(Job.objects.values_list("pk", "revision"))
        changed = {row["job"] for row in answer["results"] if row["changed"]}
        assert {pk for pk in after if after[pk] != before[pk]} == changed

    @rule(name=people, pick=picks, by=people)
    def undo(self, name: str, pick: int, by: str) -> None:
        actor = self.actor(name, pick)
        for body in actor.undo:
            self.actor(by, pick).ask("POST", f"{API}/jobs/actions/", body)

    @rule(
        name=people,
        pick=picks,
        secret=names,
        value=odd,
        method=st.sampled_from(["PUT", "PUT", "DELETE", "GET"]),
    )
    def secrets(self, name: str, pick: int, secret: str, value: Any, method: str) -> None:
        sound = f"SECRET-OF-{name}-{pick}"
        body = {"value": sound if pick % 2 else value} if method == "PUT" else None
        self.actor(name, pick).ask(method, f"{API}/secrets/{secret}/", body)

    @rule(
        name=people,
        pick=picks,
        value=odd,
        field=st.sampled_from(["", "", "name", "scopes", "lifetime_days", "password"]),
    )
    def token_make(self, name: str, pick: int, value: Any, field: str) -> None:
        scopes = [["jobs:read"], ["jobs:read", "jobs:write"], ["admin"]][pick % 3]
        body = {"name": "t", "password": PASSWORD, "scopes": scopes}
        if field:
            body[field] = value
        maker = self.site.sessions[name] if pick % 4 else self.site.actors[name]
        answer = maker.ask("POST", f"{API}/tokens/", body)
        if answer.status_code == 201:
            text = json.loads(answer.all_text)["token"]
            client = Client(headers={"Authorization": f"Bearer {text}"})
            has_reading = "jobs:read" in scopes
            reads = maker.reads if has_reading and "admin" in scopes else frozenset({name})
            self.tokens.append(Actor(f"{name} by new token", client, maker.user, reads))

    @rule(name=people, pick=picks)
    def token_revoke(self, name: str, pick: int) -> None:
        numbers = [*ApiToken.objects.order_by("id").values_list("id", flat=True), 10**20]
        path = f"{API}/tokens/{numbers[pick % len(numbers)]}/"
        mine = self.site.people[name]
        if pick % len(numbers) > 2:  # the first ones are those by which all moves are made
            assert mine is not None
            self.site.sessions[name].ask("DELETE", path)

    @rule(
        name=st.sampled_from(["ada", "bob", "root", "visitor"]),
        pick=picks,
        value=odd,
        path=st.sampled_from(READS),
    )
    def read(self, name: str, pick: int, value: Any, path: str) -> None:
        visitor = name == "visitor"
        actor = self.site.visitor if visitor else self.actor(name, pick)
        actor.ask("GET", f"{API}/{self.filled(path, pick, value)}")

    def filled(self, path: str, pick: int, value: Any) -> str:
        text = str(value)[:300].encode("utf-8", "replace").hex() if pick % 3 == 0 else "1"
        text = "".join(f"%{text[i : i + 2]}" for i in range(0, len(text) - 1, 2)) or "-1"
        node = self.site.nodes[pick % len(self.site.nodes)].node.pk
        return path.format(job=self.job(pick), node=node, odd=text)

    @rule(name=people, pick=picks, path=st.sampled_from(PAGES))
    def page(self, name: str, pick: int, path: str) -> None:
        self.site.sessions[name].ask("GET", self.filled(path, pick, ""))

    # --- admins, and users who try the same ---------------------------------------------------

    @rule(
        name=people,
        pick=picks,
        what=st.sampled_from(
            ["cordon", "drain", "uncordon", "unquarantine", "accept-shape", "new-token", ""]
        ),
    )
    def node_change(self, name: str, pick: int, what: str) -> None:
        node = self.node(pick).node
        if what == "" and len(self.site.nodes) < 3:
            return  # the last nodes stay
        shape = Node.objects.get(pk=node.pk).proposed_shape or {}
        body = {
            "reason": "because",
            **({"digest": shape.get("digest", "")} if "shape" in what else {}),
        }
        path = f"{API}/nodes/{node.pk}/{what}/".replace("//", "/")
        answer = self.actor(name, pick).ask("POST" if what else "DELETE", path, body)
        if what == "new-token" and answer.status_code == 201:
            self.enrolments.append(json.loads(answer.all_text)["token"])
        if answer.status_code == 204:
            self.site.nodes = [row for row in self.site.nodes if row.node.pk != node.pk]

    @rule(name=people, pick=picks, policy=st.sampled_from([*POLICIES]), value=odd)
    def policy(self, name: str, pick: int, policy: str, value: Any) -> None:
        body = {"policy": policy, "reason": "because"}
        if pick % 4 == 0:
            body[["policy", "version", "reason"][pick % 3]] = value
        self.actor(name, pick).ask("PUT", f"{API}/policy/", body)

    @rule(
        name=people,
        pick=picks,
        whose=st.sampled_from(["ada", "bob", "root", "nobody", "%00"]),
        field=st.sampled_from(
            [
                "priority_ceiling",
                "share_factor",
                "live_jobs_limit",
                "storage_limit_bytes",
                "is_active",
                "is_staff",
            ]
        ),
        value=odd,
        number=st.integers(0, 5),
    )
    def limit(self, name: str, pick: int, whose: str, field: str, value: Any, number: int) -> None:
        sound = bool(number) if field == "is_active" else number
        body = {field: value if pick % 3 == 0 else sound}
        self.actor(name, pick).ask("PATCH", f"{API}/users/{whose}/", body)

    @rule(name=people, pick=picks, value=odd, policy=st.sampled_from([*POLICIES]))
    def replay(self, name: str, pick: int, value: Any, policy: str) -> None:
        body = {"policy": policy, "hours": 1}
        if pick % 2:
            body[["policy", "hours", "accelerators"][pick % 3]] = value
        self.actor(name, pick).ask("POST", f"{API}/replays/", body)
        number = Replay.objects.order_by("-id").values_list("id", flat=True).first()
        if pick % 3 == 0 and number:
            self.actor(name, pick).ask("DELETE", f"{API}/replays/{number}/")

    # --- agents -------------------------------------------------------------------------------

    @rule(
        name=people,
        pick=picks,
        value=odd,
        field=st.sampled_from(
            ["", "", "name", "host", "boot_id", "accelerators", "first_port", "isolation", "token"]
        ),
    )
    def enrol(self, name: str, pick: int, value: Any, field: str) -> None:
        answer = self.actor(name, pick).ask("POST", f"{API}/enrolment-tokens/")
        if answer.status_code == 201:
            self.enrolments.append(json.loads(answer.all_text)["token"])
        token = self.enrolments[-1] if self.enrolments else "vfe_invented"
        known = self.site.nodes[pick % len(self.site.nodes)].node.name
        request = encode(enrol_request(token, known if pick % 3 else f"new{pick}", 1 + pick % 3))
        if field:
            request[field] = value
        reply = self.site.visitor.ask("POST", f"{API}/agent/enrol/", request)
        if reply.status_code == 201 and len(self.site.nodes) < 5:
            said = json.loads(reply.all_text)
            node = Node.objects.get(id=said["node_id"])
            self.site.nodes = [row for row in self.site.nodes if row.node.pk != node.pk]
            self.site.node_add(node, said["agent_token"])

    @rule(pick=picks, boots=st.booleans())
    def follow(self, pick: int, boots: bool) -> None:
        self.site.follow(self.node(pick), boots=boots)

    @rule(pick=picks, num=st.integers(0, 4), boot=st.sampled_from(["", "new", "\0", "x" * 300]))
    def hello(self, pick: int, num: int, boot: str) -> None:
        played = self.node(pick)
        boot_id = f"{boot}-{self.site.now_s:.1f}" if boot else played.node.boot_id
        if boot == "new":
            played.trainers.clear()
        self.site.hello(played, boot_id, 2 if pick % 2 else num)

    @rule(pick=picks, other=picks, value=odd, kind=st.sampled_from([*ReportKind]))
    def report(self, pick: int, other: int, value: Any, kind: ReportKind) -> None:
        """Let a trainer say anything, about its own job or another one."""
        played, trainer = self.trainer(pick)
        sound = dict(SOUND[kind])
        if other % 3 and sound:
            sound[[*sound][other % len(sound)]] = value
        if other % 5 == 0:
            trainer = PlayedTrainer(self.job(other) % 2**31, other % 3, 0, trainer.generation)
        played.say(trainer, kind, **sound)
        self.site.send(played, encode(played.batch()))

    @rule(
        pick=picks,
        other=picks,
        value=odd,
        field=st.sampled_from(
            ["boot_id", "sent_at", "trainers", "reports", "logs", "validations", "wanted_version"]
        ),
    )
    def batch(self, pick: int, other: int, value: Any, field: str) -> None:
        played = self.node(pick)
        entry = {
            "reports": {"job_id": self.job(other), "slot": value, "generation": 1, "sequence": 0,
                        "at": 0.0, "kind": "steps", "data": value},
            "logs": {"job_id": self.job(other), "slot": 0, "offset": other, "text": value},
            "trainers": {"job_id": self.job(other), "slot": 0, "generation": 1,
                         "accelerator_index": value, "pid": 1},
            "validations": {"validation_id": self.job(other), "attempt": 1, "ok": bool(other % 2),
                            "facts": {**FACTS, [*FACTS][other % len(FACTS)]: value}},
        }.get(field)  # fmt: skip
        body = encode(played.batch())
        self.site.send(played, {**body, field: [entry] if entry and other % 3 else value})

    @rule(pick=picks, other=picks, what=st.sampled_from(["code", "checkpoint", "source"]))
    def fetch(self, pick: int, other: int, what: str) -> None:
        """Let an agent ask for files: it gets those of jobs on its node alone."""
        played, job = self.node(pick), self.job(other)
        answer = self.agent(played).ask("GET", f"{API}/agent/jobs/{job}/{what}/")
        if answer.status_code == 200:
            held = Allocation.objects.filter(released_at=None, accelerator__node=played.node)
            assert held.filter(job_id=job).exists()

    @rule(
        pick=picks,
        slot=st.integers(-1, 3),
        generation=st.integers(0, 3),
        value=odd,
        name=st.sampled_from(
            ["model.keras", "checkpoint.npz", "x.npz", "..%2Fx", "model.keras%00"]
        ),
    )
    def upload(self, pick: int, slot: int, generation: int, value: Any, name: str) -> None:
        played, trainer = self.trainer(pick)
        query = f"slot={slot if pick % 3 else trainer.slot}&generation={generation}"
        path = f"{API}/agent/jobs/{trainer.job_id}/files/{name}/?{query}"
        body = str(value)[:100].encode("utf-8", "replace")
        self.agent(played).ask("PUT", path, body, **{"X-Sha256": "0" * 64})

    # --- time, and the tasks that it brings ---------------------------------------------------

    @rule()
    def cycle(self) -> None:
        self.site.now_s += 0.1
        tasks.allocate_cluster()

    @rule(seconds=st.sampled_from([1.0, 30.0, 100.0, 400.0]), task=st.sampled_from(TASKS))
    def time_passes(self, seconds: float, task: Any) -> None:
        self.site.now_s += seconds
        task()

    # --- what holds after every move ----------------------------------------------------------

    @invariant()
    def the_site_is_ready(self) -> None:
        health._last = None
        answer = Client().get("/readyz")
        assert (answer.status_code, answer.json()["status"]) == (200, "ok"), answer.json()

    @invariant()
    def a_cycle_succeeds(self) -> None:
        if not hasattr(self, "site"):
            return
        with rolled_back():
            tasks.allocate_cluster()
            assert not ClusterSetting.objects.exclude(cycle_failed_at=None).exists()
            self.allocations_fit()

    @invariant()
    def allocations_fit(self) -> None:
        held = Allocation.objects.filter(released_at=None)
        assert not held.values("accelerator").annotate(n=Count("id")).filter(n__gt=1).exists()
        assert held.count() <= Accelerator.objects.count()
        new = held.filter(stop_requested_at=None)
        assert not new.exclude(accelerator__node__removed_at=None).exists()


@contextmanager
def rolled_back() -> Iterator[None]:
    with transaction.atomic():
        yield
        transaction.set_rollback(True)


def run(num_examples: int, num_steps: int) -> None:
    run_state_machine_as_test(
        RunningSite,
        settings=settings(
            max_examples=num_examples,
            stateful_step_count=num_steps,
            deadline=None,
            # Shrinking a failure takes many times as long as finding it.
            phases=[Phase.explicit, Phase.reuse, Phase.generate],
            suppress_health_check=[*HealthCheck],
        ),
    )


@pytest.mark.django_db
@pytest.mark.nightly
def test_whatever_they_do() -> None:
    run(4, 25)


@pytest.mark.nightly
@pytest.mark.timeout(7200)
@pytest.mark.django_db
def test_whatever_they_do_for_long() -> None:
    run(300, 60)
