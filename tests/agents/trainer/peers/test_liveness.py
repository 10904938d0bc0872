"""Who waits long looks whether the others can still be reached, and gives up only if not."""

from __future__ import annotations

import socket
import threading
from typing import Any, cast

import pytest

from agents.trainer.collectives.runtime import CollectiveRuntime
from agents.trainer.peers.liveness import PATIENCE_S, PeerWatch
from controlplane.core.protocol.wire import AcceleratorInfo, Membership, SlotAddress
from tests.agents.trainer.local_jobs import membership_of


class Waiting:
    """A runtime whose collective began at 0."""

    def __init__(self, membership: Membership) -> None:
        self.slot = 0
        self.membership: Membership | None = membership
        self.waiting_since: float | None = 0.0
        self.given_up: list[tuple[int, str]] = []

    def give_up(self, membership: Membership, message: str) -> None:
        self.given_up.append((membership.generation, message))


@pytest.fixture
def peer() -> Any:
    with socket.create_server(("127.0.0.1", 0)) as listener:
        yield listener


@pytest.fixture
def runtime(peer: socket.socket) -> Waiting:
    return Waiting(membership_with(peer, generation=3))


@pytest.fixture
def watch(runtime: Waiting) -> PeerWatch:
    return PeerWatch(cast(CollectiveRuntime, runtime))


def membership_with(peer: socket.socket, generation: int) -> Membership:
    address = f"127.0.0.1:{peer.getsockname()[1]}"
    cluster_addresses = (
        SlotAddress(slot=0, address="127.0.0.1:1"),
        SlotAddress(slot=1, address=address),
    )
    return membership_of(
        {0: (0,), 1: (1,)}, generation=generation, cluster_addresses=cluster_addresses
    )


def test_a_peer_that_is_there_may_take_its_time(watch: PeerWatch, runtime: Waiting) -> None:
    for now in (1.0, 10.0, 100.0, 101.0):
        watch.look(now)
    assert runtime.given_up == []


def test_a_peer_that_two_looks_do_not_reach_ends_the_wait(
    watch: PeerWatch, runtime: Waiting, peer: socket.socket
) -> None:
    peer.close()
    watch.look(PATIENCE_S + 1.0)
    assert runtime.given_up == []
    watch.look(PATIENCE_S + 2.0)
    assert runtime.given_up == [(3, "slots [1] cannot be reached any more")]


def test_nobody_is_looked_for_while_collectives_end(
    watch: PeerWatch, runtime: Waiting, peer: socket.socket
) -> None:
    peer.close()
    watch.look(PATIENCE_S + 1.0)
    runtime.waiting_since = PATIENCE_S + 1.5  # the next one is under way
    watch.look(PATIENCE_S + 2.0)
    runtime.waiting_since = None
    watch.look(PATIENCE_S + 9.0)
    runtime.waiting_since = 0.0
    watch.look(PATIENCE_S + 10.0)
    assert runtime.given_up == []


def test_what_was_seen_in_another_generation_counts_for_nothing(
    watch: PeerWatch, runtime: Waiting, peer: socket.socket
) -> None:
    later = membership_with(peer, generation=4)
    peer.close()
    watch.look(PATIENCE_S + 1.0)
    runtime.membership = later
    watch.look(PATIENCE_S + 2.0)
    assert runtime.given_up == []
    watch.look(PATIENCE_S + 3.0)
    assert [generation for generation, _ in runtime.given_up] == [4]


def test_nothing_is_initialised_under_a_collective_of_another_thread(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    runtime = CollectiveRuntime(
        0, AcceleratorInfo(index=0, kind="cpu", name="cpu", memory_bytes=0, threads=1)
    )
    runtime._generation = 1
    is_inside, is_aborted = threading.Event(), threading.Event()
    ended: list[str] = []

    def reduce() -> None:
        with runtime.collective():
            is_inside.set()
            is_aborted.wait(10.0)
        ended.append("reduced")

    monkeypatch.setattr(runtime, "_abort", lambda _message: is_aborted.set())
    thread = threading.Thread(target=reduce)
    thread.start()
    assert is_inside.wait(10.0)
    runtime._let_others_out()
    thread.join(10.0)
    assert is_aborted.is_set()
    assert ended == ["reduced"]
    assert runtime.waiting_since is None


def test_a_collective_that_does_not_end_is_not_waited_for_without_a_word(
    monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    accelerator = AcceleratorInfo(index=0, kind="cpu", name="cpu", memory_bytes=0, threads=1)
    stuck = CollectiveRuntime(0, accelerator)
    stuck._generation = 1
    aborts: list[str] = []
    monkeypatch.setattr(stuck, "_abort", aborts.append)
    monkeypatch.setattr("agents.trainer.collectives.runtime.OTHERS_LIMIT_S", 0.0)
    with stuck.collective():
        stuck._let_others_out()
    assert aborts == ["the runtime begins anew"]
    assert "1 collectives in other threads have not ended" in caplog.text
    caplog.clear()
    stuck._let_others_out()
    assert (len(aborts), caplog.text) == (1, "")
