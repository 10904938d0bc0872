"""What survivors agree on, who cannot be reached, and when a trainer ends by itself."""

from __future__ import annotations

import dataclasses
import itertools
import os
import socket
import subprocess
import sys
import threading
import time
from pathlib import Path
from unittest.mock import Mock

import pytest

from agents.trainer.collectives.groups import membership_without
from agents.trainer.collectives.runtime import CollectiveRuntime
from agents.trainer.contract.failures import EXIT_FAILED, PEER_LOST, TrainerError
from agents.trainer.contract.ports import HeldPort
from agents.trainer.contract.run_dir import ALIVE_LIMIT_S, OrderWatcher, orders_write
from agents.trainer.model.progress import Progress
from agents.trainer.model.schedule import TrainingSchedule
from agents.trainer.peers.reachability import slots_unreachable
from agents.trainer.resize.barriers import state_receivers, state_source
from controlplane.core.protocol.wire import (
    AcceleratorInfo,
    SlotAddress,
    StopCondition,
    StopKind,
    TrainerOrders,
)
from tests.agents.trainer.local_jobs import membership_of, training_spec
from tests.support.waiting import wait_until

REPOSITORY = Path(__file__).resolve().parents[4]
ACCELERATOR = AcceleratorInfo(index=0, kind="cpu", name="one", memory_bytes=0, threads=1)


def orders_of(generation: int, go: bool, **changes: bool) -> TrainerOrders:
    membership = membership_of({0: (0, 1, 2, 3, 4)}, generation=generation, **changes)
    return TrainerOrders(
        spec=training_spec(), slot=0, accelerator=ACCELERATOR, membership=membership, go=go
    )


def test_every_point_of_a_job_is_further_than_the_one_before() -> None:
    schedule = TrainingSchedule(5, 3, 2, StopCondition(kind=StopKind.STEPS, limit=7))
    positions = list(schedule.positions(Progress()))
    end = positions[-1]
    end = schedule.after_activity(schedule.after_batch(end, 0.0), {})
    assert end.is_over
    distances = [progress.distance for progress in [*positions, end]]
    assert all(earlier < later for earlier, later in itertools.pairwise(distances))


def test_the_furthest_of_the_lowest_slot_gives_to_all_who_are_not_as_far() -> None:
    behind, ahead = (3, 0, 4, 0), (3, 1, 0, 0)
    standings = {
        10: ahead,
        2: behind,
        4: ahead,
        1: None,
    }
    assert state_source(standings) == 4
    assert state_receivers(standings, 4) == [1, 2]
    assert state_source({0: None, 1: None}) is None
    assert state_receivers({3: ahead, 5: ahead}, 3) == []


def test_closed_ports_are_named_and_a_silent_one_costs_no_more_than_the_limit(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    with socket.create_server(("127.0.0.1", 0)) as listening, socket.socket() as closed:
        closed.bind(("127.0.0.1", 0))  # nobody listens
        addresses = {
            1: f"127.0.0.1:{listening.getsockname()[1]}",
            2: f"127.0.0.1:{closed.getsockname()[1]}",
            3: "192.0.2.1:9",  # reserved for documents: no answer, or no way there
            4: "name.invalid:9",
        }
        cluster_addresses = tuple(SlotAddress(slot=k, address=v) for k, v in addresses.items())
        started_at = time.monotonic()
        assert slots_unreachable(cluster_addresses, [3, 2, 1], limit_s=0.3) == [2, 3]
        assert time.monotonic() - started_at < 20.0  # a silent address is given up after minutes
        assert slots_unreachable(cluster_addresses, [1, 4]) == [4]
        assert slots_unreachable(cluster_addresses, []) == []
        failing = Mock(side_effect=socket.gaierror(socket.EAI_AGAIN, "no name server answers"))
        monkeypatch.setattr(socket, "getaddrinfo", failing)
        assert slots_unreachable(cluster_addresses, [1, 2]) == [2]


def test_the_leader_stays_if_it_can_else_the_next_in_line_leads() -> None:
    membership = membership_of({3: (0,), 1: (1, 2), 2: (3, 4)})
    without = membership_without(membership, [1])
    assert (without.leader_slot, [m.slot for m in without.members]) == (3, [3, 2])
    assert membership_without(membership, [3]).leader_slot == 1
    assert membership_without(membership, [1, 2, 3]).leader_slot == 3


def test_orders_to_recover_are_told_at_once_and_to_late_listeners(tmp_path: Path) -> None:
    orders_write(tmp_path, orders_of(2, True))
    watcher = OrderWatcher(tmp_path)
    told: list[int] = []
    watcher.on_recovery(told.append)
    assert told == []
    orders_write(tmp_path, orders_of(3, False, recover=True))
    orders_write(tmp_path, orders_of(4, True, recover=True))
    wait_until(lambda: told == [4])
    assert watcher.recovery_after(3) is watcher.orders
    assert watcher.recovery_after(4) is None
    late: list[int] = []
    watcher.on_recovery(late.append)
    assert late == [4]
    orders_write(tmp_path, orders_of(5, True))
    after = watcher.wait_for(lambda orders: orders.membership.generation == 5)
    assert watcher.next_after(4) is after
    assert watcher.recovery_after(4) is None


def test_waiting_for_orders_ends_with_the_right_ones_only(tmp_path: Path) -> None:
    orders_write(tmp_path, orders_of(1, True))
    watcher = OrderWatcher(tmp_path)
    found: list[TrainerOrders] = []
    wanted = lambda orders: orders.membership.recover  # noqa: E731
    waiting = threading.Thread(target=lambda: found.append(watcher.wait_for(wanted)))
    waiting.start()
    orders_write(tmp_path, orders_of(2, True))
    wait_until(lambda: watcher.orders.membership.generation == 2)
    assert waiting.is_alive()
    orders_write(tmp_path, orders_of(3, True, recover=True))
    waiting.join(timeout=10.0)
    assert [orders.membership.generation for orders in found] == [3]


def test_a_pulse_goes_on_from_the_start(tmp_path: Path) -> None:
    orders_write(tmp_path, orders_of(1, False))
    OrderWatcher(tmp_path)
    pulse = tmp_path / "pulse"
    wait_until(pulse.exists)
    first = pulse.stat().st_mtime_ns
    wait_until(lambda: pulse.stat().st_mtime_ns > first)


@pytest.mark.parametrize(("silence_s", "ends"), [(ALIVE_LIMIT_S + 60.0, True), (60.0, False)])
def test_a_trainer_ends_when_its_agent_is_long_gone(
    tmp_path: Path, silence_s: float, ends: bool
) -> None:
    orders_write(tmp_path, orders_of(1, False))
    alive = tmp_path / "alive"
    alive.touch()
    then = time.time() - silence_s
    os.utime(alive, (then, then))
    program = (
        "import sys, time, pathlib, agents.trainer.contract.run_dir as orders\n"
        "orders.PULSE_EVERY_S, orders.ALIVE_LOOKS = 0.02, 5\n"
        "orders.OrderWatcher(pathlib.Path(sys.argv[1]))\n"
        "time.sleep(float(sys.argv[2]))\n"
    )
    life_s = 60.0 if ends else 1.0
    ended = subprocess.run(
        [sys.executable, "-c", program, str(tmp_path), str(life_s)],
        cwd=REPOSITORY,
        timeout=120.0,
        check=False,
    )
    assert ended.returncode == (EXIT_FAILED if ends else 0)


def test_no_generation_is_entered_or_used_that_is_over(monkeypatch: pytest.MonkeyPatch) -> None:
    aborted: list[str] = []
    enabled: list[int | None] = []
    monkeypatch.setattr(CollectiveRuntime, "_abort", lambda _, message: aborted.append(message))
    runtime = CollectiveRuntime(0, ACCELERATOR, HeldPort.take("127.0.0.1:0"))

    def enable(membership: object) -> None:
        enabled.append(getattr(membership, "generation", None))
        runtime._cluster_addresses, runtime._leader_slot = (
            first.cluster_addresses,
            first.leader_slot,
        )

    first = membership_of({0: (0,)}, generation=1)
    monkeypatch.setattr(runtime, "_enable", enable)
    later = [dataclasses.replace(first, generation=number) for number in range(2, 6)]
    runtime.abort_before(1)
    assert runtime.connect(first)
    assert not runtime.connect(later[0])  # generation 2: same cluster_addresses, same leader
    with runtime.collective():
        pass
    runtime.abort_before(4)
    runtime.abort_before(4)
    runtime.abort_before(3)
    assert aborted == ["generation 2 is over"]
    assert runtime.is_superseded
    with pytest.raises(TrainerError, match="generation 3 is over") as refused:
        runtime.connect(later[1])
    assert refused.value.code == PEER_LOST
    with pytest.raises(TrainerError, match="over"), runtime.collective():
        raise AssertionError("a collective was run in a generation that is over")
    assert runtime.connect(later[2], reinitialize=True)
    assert not runtime.is_superseded
    runtime.abort_before(4)
    assert aborted == ["generation 2 is over"]
    # Renewed ahead of the orders: nothing to abort, and nothing to initialise when they come.
    runtime.renew(later[2])
    with pytest.raises(TrainerError, match="over"), runtime.collective():
        raise AssertionError("a collective was run before the orders were there")
    runtime.abort_before(5)
    assert runtime.connect(later[3], reinitialize=True)
    assert aborted == ["generation 2 is over"]
    assert enabled == [1, 4, 4]
    with runtime.collective():
        pass
