"""Actors of one site, and what must hold of every answer that they get.

Each actor has things of its own with words that no other one may read: `CODE-OF-x` in code,
`NOTE-OF-x` in notes, `SECRET-OF-x` in the values of secrets.
"""

from __future__ import annotations

import hashlib
import json
from dataclasses import dataclass, field
from typing import Any

from django.apps import apps
from django.contrib.auth.models import User
from django.core.serializers.json import DjangoJSONEncoder
from django.test import Client

from controlplane.core.protocol.node_messages import BatchReply, ValidationReport, WantedState
from controlplane.core.protocol.wire import ReportKind, decode, encode
from jobs.models import Job, Node, Validation
from tests.jobs.world import PlayedNode, World
from tests.security.hostile_reports import FACTS
from tests.support.builders import (
    accelerators,
    agent_client,
    api_token_make,
    logged_in,
    node_make,
    user_make,
)
from tests.support.messages import hello_request

WORDS = ("CODE-OF", "NOTE-OF", "SECRET-OF")
PASSWORD = "of-these-tests"
#: Columns that even a refused request may write: it has been heard of.
_NOTED = {"last_used_at", "last_seen_at", "last_login"}
#: Tables of what was asked and refused.
_LOGS = {"auditentry"}


def state_digest() -> str:
    """Return a digest of everything that the site has stored, besides what it notes of callers."""
    digest = hashlib.sha256()
    models = [*apps.get_app_config("jobs").get_models(), User]
    for model in models:
        name = model._meta.model_name
        if name in _LOGS:
            continue
        columns = [column.attname for column in model._meta.concrete_fields]
        kept = [column for column in columns if column not in _NOTED]
        rows = list(model._default_manager.order_by("pk").values_list(*kept))
        digest.update(json.dumps([name, rows], cls=DjangoJSONEncoder, default=repr).encode())
    return digest.hexdigest()


@dataclass
class Actor:
    """Somebody with a client, and the words that the actor may read.

    Attributes:
        reads: actors whose code and notes an answer may have.
    """

    name: str
    client: Client
    user: User | None = None
    reads: frozenset[str] = frozenset()
    undo: list[dict[str, Any]] = field(default_factory=list)

    def ask(self, method: str, path: str, body: Any = None, **headers: str) -> Any:
        """Send a request; check that the answer is none of those that must never come.

        The answer has its text, of a file as well, as `all_text`.

        Raises:
            AssertionError: a 5xx, a foreign word, no problem document, or a refusal with effect.
        """
        before = state_digest()
        data = body if isinstance(body, bytes) else b""
        if body is not None and not isinstance(body, bytes):
            data = json.dumps(body).encode()
        answer = self.client.generic(
            method, path, data, content_type="application/json", headers=headers
        )
        content = b"".join(answer.streaming_content) if answer.streaming else answer.content
        answer.all_text = content.decode(errors="replace")
        what = f"{self.name}: {method} {path} -> {answer.status_code}: {answer.all_text[:300]}"
        assert answer.status_code < 500, what
        self._words_check(answer.all_text, what)
        if answer.status_code >= 400:
            is_page = not path.startswith("/api/")
            kind = answer.headers["Content-Type"]
            assert is_page or kind == "application/problem+json", f"{what} ({kind})"
            is_told = path.startswith("/api/v1/agent/hello/")  # the new shape waits for an admin
            assert is_told or state_digest() == before, (
                f"refused, and yet something changed: {what}"
            )
        return answer

    def _words_check(self, text: str, what: str) -> None:
        for word in WORDS:
            for owner in ("ada", "bob"):
                is_readable = owner in self.reads and word != "SECRET-OF"
                assert is_readable or f"{word}-{owner}" not in text, f"{word}-{owner} in {what}"


class AgentActor(Actor):
    """An agent; it gets the code and the secrets of the jobs on its node, and no other."""

    def _words_check(self, text: str, what: str) -> None:
        """Look for notes, which are for people; `Site.wanted` looks at code and secrets."""
        assert "NOTE-OF" not in text, what


class Site(World):
    """A site with two users, an admin, a visitor and agents, all of them over HTTP.

    Its `now` has to be what django.utils.timezone says.
    """

    def __init__(self, num_nodes: int) -> None:
        super().__init__(num_nodes=0)
        self.people = {name: user_make(name) for name in ("ada", "bob")}
        self.people["root"] = user_make("root", is_staff=True)
        for user in self.people.values():
            user.set_password(PASSWORD)
            user.save()
        self.actors = {name: self._by_token(user) for name, user in self.people.items()}
        self.sessions = {name: self._by_session(user) for name, user in self.people.items()}
        self.visitor = Actor("visitor", Client())
        self.agents: dict[int, AgentActor] = {}
        for number in range(num_nodes):
            self.node_add(*node_make(f"node{number}", 2, now=self.now))

    def _reads(self, user: User) -> frozenset[str]:
        return frozenset({"ada", "bob"} if user.is_staff else {user.username})

    def _by_token(self, user: User) -> Actor:
        client = Client(headers={"Authorization": f"Bearer {api_token_make(user)}"})
        return Actor(user.username, client, user, self._reads(user))

    def _by_session(self, user: User) -> Actor:
        client = logged_in(user)
        return Actor(f"{user.username} by session", client, user, self._reads(user))

    def node_add(self, node: Node, token: str) -> None:
        """Add a node that a test plays."""
        self.nodes.append(PlayedNode(node))
        client = agent_client(token)
        self.agents[node.pk] = AgentActor(f"agent of {node.name}", client)

    def wanted(self, played: PlayedNode) -> WantedState | None:
        """Fetch a node's orders; None if the agent is refused."""
        answer = self.agents[played.node.pk].ask("GET", "/api/v1/agent/wanted/?wait=0")
        if answer.status_code != 200:
            return None
        state: WantedState = decode(WantedState, json.loads(answer.all_text))
        for orders in (*state.trainers, *state.validations):
            # An admin may clone somebody's job, settings and all, but not the secrets.
            owner, text = self._owner_of(orders), json.dumps(encode(orders))
            words = ("SECRET-OF",) if owner == "root" else WORDS
            foreign = {"ada", "bob"} - {owner}
            assert not [name for name in foreign for word in words if f"{word}-{name}" in text]
        return state

    def _owner_of(self, orders: Any) -> str:
        if hasattr(orders, "validation_id"):
            return Validation.objects.get(id=orders.validation_id).owner.username
        return Job.objects.get(id=orders.spec.job_id).owner.username

    def follow(self, played: PlayedNode, *, boots: bool = True) -> None:
        """Let one node do what it is told, and report it."""
        state = self.wanted(played)
        if state is None:
            return
        wanted = {(row.spec.job_id, row.slot): row for row in state.trainers}
        for key in [key for key in played.trainers if key not in wanted]:
            played.say(played.trainers.pop(key), ReportKind.EXITED, exit_code=-15)
        for key, orders in wanted.items():
            self.trainer_follow(played, key, orders, boots=boots)
        batch = encode(played.batch(state.version))
        validations = [
            ValidationReport(
                validation_id=row.validation_id, attempt=row.attempt, ok=True, facts=FACTS
            )
            for row in state.validations
        ]
        self.send(played, {**batch, "validations": [encode(row) for row in validations]})

    def send(self, played: PlayedNode, batch: dict[str, Any]) -> Any:
        """Send a batch of reports; return the answer."""
        agent = self.agents[played.node.pk]
        answer = agent.ask("POST", "/api/v1/agent/reports/", batch)
        if answer.status_code == 200:
            played.stale = decode(BatchReply, json.loads(answer.all_text)).stale
        return answer

    def hello(self, played: PlayedNode, boot_id: str, num_accelerators: int) -> Any:
        """Let an agent start anew; return the answer."""
        node = Node.objects.get(id=played.node.pk)
        shape = accelerators(num_accelerators)
        request = hello_request(node, boot_id=boot_id, accelerators=shape)
        answer = self.agents[node.pk].ask("POST", "/api/v1/agent/hello/", encode(request))
        played.node = Node.objects.get(id=node.pk)
        if answer.status_code == 200:
            token = json.loads(answer.all_text)["agent_token"]
            client = agent_client(token)
            self.agents[node.pk] = AgentActor(f"agent of {node.name}", client)
        return answer
