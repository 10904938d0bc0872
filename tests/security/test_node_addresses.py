"""Where nodes are reached is told to admins alone, by every page and every answer."""

from __future__ import annotations

import re
from collections.abc import Mapping

import pytest
from django.contrib.auth.models import User

from controlplane.core.protocol.node_messages import HelloRequest
from jobs.exceptions import ConflictError
from jobs.models import Job, Node
from jobs.services.cluster.cordons import Cordon, node_cordon
from jobs.services.cluster.node_shapes import shape_accept
from jobs.services.cluster.nodes import node_hello
from tests.jobs.world import PlayedNode, World
from tests.security.every_answer import answers_of
from tests.support.builders import accelerators, at, job_make, node_make, user_make
from tests.support.messages import hello_request

pytestmark = pytest.mark.django_db

#: Addresses and ports of the nodes, and of a shape that waits; no other number looks like them.
ADDRESSES = ("127.77.1.7", "127.77.2.7", "127.77.3.7", "boot-of-the-node")
PORTS = (34_117, 34_216, 35_117, 35_216)
SENTINELS = re.compile(
    "|".join(map(re.escape, ADDRESSES)) + rf"|(?<![\d.])(?:{'|'.join(map(str, PORTS))})(?!\d)"
)


def hello(node: Node, host: str) -> HelloRequest:
    ports = {"first_port": PORTS[2], "last_port": PORTS[3]}
    return hello_request(node, host=host, accelerators=accelerators(3), **ports)


def shape_propose(node: Node, token: str, host: str) -> Node:
    with pytest.raises(ConflictError, match="another host or ports"):
        node_hello(node, hello(node, host), token, at(5))
    return Node.objects.get(pk=node.pk)


class Story:
    """Nodes of known addresses, and a job that has met all that can happen to them."""

    def __init__(self, owner: User) -> None:
        self.world = World(num_nodes=0)
        ports = {"first_port": PORTS[0], "last_port": PORTS[1], "boot_id": ADDRESSES[3]}
        made = [node_make(f"n{i}", 2, host=ADDRESSES[i], **ports) for i in range(2)]
        self.world.nodes = [PlayedNode(node) for node, _ in made]
        self.nodes = [node for node, _ in made]
        self.job = job_make(owner, max_accelerators=4, num_virtual_nodes=4)
        self.other = job_make(user_make("bob"), max_accelerators=1)
        self.world.settle()
        self.world.train(self.job)
        self.world.kill(self.job, self.world.trainers_of(self.job)[-1][1].slot)
        self.world.settle()
        self.world.stall(self.job, *[t.slot for _, t in self.world.trainers_of(self.job)][:2])
        self.world.settle()
        for change in (Cordon.DRAIN, Cordon.UNCORDON):
            node_cordon(self.nodes[0], change, self.world.now, actor="user:boss")
        accepted = shape_propose(self.nodes[1], made[1][1], ADDRESSES[1])
        assert accepted.proposed_shape is not None
        digest = accepted.proposed_shape["digest"]
        shape_accept(accepted, digest, self.world.now, actor="user:boss")
        self.node = shape_propose(self.nodes[0], made[0][1], ADDRESSES[2])

    def answers_of(self, person: User, only: str = "") -> Mapping[str, str]:
        numbers = {"job_id": self.job.pk, "other_id": self.other.pk, "node_id": self.node.pk}
        return answers_of(person, only, **numbers)


@pytest.fixture
def story(ada: User) -> Story:
    return Story(ada)


def told(answers: Mapping[str, str]) -> dict[str, set[str]]:
    found = {path: set(SENTINELS.findall(text)) for path, text in answers.items()}
    return {path: words for path, words in found.items() if words}


def test_only_admins_are_told_the_address_of_a_node(story: Story, ada: User, admin: User) -> None:
    answers = story.answers_of(ada)
    assert told(answers) == {}
    assert len(answers) > 45
    number = story.node.pk
    for path in ("/nodes/", f"/nodes/{number}/", "/api/v1/nodes/", "/", "/timeline/"):
        assert "n0" in answers[path], "the node is there by its name"
    assert "Waits for an admin" in answers["/nodes/"]
    one = answers[f"/api/v1/nodes/{number}/"]
    assert '"host":""' in one
    assert '"proposed_shape":{"accelerators":[{"index":0,"kind":"cpu"' in one
    assert Node.objects.get(pk=number).host == ADDRESSES[0], "the row is as it was"
    found = told(story.answers_of(admin, r"nodes/(<int:node_id>/)?$|^audit/$"))
    for path in ("/nodes/", "/api/v1/nodes/", f"/api/v1/nodes/{number}/"):
        assert {ADDRESSES[0], ADDRESSES[2]} <= found[path], path
    assert {ADDRESSES[0], *map(str, PORTS[:2])} <= found[f"/nodes/{number}/"]
    assert str(PORTS[2]) in found["/audit/"], "an accepted address is in the audit log"
    generations = Job.objects.get(pk=story.job.pk).generations.all()
    known = {row.address for one in generations for row in one.membership.cluster_addresses}
    assert any(address.startswith(ADDRESSES[0]) for address in known), "memberships have addresses"
