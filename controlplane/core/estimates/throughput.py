"""Throughput on accelerators of one kind: Pollux' throughput model (OSDI 2021) and its fit.

On K accelerators of N machines each accelerator runs c slices of m examples one after the other in
a step (Pollux counts s = c - 1 accumulated ones); gradients are exchanged once, partly during the
last slice:

    T_grad = alpha_c + beta_c*m                                            one slice
    T_sync = 0 (K = 1), alpha_r + beta_r*max(K-2, 0) (N = 1), alpha_n + beta_n*max(K-2, 0) (N > 1)
    T_step = (c-1)*T_grad + (T_grad^gamma + T_sync^gamma)^(1/gamma),       1 <= gamma <= 10

gamma = 1: the exchange waits for the last slice; gamma large: the last slice hides it. Unmeasured
costs are assumed to be 0, so that jobs try such configurations: T_sync before any K > 1, its growth
before any K > 2; several machines count as one before any N > 1.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Sequence
from dataclasses import dataclass

import numpy as np
import scipy
from numpy.typing import ArrayLike, NDArray

Floats = NDArray[np.float64]

#: No time is below this, in seconds, and no time per example or accelerator either.
LEAST_S = 1e-8

#: The exponent's range.
GAMMA_RANGE = (1.0, 10.0)

#: Weights of the priors: little overlap, and an exchange that hardly grows with K.
GAMMA_PRIOR, GROWTH_PRIOR = 1e-3, 1e-2

#: Start values of a fit from nothing, in the order of the model: parts of a typical step.
START_PARTS = np.array([0.5, 0.5, 0.5, 0.1, 0.5, 0.1])

#: A fit that starts from an older one begins with no parameter below this share of its start from
#: nothing: in logarithms a vanishing parameter would hardly move again. The growth of the exchange
#: begins there in full: until two numbers of accelerators tell it from the base, a fit makes it 0.
START_SHARES = np.array([1e-2, 1e-2, 1e-2, 1.0, 1e-2, 1.0])

#: Iterations of one fit, from nothing and from an older model.
COLD_ITERATIONS, WARM_ITERATIONS = 200, 30

#: Start value of gamma for a fit from nothing.
START_GAMMA = 1.5

#: A fit ends when an iteration lowers the cost by a smaller share than this.
COST_TOLERANCE = 1e-6

#: Relative errors well below this are negligible: smooths the kink of the root mean square at 0.
NEGLIGIBLE_ERROR = 0.01


@dataclass(frozen=True, slots=True)
class ThroughputSample:
    """Measured step time in one configuration.

    Attributes:
        num_nodes, num_accelerators: N and K.
        slice_size: m, examples that an accelerator works on at once; uneven slices count by their
            mean.
        step_s: seconds of a whole step.
        grad_s: seconds of one slice's gradient, as far as known.
        num_slices: c, slices of the busiest accelerator in a step.
    """

    num_nodes: int
    num_accelerators: int
    slice_size: float
    step_s: float
    grad_s: float | None = None
    num_slices: int = 1


@dataclass(frozen=True, slots=True)
class ThroughputModel:
    """The seven parameters of the head of this module, in seconds; see there.

    Attributes:
        compute_base_s, compute_slope_s: alpha_c, beta_c.
        local_base_s, local_slope_s: alpha_r, beta_r, exchange on one machine.
        network_base_s, network_slope_s: alpha_n, beta_n, exchange between machines.
        gamma: degree to which the exchange is hidden.
    """

    compute_base_s: float
    compute_slope_s: float
    local_base_s: float = 0.0
    local_slope_s: float = 0.0
    network_base_s: float = 0.0
    network_slope_s: float = 0.0
    gamma: float = 1.0

    @property
    def parameters(self) -> tuple[float, float, float, float, float, float, float]:
        """The parameters in the order of the attributes, as they are stored."""
        return (
            self.compute_base_s,
            self.compute_slope_s,
            self.local_base_s,
            self.local_slope_s,
            self.network_base_s,
            self.network_slope_s,
            self.gamma,
        )

    def grad_s(self, slice_size: ArrayLike) -> Floats:
        """Return the seconds of one slice's gradient."""
        return self.compute_base_s + self.compute_slope_s * np.asarray(slice_size, dtype=float)

    def sync_s(self, num_accelerators: ArrayLike, num_nodes: ArrayLike) -> Floats:
        """Return the seconds of the exchange, overlapped or not."""
        count = np.asarray(num_accelerators, dtype=float)
        beyond = np.maximum(count - 2.0, 0.0)
        local = self.local_base_s + self.local_slope_s * beyond
        network = self.network_base_s + self.network_slope_s * beyond
        sync = np.where(np.asarray(num_nodes) > 1, network, local)
        return np.where(count > 1, sync, 0.0)

    def step_s(
        self,
        num_accelerators: ArrayLike,
        num_nodes: ArrayLike,
        slice_size: ArrayLike,
        num_slices: ArrayLike = 1,
    ) -> Floats:
        """Return the seconds of a whole step. The arguments are broadcast against each other."""
        grad = self.grad_s(slice_size)
        last = _overlapped(grad, self.sync_s(num_accelerators, num_nodes), self.gamma)
        return (np.asarray(num_slices) - 1) * grad + last

    def slower(self, factor: float) -> ThroughputModel:
        """Return the model of accelerators that compute `factor` times as long, exchange alike.

        Raises:
            ValueError: the factor is not positive.
        """
        if not factor > 0.0:
            raise ValueError(f"factor must be positive, got {factor}")
        base, slope, *rest = self.parameters
        return ThroughputModel(base * factor, slope * factor, *rest)


def _overlapped(grad: Floats, sync: Floats, gamma: float) -> Floats:
    """Return (grad^gamma + sync^gamma)^(1/gamma) without overflow."""
    longer, shorter = np.maximum(grad, sync), np.minimum(grad, sync)
    ratio = np.divide(shorter, longer, out=np.zeros_like(longer), where=longer > 0.0)
    return longer * np.exp(np.log1p(ratio**gamma) / gamma)


def slices_of(num_virtual_nodes: int, num_accelerators: ArrayLike) -> NDArray[np.int64]:
    """Return the number of virtual nodes of the busiest accelerator: ceil(V / K).

    So with 16 virtual nodes 9 to 15 accelerators are no faster than 8.
    """
    return -(-num_virtual_nodes // np.asarray(num_accelerators, dtype=np.int64))


def throughput_fit(
    samples: Iterable[ThroughputSample], warm: ThroughputModel | None = None
) -> ThroughputModel:
    """Fit a model to measurements.

    Least RMSE of log T_grad + RMSE of log T_step + priors, as in Pollux, each sample with the same
    weight: pass one sample per configuration.

    Args:
        warm: an older model of the same job; makes it faster.

    Raises:
        ValueError: there is no sample, or an impossible one.
    """
    data = _Data(list(samples))
    bounds = data.bounds()
    found = scipy.optimize.minimize(
        data.cost,
        np.clip(data.start(warm), bounds[:, 0], bounds[:, 1]),
        jac=True,
        method="L-BFGS-B",
        bounds=bounds,
        options={
            "maxiter": COLD_ITERATIONS if warm is None else WARM_ITERATIONS,
            "ftol": COST_TOLERANCE,
        },
    )
    return data.model(found.x)


class _Data:
    """Samples as arrays, and the cost of parameters x on them.

    x holds the logarithms of the six times in the order of the model, and gamma. T_grad and T_sync
    are linear: `of_grad` @ (alpha_c, beta_c), `of_sync` @ (alpha_r, beta_r, alpha_n, beta_n).
    """

    def __init__(self, samples: Sequence[ThroughputSample]) -> None:
        samples_check(samples)
        rows = [
            (s.num_nodes, s.num_accelerators, s.slice_size, s.num_slices, s.step_s) for s in samples
        ]
        nodes, count, size, slices, step = np.array(rows, dtype=float).T
        self.earlier = slices - 1.0
        near, far = (count > 1) & (nodes <= 1), (count > 1) & (nodes > 1)
        beyond = np.maximum(count - 2.0, 0.0)
        self.of_grad = np.column_stack([np.ones_like(size), size])
        self.of_sync = np.column_stack([near, near * beyond, far, far * beyond])
        self.log_step = np.log(step)
        timed = [i for i, sample in enumerate(samples) if sample.grad_s is not None]
        self.timed = np.array(timed, dtype=np.intp)
        self.log_grad = np.log([max(samples[i].grad_s or 0.0, LEAST_S) for i in timed])
        self.typical_s = float(np.exp(np.mean(self.log_step - np.log(slices))))
        self.typical_size = float(np.mean(size))
        self.longest_s = float(step.max())

    def bounds(self) -> Floats:
        """Return the lowest and the highest x, equal for parameters without data. Shape (7, 2)."""
        low, high = math.log(LEAST_S), math.log(max(self.longest_s, LEAST_S) * 10.0)
        bounds = np.array([(low, high)] * 6 + [GAMMA_RANGE])
        is_seen = self.of_sync.any(axis=0)
        bounds[2:6][~is_seen] = low
        if not is_seen.any():
            bounds[6] = GAMMA_RANGE[0]
        return bounds

    def start(self, warm: ThroughputModel | None) -> Floats:
        """Return the start value of x."""
        times = START_PARTS * self.typical_s
        times[1] /= self.typical_size
        if warm is None:
            return np.append(np.log(times), START_GAMMA)
        *old, gamma = warm.parameters
        known = np.array(old)
        known = np.where(known > 0.0, np.maximum(known, START_SHARES * times), times)
        return np.append(np.log(known), gamma)

    def cost(self, x: Floats) -> tuple[float, Floats]:
        """Return the cost of x and its gradient."""
        times, gamma = np.exp(x[:6]), float(x[6])
        grad, sync = self.of_grad @ times[:2], self.of_sync @ times[2:]
        last, by_grad, by_sync, by_gamma = _overlap_slopes(grad, sync, gamma)
        cost, by_step = _log_rmse(self.earlier * grad + last, self.log_step)
        own_slopes = by_step * (self.earlier + by_grad)
        if self.timed.size:
            more, by_own = _log_rmse(grad[self.timed], self.log_grad)
            cost += more
            own_slopes[self.timed] += by_own
        slopes = np.empty(7)
        slopes[:2] = own_slopes @ self.of_grad
        slopes[2:6] = (by_step * by_sync) @ self.of_sync
        slopes[:6] *= times
        slopes[6] = float(by_step @ by_gamma) + 2.0 * GAMMA_PRIOR * (gamma - 1.0)
        cost += GAMMA_PRIOR * (gamma - 1.0) ** 2
        for base in (2, 4):
            prior = GROWTH_PRIOR * (times[base + 1] / times[base]) ** 2
            cost += prior
            slopes[base] -= 2.0 * prior
            slopes[base + 1] += 2.0 * prior
        return cost, slopes

    def model(self, x: Floats) -> ThroughputModel:
        """Return the model of x, with unmeasured parameters as in the head of this module."""
        times = np.exp(x[:6])
        times[2:][times[2:] < 2.0 * LEAST_S] = 0.0
        if not self.of_sync[:, 2].any():
            times[4:] = times[2:4]
        elif not self.of_sync[:, 3].any():
            times[5] = times[3]
        return ThroughputModel(*(float(value) for value in (*times, x[6])))


def _overlap_slopes(
    grad: Floats, sync: Floats, gamma: float
) -> tuple[Floats, Floats, Floats, Floats]:
    """Return (grad^gamma + sync^gamma)^(1/gamma) and its derivatives by grad, sync and gamma."""
    longer = np.maximum(grad, sync)
    own, other = grad / longer, sync / longer
    own_power, other_power = own**gamma, other**gamma
    total = own_power + other_power
    log_total = np.log(total)
    last = longer * np.exp(log_total / gamma)
    share = last / total
    by_sync = np.divide(other_power * share, sync, out=np.zeros_like(sync), where=sync > 0.0)
    logs = own_power * np.log(own)
    logs += other_power * np.log(np.where(other > 0.0, other, 1.0))
    by_gamma = share * logs / gamma - last * log_total / gamma**2
    return last, own_power * share / grad, by_sync, by_gamma


def _log_rmse(predicted: Floats, log_measured: Floats) -> tuple[float, Floats]:
    """Return the RMSE of log `predicted` and its derivatives by `predicted`."""
    error = np.log(predicted) - log_measured
    rmse = math.sqrt(float(error @ error) / error.size + NEGLIGIBLE_ERROR**2)
    return rmse, error / (rmse * error.size * predicted)


def samples_check(samples: Sequence[ThroughputSample]) -> None:
    """Raise a ValueError if there is no sample, or an impossible one."""
    if not samples:
        raise ValueError("samples must hold at least one measurement")
    for sample in samples:
        is_count = sample.num_accelerators >= sample.num_nodes >= 1 and sample.num_slices >= 1
        is_time = 0.0 < sample.step_s < math.inf and 0.0 < sample.slice_size < math.inf
        if not is_count or not is_time:
            raise ValueError(
                f"a sample needs accelerators >= nodes >= 1, slices >= 1 and positive, finite "
                f"step_s and slice_size, got {sample}"
            )
