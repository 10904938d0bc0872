"""Estimates of a simulated job for policies: true values, or models fitted to its reports."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field

from controlplane.core.estimates.goodput import relative_speeds, speeds_completed
from controlplane.core.estimates.measured_steps import measured_model
from controlplane.core.estimates.throughput import ThroughputModel, ThroughputSample, throughput_fit
from controlplane.core.values.performance import Performance
from controlplane.simulator.applications.applications import Application, Learnt
from controlplane.simulator.applications.batches import Pace
from controlplane.simulator.applications.step_times import Floats, Placement, packed, spread

#: (kind, relative speed), in the order of the kinds.
Speeds = tuple[tuple[str, float], ...]


def _placement(num_accelerators: int, num_nodes: int, per_node: int) -> Placement:
    if num_nodes <= -(-num_accelerators // per_node):
        return packed(num_accelerators, per_node)
    return spread(num_accelerators, min(num_nodes, num_accelerators))


@dataclass(frozen=True, eq=False)
class TruePerformance:
    """True speed of a job in one epoch. A `Performance`.

    Attributes:
        batch_size_asked: None: the platform chooses; else the unit is an example of that batch.
        per_node: accelerators of the largest node of each kind.
        slices_alone: whether a single accelerator counts with at least two slices.
    """

    application: Application
    epoch: int
    batch_size_asked: int | None
    per_node: Mapping[str, int]
    slices_alone: bool = False

    def goodput(self, kind: str, num_accelerators: int, num_nodes: int) -> float:
        if num_accelerators < 1:
            return 0.0
        app, asked = self.application, self.batch_size_asked
        placement = _placement(num_accelerators, num_nodes, self.per_node[kind])
        if asked is not None:
            return app.examples_per_s(kind, placement, asked, slices_alone=self.slices_alone)
        batch = app.batch(kind, placement, None, self.epoch)
        if batch is None:
            return 0.0
        pace = app.pace(kind, placement, batch, self.epoch)
        return pace.progress_per_s * app.examples_per_progress

    def goodputs(self, kind: str, most: int, per_node: int) -> Floats:
        app, asked = self.application, self.batch_size_asked
        if asked is None:
            paces = app.packed_paces(kind, most, per_node, None, self.epoch)
            return paces * app.examples_per_progress
        return app.packed_examples_per_s(
            kind, most, per_node, asked, slices_alone=self.slices_alone
        )

    def batch_size(self, kind: str, num_accelerators: int, num_nodes: int) -> int:
        if self.batch_size_asked is not None:
            return self.batch_size_asked
        placement = _placement(num_accelerators, num_nodes, self.per_node[kind])
        batch = self.application.batch(kind, placement, None, self.epoch)
        return 0 if batch is None else batch.size


#: Steps measured on one kind: one sample for each (nodes, accelerators, examples of a slice).
Samples = dict[tuple[int, int, int], ThroughputSample]

#: Samples of a code that its models are fitted to, the newest.
MOST_FITTED = 96


@dataclass(eq=False)
class CodeSteps:
    """Steps measured on all jobs of one code, by kind, and the models fitted to them."""

    samples: dict[str, Samples] = field(default_factory=dict)
    _models: dict[str, tuple[int, ThroughputModel]] = field(default_factory=dict)

    def model(self, kind: str) -> ThroughputModel:
        """Return the model of a kind, fitted again when there are new samples."""
        samples = list(self.samples[kind].values())
        known = self._models.get(kind)
        if known is None or known[0] != len(samples):
            fitted = throughput_fit(samples[-MOST_FITTED:], None if known is None else known[1])
            known = self._models[kind] = (len(samples), fitted)
        return known[1]


@dataclass(eq=False)
class Memory:
    """Observations of one job: one sample for each configuration, fitted on demand.

    Attributes:
        code: those of all jobs of its code.
        samples: its own, by kind.
        noise: gradient noise scale in examples, the last observed.
        slice_size: examples of the last observed slices.
    """

    code: CodeSteps = field(default_factory=CodeSteps)
    samples: dict[str, Samples] = field(default_factory=dict)
    noise: float | None = None
    slice_size: float = 1.0
    _models: dict[str, tuple[int, ThroughputModel]] = field(default_factory=dict)
    _known: tuple[tuple[int | None, Speeds, int], Performance] | None = None

    def see(self, kind: str, placement: Placement, pace: Pace) -> None:
        """Record the time of a step."""
        batch = pace.batch
        self.slice_size = float(batch.local)
        key = (len(placement), batch.num_accelerators, batch.local)
        samples = self.samples.setdefault(kind, {})
        if key not in samples:
            samples[key] = ThroughputSample(
                num_nodes=key[0],
                num_accelerators=key[1],
                slice_size=batch.local,
                step_s=pace.step_s,
                grad_s=pace.step_s - pace.sync_s,
            )
            self.code.samples.setdefault(kind, {}).setdefault(key, samples[key])
            self._models.pop(kind, None)
            self._known = None
        if self.noise != pace.noise:
            self.noise = pace.noise
            self._known = None

    def performance(
        self, application: Learnt, batch_size_asked: int | None, speeds: Speeds
    ) -> Performance | None:
        """Return the performance fitted so far; None before the first step."""
        if not self.samples or self.noise is None:
            return None
        num_samples = sum(len(self.code.samples[kind]) for kind in self.samples)
        key = (batch_size_asked, speeds, num_samples)
        if self._known is None or self._known[0] != key:
            found = application.modelled(self.models, dict(speeds), self.noise, batch_size_asked)
            self._known = (key, found)
        return self._known[1]

    @property
    def models(self) -> dict[str, ThroughputModel]:
        """Fitted model of each kind, the kind with most samples first."""
        kinds = sorted(self.samples, key=lambda kind: -len(self.samples[kind]))
        for kind in kinds:
            known = self.code.samples[kind]
            if kind not in self._models or self._models[kind][0] != len(known):
                own = self.samples[kind]
                others = [sample for key, sample in known.items() if key not in own]
                model = measured_model(self.code.model(kind), [*others, *own.values()])
                self._models[kind] = (len(known), model)
        return {kind: self._models[kind][1] for kind in kinds}


class Comparisons:
    """Relative speeds of kinds, from all jobs so far that ran the same code on several.

    This follows a live cluster, which keeps step times by code.
    """

    def __init__(self) -> None:
        self._ended: dict[str, dict[str, Memory]] = {}  # code -> kind -> last job there
        self._by_code: dict[str, Speeds] = {}
        self._overall: Speeds = ()
        self._kinds: dict[str, frozenset[str]] = {}

    def remember(self, code: str, memory: Memory) -> None:
        """Keep the observations of a job that ends now."""
        self._ended.setdefault(code, {}).update(dict.fromkeys(memory.samples, memory))

    def update(self, live: Iterable[tuple[str, Memory]]) -> bool:
        """Recompute with the jobs in the system; return whether anything has changed."""
        seen = {code: dict(kinds) for code, kinds in self._ended.items()}
        for code, memory in live:
            seen.setdefault(code, {}).update(dict.fromkeys(memory.samples, memory))
        known = {code: _models(kinds) for code, kinds in seen.items() if len(kinds) > 1}
        before = self._overall, self._by_code, self._kinds
        self._kinds = {code: frozenset(kinds) for code, kinds in seen.items()}
        overall = relative_speeds(known.values())
        self._overall = _rounded(overall)
        self._by_code = {
            code: _rounded(speeds_completed(relative_speeds([models]), overall))
            for code, models in known.items()
        }
        return before != (self._overall, self._by_code, self._kinds)

    def of(self, code: str) -> Speeds:
        """Return the relative speeds for jobs of a code."""
        return self._by_code.get(code, self._overall)

    def kinds(self, code: str) -> frozenset[str]:
        """Return the kinds that jobs of a code have been on."""
        return self._kinds.get(code, frozenset())


def _models(memories: Mapping[str, Memory]) -> tuple[dict[str, ThroughputModel], float]:
    """Return a model for each kind, and the size of slice at which they are compared."""
    models = {kind: memory.models[kind] for kind, memory in memories.items()}
    return models, min(memory.slice_size for memory in memories.values())


def _rounded(speeds: Mapping[str, float]) -> Speeds:
    """Round to two digits, so that results cached for one decision serve the next."""
    return tuple((kind, float(f"{speeds[kind]:.2g}")) for kind in sorted(speeds))
