"""Pollux' genetic search for placements (OSDI 2021, section 4.2), on whole populations at once.

A state holds each job's number of accelerators on each node: integers of shape (jobs, nodes). A
population has shape (states, jobs, nodes). Rows come in the order in which jobs win a conflict.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

Floats = NDArray[np.float64]
Counts = NDArray[np.int16]
Flags = NDArray[np.bool_]

POPULATION = 100
GENERATIONS = 100

#: A search ends after so many generations without improvement, and one more for every four
#: elements of a state: never early where there is much to place.
PATIENCE = 5

#: Chance of a row to be reset to the job's present places, chance of a row to lose elements, and
#: chance of each of its elements to be lost.
RESET_CHANCE = 0.1
LOSS_CHANCE = 0.1
ELEMENT_LOSS_CHANCE = 0.1

#: Largest number of nodes of a job.
MOST_NODES = 16

#: Added to every speed-up, so that a job without accelerators is bad but not infinitely so.
FLOOR = 1e-3

#: Elements processed by a search at most; beyond, generations are reduced, then states.
EFFORT = 100_000_000
FEWEST_STATES = 4


@dataclass(frozen=True, slots=True)
class Problem:
    """One placement problem.

    Attributes:
        base: accelerators that jobs hold now. Shape (jobs, nodes).
        room: accelerators of each node. Shape (nodes,).
        least, most: bounds of a job's count unless it is 0. Shape (jobs,).
        pinned: jobs whose row stays as it is. Shape (jobs,).
        weights: weight of each job in the fitness. Shape (jobs,).
        keep: part of a job's speed-up that one more change of its row leaves. Shape (jobs,).
        speedups: speed-ups on one node, and on several. Shape (jobs, 2, largest count + 1).
    """

    base: Counts
    room: Counts
    least: Counts
    most: Counts
    pinned: Flags
    weights: Floats
    keep: Floats
    speedups: Floats


def speedups_of(problem: Problem, states: Counts) -> Floats:
    """Return the speed-up of every job in every state. Shape (states, jobs)."""
    counts = states.sum(axis=2, dtype=np.intp)
    is_spread = np.count_nonzero(states, axis=2) > 1
    rows = np.arange(states.shape[1])
    found: Floats = problem.speedups[rows, is_spread.astype(np.intp), counts]
    return found


def fitness(problem: Problem, states: Counts) -> Floats:
    """Return the weighted harmonic mean of scaled speed-ups (power mean, p = -1) of each state.

    A speed-up is scaled so that a node's worth of accelerators counts about 1. Shape (states,).
    """
    scale = len(problem.room) / float(problem.room.sum())
    changed = (states != problem.base).any(axis=2)
    scaled = speedups_of(problem, states) * np.where(changed, problem.keep, 1.0) * scale + FLOOR
    return np.asarray(problem.weights.sum() / (problem.weights / scaled).sum(axis=1), dtype=float)


def search(
    problem: Problem, population: Counts, random: np.random.Generator
) -> tuple[Counts, Floats]:
    """Breed a population; return it with its fitness, the fittest first.

    Args:
        population: initial states; the present state is always added.

    The repaired present state stays in the population unless a hundred fitter ones displace it.
    """
    num_jobs, num_nodes = problem.base.shape
    size, generations = _effort(num_jobs, num_nodes)
    started = np.concatenate([problem.base[None], population[: size - 1]]).astype(np.int16)
    copies = started[np.arange(size - len(started)) % len(started)]
    states = np.concatenate([started, _mutate(problem, copies, random)])
    states = repair(problem, states, random)
    values = fitness(problem, states)
    order = np.argsort(-values, kind="stable")
    states, values = states[order], values[order]
    num_idle = 0
    for _ in range(generations):
        best = values[0]
        children = _cross(states, values, random)
        children = repair(problem, _mutate(problem, children, random), random)
        states = np.concatenate([states, children])
        values = np.concatenate([values, fitness(problem, children)])
        kept = _fittest(states, values, size)
        states, values = states[kept], values[kept]
        num_idle = 0 if values[0] > best else num_idle + 1
        if num_idle > PATIENCE + num_jobs * num_nodes // 4:
            break
    return states, values


def _effort(num_jobs: int, num_nodes: int) -> tuple[int, int]:
    """Return the number of states and of generations: fewer for a huge problem."""
    elements = max(num_jobs * num_nodes, 1)
    size = max(min(POPULATION, EFFORT // (GENERATIONS * elements)), FEWEST_STATES)
    affordable = max(EFFORT // (elements * POPULATION), 1)
    return size, min(GENERATIONS, affordable)


def _fittest(states: Counts, values: Floats, size: int) -> NDArray[np.intp]:
    """Choose the fittest distinct states, older ones first among equals; repeats fill up."""
    flat = states.reshape(len(states), -1)
    marks = np.random.default_rng(0).integers(1 << 48, size=flat.shape[1])
    _, first = np.unique(flat @ marks, return_index=True)
    is_repeat = np.ones(len(states), dtype=bool)
    is_repeat[first] = False
    order = np.lexsort((np.arange(len(states)), -values, is_repeat))
    return order[:size]


def _cross(states: Counts, values: Floats, random: np.random.Generator) -> Counts:
    """Mate winners of tournaments of two: the rows up to one point are exchanged."""
    size, num_jobs, _ = states.shape
    drawn = random.integers(size, size=(2, size))
    winners = np.where(values[drawn[0]] >= values[drawn[1]], drawn[0], drawn[1])
    mothers, fathers = winners, np.roll(winners, 1)
    points = random.integers(num_jobs, size=(size, 1))
    of_mother = np.arange(num_jobs) < points
    children: Counts = np.where(of_mother[:, :, None], states[mothers], states[fathers])
    return children


def _mutate(problem: Problem, states: Counts, random: np.random.Generator) -> Counts:
    """Reset rows, empty elements, and grow elements on nodes that have room."""
    states = states.copy()
    size, num_jobs, num_nodes = states.shape
    reset = random.random((size, num_jobs)) < RESET_CHANCE
    states[reset] = problem.base[np.nonzero(reset)[1]]
    losing = np.nonzero(random.random((size, num_jobs)) < LOSS_CHANCE)
    lost = random.random((len(losing[0]), num_nodes)) < ELEMENT_LOSS_CHANCE
    states[losing] = np.where(lost, 0, states[losing])
    of_state, node = np.nonzero(states.sum(axis=1) < problem.room)
    columns = states[of_state, :, node]
    present = columns > 0
    chance = present / np.maximum(present.sum(axis=1, keepdims=True), 1)
    chance = chance + (1.0 - chance) / num_jobs
    grown, row = np.nonzero(random.random(columns.shape) < chance)
    before = columns[grown, row]
    more = problem.room[node[grown]] - before + 1
    after = before + (random.random(len(grown)) * more).astype(np.int16)
    states[of_state[grown], row, node[grown]] = after
    return states


def repair(problem: Problem, states: Counts, random: np.random.Generator) -> Counts:
    """Make states feasible with as few changes as possible; earlier rows win."""
    states = states.copy()
    states[:, problem.pinned] = problem.base[problem.pinned]
    _separate(problem, states)
    _cap(problem, states, random)
    of_state, node = np.nonzero(states.sum(axis=1) > problem.room)
    crowded = np.minimum(np.cumsum(states[of_state, :, node], axis=1), problem.room[node][:, None])
    states[of_state, :, node] = np.diff(crowded, axis=1, prepend=0)
    _complete(problem, states)
    return states


def _separate(problem: Problem, states: Counts) -> None:
    """Leave at most one job that spans nodes on any node."""
    spanning = np.count_nonzero(states, axis=2) > 1
    of_state, row = np.nonzero(spanning)
    marked = np.zeros(states.shape, dtype=np.int16)
    marked[of_state, row] = states[of_state, row] > 0
    late = (np.cumsum(marked, axis=1, dtype=np.int16) > 1) & (marked > 0)
    late[:, problem.pinned] = False
    states[late] = 0


def _cap(problem: Problem, states: Counts, random: np.random.Generator) -> None:
    """Cut rows with too many accelerators or nodes, in random order of nodes."""
    too_many = states.sum(axis=2) > problem.most
    if states.shape[2] > MOST_NODES:
        too_many |= np.count_nonzero(states, axis=2) > MOST_NODES
    too_many[:, problem.pinned] = False
    of_state, job = np.nonzero(too_many)
    if not len(of_state):
        return
    rows = states[of_state, job]
    order = np.argsort(random.random(rows.shape), axis=1)
    rows = np.take_along_axis(rows, order, axis=1)
    rows = np.where(np.cumsum(rows > 0, axis=1) > MOST_NODES, 0, rows)
    rows = np.minimum(np.cumsum(rows, axis=1), problem.most[job][:, None])
    rows = np.diff(rows, axis=1, prepend=0).astype(np.int16)
    states[of_state, job] = np.take_along_axis(rows, np.argsort(order, axis=1), axis=1)


def _complete(problem: Problem, states: Counts) -> None:
    """Bring rows below a job's minimum up to it from free room, or empty them.

    Pollux only empties them. Its jobs can all run on one accelerator; here, chance alone would
    seldom find places for many at once.
    """
    for job in np.nonzero((problem.least > 1) & ~problem.pinned)[0]:
        counts = states[:, job].sum(axis=1)
        short = np.nonzero((counts > 0) & (counts < problem.least[job]))[0]
        if not len(short):
            continue
        some = states[short]
        free = np.maximum(problem.room - some.sum(axis=1), 0)
        others = np.count_nonzero(some, axis=2) > 1
        others[:, job] = False
        is_taken = ((some > 0) & others[:, :, None]).any(axis=1)
        own = some[:, job]
        usable = np.where(is_taken, 0, free)
        enough = own + free >= problem.least[job]
        alone, best = enough.any(axis=1), np.where(enough, 1 + own, 0).argmax(axis=1)
        order = np.argsort(-(usable + 1000 * (own > 0)), axis=1, kind="stable")
        wanted = (problem.least[job] - own.sum(axis=1))[:, None]
        sorted_room = np.take_along_axis(usable, order, axis=1)
        taken = np.diff(np.minimum(np.cumsum(sorted_room, axis=1), wanted), axis=1, prepend=0)
        added = np.take_along_axis(taken, np.argsort(order, axis=1), axis=1)
        rows = own + added
        fits = (rows.sum(axis=1) >= problem.least[job]) & ~((rows > 0) & is_taken).any(axis=1)
        fits &= np.count_nonzero(rows, axis=1) <= MOST_NODES
        rows = np.where(fits[:, None], rows, 0)
        packed = np.zeros_like(rows)
        packed[np.arange(len(rows)), best] = problem.least[job]
        states[short, job] = np.where(alone[:, None], packed, rows)


def settle(problem: Problem, state: Counts) -> Counts:
    """Revert changes of rows that make a state no fitter, one after the other.

    A state with very many changes, as in a first decision, is left as it is.
    """
    random = np.random.default_rng(0)
    effort = 0
    for _ in range(len(state)):
        changed = np.nonzero((state != problem.base).any(axis=1))[0]
        effort += len(changed) * state.size
        if not len(changed) or effort > EFFORT:
            break
        tried = np.repeat(state[None], len(changed), axis=0)
        tried[np.arange(len(changed)), changed] = problem.base[changed]
        is_possible = (repair(problem, tried, random) == tried).all(axis=(1, 2))
        values = np.where(is_possible, fitness(problem, tried), -1.0)
        best = int(np.argmax(values))
        if values[best] < fitness(problem, state[None])[0]:
            break
        state = tried[best]
    return state


def packed_minima(problem: Problem) -> Counts:
    """Return the state in which each job in turn has its minimum, on as few nodes as possible."""
    state = np.zeros_like(problem.base)
    state[problem.pinned] = problem.base[problem.pinned]
    free = problem.room - state.sum(axis=0)
    for job in np.nonzero(~problem.pinned)[0]:
        needed = int(problem.least[job])
        if needed > free.sum():
            continue
        enough = np.nonzero(free >= needed)[0]
        nodes = enough[[np.argmin(free[enough])]] if len(enough) else np.argsort(-free)
        for node in nodes:
            taken = min(needed, int(free[node]))
            state[job, node] += taken
            free[node] -= taken
            needed -= taken
    return state
