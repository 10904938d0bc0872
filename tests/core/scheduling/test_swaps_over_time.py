"""Jobs that are to swap places do so while jobs come and go and nodes fail."""

from __future__ import annotations

from dataclasses import replace

from hypothesis import note, settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, precondition, rule

from controlplane.core.cycle import decide
from controlplane.core.policies import POLICIES
from controlplane.core.values.types import Accelerator, Plan, Snapshot
from tests.core.scheduling.test_circular_waits import applied, full_clusters
from tests.core.snapshots import Speed, job_make, snapshots

#: Cycles after which a cluster in which nothing happens is to be at rest.
MOST_CYCLES = 40

FASTER = st.sampled_from([{}, {"slow": 10.0}, {"fast": 10.0}])


class SwapsOverTime(RuleBasedStateMachine):
    """A cluster under one policy. Whatever happened, nobody waits for ever."""

    def __init__(self) -> None:
        super().__init__()
        self.name = ""
        self.snapshot: Snapshot
        self.lost: list[tuple[Accelerator, ...]] = []

    @initialize(name=st.sampled_from(sorted(POLICIES)), snapshot=full_clusters() | snapshots())
    def begin(self, name: str, snapshot: Snapshot) -> None:
        self.name, self.snapshot = name, snapshot

    def cycle(self, delays: st.DataObject) -> Plan:
        """Decide and obey; no accelerator is given to two jobs, or while it is in use."""
        plan = decide(self.snapshot, self.name)
        note(f"{self.snapshot.held} -> {[(one.job_id, one.wanted) for one in plan.resizes]}")
        for resize in plan.resizes:
            own = self.snapshot.manned(resize.job_id)
            assert self.snapshot.in_use.difference(own).isdisjoint(resize.wanted)
        self.snapshot = applied(self.snapshot, plan, delays)
        rows = [one for row in self.snapshot.held.values() for one in row]
        assert len(rows) == len(set(rows))
        return plan

    @rule(delays=st.data())
    def decide_once(self, delays: st.DataObject) -> None:
        self.cycle(delays)

    @rule(faster=FASTER, least=st.integers(1, 3), weight=st.sampled_from([1.0, 5.0]))
    def job_arrives(self, faster: dict[str, float], least: int, weight: float) -> None:
        number = max((job.id for job in self.snapshot.jobs), default=0) + 1
        job = replace(
            job_make(number, least=least, most=4, weight=weight, at=self.snapshot.now),
            performance=Speed(by_kind=faster),
            remaining_examples=1e6,
        )
        self.snapshot = replace(self.snapshot, jobs=(*self.snapshot.jobs, job))

    @precondition(lambda self: self.snapshot.jobs)
    @rule(data=st.data())
    def job_ends(self, data: st.DataObject) -> None:
        ended = data.draw(st.sampled_from([job.id for job in self.snapshot.jobs]))
        jobs = tuple(job for job in self.snapshot.jobs if job.id != ended)
        held = {job_id: row for job_id, row in self.snapshot.held.items() if job_id != ended}
        self.snapshot = replace(self.snapshot, jobs=jobs, held=held)

    @precondition(lambda self: self.snapshot.jobs)
    @rule(data=st.data(), faster=FASTER)
    def speed_turns_out_different(self, data: st.DataObject, faster: dict[str, float]) -> None:
        chosen = data.draw(st.sampled_from([job.id for job in self.snapshot.jobs]))
        jobs = tuple(
            replace(job, performance=Speed(by_kind=faster)) if job.id == chosen else job
            for job in self.snapshot.jobs
        )
        self.snapshot = replace(self.snapshot, jobs=jobs)

    @precondition(lambda self: len({one.node_id for one in self.snapshot.accelerators}) > 1)
    @rule(data=st.data())
    def node_fails(self, data: st.DataObject) -> None:
        """Jobs keep what they hold on other nodes."""
        nodes = sorted({one.node_id for one in self.snapshot.accelerators})
        node = data.draw(st.sampled_from(nodes))
        self.lost.append(tuple(a for a in self.snapshot.accelerators if a.node_id == node))
        left = tuple(a for a in self.snapshot.accelerators if a.node_id != node)
        ids = {one.id for one in left}
        rows = {i: tuple(a for a in row if a in ids) for i, row in self.snapshot.held.items()}
        self.snapshot = replace(
            self.snapshot,
            accelerators=left,
            held={job_id: row for job_id, row in rows.items() if row},
            releasing=self.snapshot.releasing & ids,
        )

    @precondition(lambda self: self.lost)
    @rule()
    def node_returns(self) -> None:
        back = self.lost.pop(0)
        self.snapshot = replace(
            self.snapshot, accelerators=tuple(sorted((*self.snapshot.accelerators, *back)))
        )

    @rule(delays=st.data())
    def nothing_happens_for_a_while(self, delays: st.DataObject) -> None:
        for _ in range(MOST_CYCLES):
            is_free = not self.snapshot.releasing
            plan = self.cycle(delays)
            if is_free and not plan.resizes:
                break
        assert plan.resizes == ()
        assert plan.waiting == {}


TestSwapsOverTime = SwapsOverTime.TestCase
TestSwapsOverTime.settings = settings(stateful_step_count=8, deadline=None)
