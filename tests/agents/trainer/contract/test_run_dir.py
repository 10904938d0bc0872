"""The run directory: orders watched, reports numbered, beacons answering."""

from __future__ import annotations

import contextlib
import dataclasses
import json
import socket
import struct
import threading
from pathlib import Path

import pytest

from agents.trainer.contract.ports import beacon_socket
from agents.trainer.contract.run_dir import OrderWatcher, ReportWriter, orders_read, orders_write
from agents.trainer.peers.readiness import (
    ANSWER,
    ANSWER_TAG,
    QUERY,
    QUERY_TAG,
    Beacon,
    wait_until_ready,
)
from agents.trainer.peers.socket_filter import hosts_allowed
from controlplane.core.protocol.wire import (
    AcceleratorInfo,
    ReportKind,
    TrainerOrders,
    TrainerReport,
    decode,
)
from tests.agents.trainer.local_jobs import membership_of, training_spec


def orders_of(generation: int, go: bool) -> TrainerOrders:
    return TrainerOrders(
        spec=training_spec(),
        slot=0,
        accelerator=AcceleratorInfo(index=0, kind="cpu", name="one", memory_bytes=0, threads=1),
        membership=membership_of({0: (0, 1, 2, 3, 4)}, generation=generation),
        go=go,
    )


def test_orders_are_read_as_they_were_written(tmp_path: Path) -> None:
    orders_write(tmp_path, orders_of(3, False))
    assert orders_read(tmp_path) == orders_of(3, False)
    assert [path.name for path in tmp_path.iterdir()] == ["orders.json"]


@pytest.mark.parametrize("text", [None, "{", '{"slot": 1}'])
def test_missing_or_damaged_orders_are_refused(tmp_path: Path, text: str | None) -> None:
    if text is not None:
        (tmp_path / "orders.json").write_text(text)
    with pytest.raises(ValueError, match=r"orders\.json|TrainerOrders"):
        OrderWatcher(tmp_path)


def test_a_watcher_follows_only_a_go_for_a_later_generation(tmp_path: Path) -> None:
    orders_write(tmp_path, orders_of(1, True))
    watcher = OrderWatcher(tmp_path)
    first = watcher.orders
    assert watcher.next_after(1) is None
    orders_write(tmp_path, orders_of(2, False))
    second = watcher.wait_for_change(first)
    assert second.membership.generation == 2
    assert watcher.next_after(1) is None
    (tmp_path / "orders.json").write_text("half")  # not by the rules; the last good ones stay
    orders_write(tmp_path, orders_of(2, True))
    third = watcher.wait_for_change(second)
    assert watcher.next_after(1) is third
    assert watcher.next_after(2) is None


def test_who_asked_is_told_of_the_orders_there_are_and_of_all_others(tmp_path: Path) -> None:
    orders_write(tmp_path, orders_of(1, True))
    watcher = OrderWatcher(tmp_path)
    told: list[tuple[str, ...]] = []
    watcher.on_change(lambda orders: told.append((*sorted(hosts_allowed(orders)),)))
    assert told == [("127.0.0.1",)]
    first = watcher.orders
    orders_write(tmp_path, dataclasses.replace(first, peers=("node-c", "10.0.0.9")))
    watcher.wait_for_change(first)
    assert told[1:] == [("10.0.0.9", "127.0.0.1", "node-c")]


def test_reports_are_numbered_lines_from_any_thread(tmp_path: Path) -> None:
    reports = ReportWriter(tmp_path, job_id=9, slot=4)
    reports.generation = 2
    threads = [
        threading.Thread(target=lambda: [reports.phase("training") for _ in range(50)])
        for _ in range(4)
    ]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    reports.write(ReportKind.DIGEST, {"step": 7, "sha256": "aa", "role": "before"}, 1)
    lines = (tmp_path / "reports.jsonl").read_text().splitlines()
    read = [decode(TrainerReport, json.loads(line)) for line in lines]
    assert [report.sequence for report in read] == list(range(201))
    assert {(report.job_id, report.slot) for report in read} == {(9, 4)}
    assert read[0].generation == 2
    last = dataclasses.replace(read[-1], at=0.0)
    assert last == TrainerReport(
        job_id=9,
        slot=4,
        generation=1,
        sequence=200,
        at=0.0,
        kind=ReportKind.DIGEST,
        data={"step": 7, "sha256": "aa", "role": "before"},
    )


def free_udp_port() -> int:
    with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as probe:
        probe.bind(("", 0))
        return int(probe.getsockname()[1])


def test_waiting_for_a_leader_ends_when_it_says_so() -> None:
    port = free_udp_port()
    beacon = Beacon(beacon_socket(f"127.0.0.1:{port}"))
    beacon.generation = 3
    waiting = threading.Thread(target=wait_until_ready, args=(f"127.0.0.1:{port}", 4))
    waiting.start()
    wait_until_ready(f"127.0.0.1:{port}", 3)
    assert waiting.is_alive()
    beacon.generation = 4
    waiting.join(timeout=10.0)
    assert not waiting.is_alive()


@pytest.mark.parametrize(
    ("declared", "bound"),
    [("127.0.0.3", "127.0.0.3"), ("192.0.2.200", "0.0.0.0"), ("localhost", "0.0.0.0")],
)
def test_a_beacon_is_on_the_declared_address_if_it_is_one_of_ours(
    declared: str, bound: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    port = free_udp_port()
    beacon = Beacon(beacon_socket(f"{declared}:{port}"))
    assert beacon.address == (bound, port)
    beacon.generation = 3
    monkeypatch.setattr("agents.trainer.peers.readiness.READY_LIMIT_S", 10.0)
    monkeypatch.setattr("agents.trainer.peers.readiness.SILENCE_LIMIT_S", 20.0)
    wait_until_ready(f"127.0.0.3:{port}", 3)  # raises without an answer from this address


def test_a_forged_answer_changes_nothing(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("agents.trainer.peers.readiness.SILENCE_LIMIT_S", 60.0)
    with (
        socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as leader,
        socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as stranger,
    ):
        leader.bind(("127.0.0.1", 0))
        address = f"127.0.0.1:{leader.getsockname()[1]}"
        waiting = threading.Thread(target=wait_until_ready, args=(address, 4), daemon=True)
        waiting.start()
        leader.settimeout(10.0)
        query, peer = leader.recvfrom(64)
        tag, nonce = QUERY.unpack(query)
        assert tag == QUERY_TAG
        right = ANSWER.pack(ANSWER_TAG, nonce, 4)
        without_nonce = struct.pack("!16sq", ANSWER_TAG, 4)
        stranger.sendto(right, peer)
        stranger.sendto(without_nonce, peer)
        forged = ANSWER.pack(ANSWER_TAG, bytes(16), 4)
        for wrong in (without_nonce, forged, right + b"!", right[:-1], bytes(2000), b""):
            leader.sendto(wrong, peer)
        leader.setblocking(False)
        with contextlib.suppress(BlockingIOError):  # queries from before
            while leader.recv(64):
                pass
        leader.settimeout(10.0)
        # One may be on its way, but none follows a valid answer.
        assert [leader.recv(64) for _ in range(3)] == [query] * 3
        leader.sendto(right, peer)
        waiting.join(timeout=10.0)
        assert not waiting.is_alive()


def test_a_beacon_answers_queries_alone() -> None:
    port = free_udp_port()
    Beacon(beacon_socket(f"127.0.0.1:{port}")).generation = 3
    with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as asking:
        asking.settimeout(10.0)
        asking.connect(("127.0.0.1", port))
        wrong, right = (QUERY.pack(QUERY_TAG, nonce * 16) for nonce in (b"w", b"r"))
        for sent in (b"", wrong[:-1], wrong + b"!", wrong.replace(b"ask", b"gen"), right):
            asking.send(sent)
        assert asking.recv(64) == ANSWER.pack(ANSWER_TAG, b"r" * 16, 3)


def test_silence_does_not_stop_anybody(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("agents.trainer.peers.readiness.SILENCE_LIMIT_S", 0.05)
    wait_until_ready(f"127.0.0.1:{free_udp_port()}", 1)
