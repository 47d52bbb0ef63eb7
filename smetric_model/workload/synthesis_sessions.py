"""Session families: what their turns hold and when they come, independent of the arrival rate.

A *family* is a session that a user started, with the subagents' sessions it spawned.  Families are
drawn one after the other from streams of their own, each quantity from its own stream, so that
neither the rate nor the window changes what a family contains.
"""

from __future__ import annotations

import math
from dataclasses import dataclass, fields
from typing import Any

import numpy as np
import numpy.typing as npt

from smetric_model.workload.synthesis_distributions import mean_of_counts, quantile_of
from smetric_model.workload.synthesis_parameters import WorkloadParameters
from smetric_model.workload.synthesis_sections import zipf_shares

__all__ = ["Families", "FamilySource", "Streams", "mean_requests", "mean_sessions"]

FloatArray = npt.NDArray[np.float64]
IntArray = npt.NDArray[np.int64]

#: One stream of random numbers each.  New ones go to the end: the order is part of the result.
_SUBSYSTEMS = (
    "arrivals",
    "level",
    "framework",
    "toolset",
    "tenant",
    "turns",
    "size",
    "first_tokens",
    "user_turn",
    "tool_result_tokens",
    "user_tokens",
    "output_tokens",
    "rewrite_ratio",
    "edit",
    "kept_ratio",
    "summary_tokens",
    "tool_s",
    "human_s",
    "idle",
    "idle_s",
    "execution",
    "spawn",
    "children",
    "shared_ratio",
    "delay_s",
    "restored_tokens",
    "context_limit_tokens",
)


class Streams:
    """Random generators split from one seed by subsystem, population and level.

    Parameters
    ----------
    seed : int
    population : int
        0: families that start in the window; 1: before it.
    """

    def __init__(self, seed: int, population: int) -> None:
        self._seed = seed
        self._population = population
        self._made: dict[tuple[str, int], np.random.Generator] = {}

    def __call__(self, subsystem: str, level: int = 0) -> np.random.Generator:
        """Stream of a subsystem at a level of forks; the same object at every call."""
        key = (subsystem, level)
        if key not in self._made:
            # what SeedSequence(seed).spawn(…)[…].spawn(…)[…].spawn(…)[…] gives
            spawn_key = (_SUBSYSTEMS.index(subsystem), self._population, level)
            sequence = np.random.SeedSequence(self._seed, spawn_key=spawn_key)
            self._made[key] = np.random.default_rng(sequence)
        return self._made[key]


@dataclass(frozen=True, eq=False)
class Families:
    """Sessions and turns of some families, parents before the sessions they spawn.

    Attributes
    ----------
    family : ndarray of int64, shape (sessions,)
        Family of each session, counted from 0.
    framework, toolset, tenant : ndarray of int64, shape (sessions,)
    level : ndarray of int64, shape (sessions,)
        0: started by a user; 1: spawned by such a session; and so on.
    parent_row : ndarray of int64, shape (sessions,)
        Row of the turn that spawned the session; −1.
    turns : ndarray of int64, shape (sessions,)
        Number of turns; the rows below are those of session 0, then of session 1, …
    prompt_tokens, keep_tokens, output_tokens : ndarray of int64, shape (rows,)
        Prompt; how much of it the turn before (or the spawning one) held; output [tokens].
    trigger : ndarray of int8, shape (rows,)
        0 user, 1 agent, 2 compaction.
    think_time_s, e2e_s, arrival_s : ndarray of float64, shape (rows,)
        Arrivals count from the family's start [s]; a first turn's think time is NaN.
    """

    family: IntArray
    framework: IntArray
    toolset: IntArray
    tenant: IntArray
    level: IntArray
    parent_row: IntArray
    turns: IntArray
    prompt_tokens: IntArray
    keep_tokens: IntArray
    output_tokens: IntArray
    trigger: npt.NDArray[np.int8]
    think_time_s: FloatArray
    e2e_s: FloatArray
    arrival_s: FloatArray

    @property
    def offsets(self) -> IntArray:
        """Where each session's rows begin, shape (sessions + 1,)."""
        return _offsets(self.turns)

    @property
    def row_family(self) -> IntArray:
        """Family of each row."""
        return np.repeat(self.family, self.turns)

    @staticmethod
    def join(parts: list[Families]) -> Families:
        """Lay parts one after the other; families and rows are counted on."""
        values: dict[str, list[npt.NDArray[Any]]] = {f.name: [] for f in fields(Families)}
        families = rows = 0
        for part in parts:
            for name, collected in values.items():
                array = getattr(part, name)
                if name == "family":
                    array = array + families
                elif name == "parent_row":
                    array = np.where(array >= 0, array + rows, -1)
                collected.append(array)
            families += int(part.family.max(initial=-1)) + 1
            rows += part.prompt_tokens.size
        return Families(**{name: np.concatenate(arrays) for name, arrays in values.items()})

    def select(self, chosen: npt.NDArray[np.bool_]) -> Families:
        """Take some of the families, counted from 0 again.

        Parameters
        ----------
        chosen : ndarray of bool, shape (families,)
        """
        sessions = chosen[self.family]
        rows = np.repeat(sessions, self.turns)
        number = np.cumsum(chosen) - 1
        new_row = np.cumsum(rows) - 1
        values = {}
        for name in _PER_SESSION:
            values[name] = getattr(self, name)[sessions]
        for name in _PER_ROW:
            values[name] = getattr(self, name)[rows]
        values["family"] = number[values["family"]]
        parent = values["parent_row"]
        values["parent_row"] = np.where(parent >= 0, new_row[parent], -1)
        return Families(**values)


_PER_SESSION = ("family", "framework", "toolset", "tenant", "level", "parent_row", "turns")
_PER_ROW = tuple(f.name for f in fields(Families) if f.name not in _PER_SESSION)


def _offsets(counts: IntArray) -> IntArray:
    return np.concatenate(([0], np.cumsum(counts))).astype(np.int64)


def mean_requests(parameters: WorkloadParameters) -> float:
    """Mean number of requests of a family.

    Parameters
    ----------
    parameters : WorkloadParameters

    Returns
    -------
    float
        T·(1 + s·T_f·(1 + s·T_f·…)), T turns of a session, T_f of a subagent's, s subagents spawned
        a turn; as deep as forks go.
    """
    return _family_mean(parameters)[0]


def mean_sessions(parameters: WorkloadParameters) -> float:
    """Mean number of sessions of a family, subagents' included."""
    return _family_mean(parameters)[1]


def _family_mean(parameters: WorkloadParameters) -> tuple[float, float]:
    forks = parameters.forks
    turns = mean_of_counts(parameters.sessions.turns)
    requests, sessions = turns, 1.0
    if forks.spawn_ratio > 0:
        spawned = forks.spawn_ratio * mean_of_counts(forks.children)
        fork_turns = mean_of_counts(forks.turns)
        of_level = turns
        for _ in range(forks.levels):
            sessions += of_level * spawned
            of_level *= spawned * fork_turns
            requests += of_level
    return requests, sessions


class FamilySource:
    """Draws families one after the other.

    Parameters
    ----------
    parameters : WorkloadParameters
    streams : Streams
        Their state says which family comes next.
    """

    def __init__(self, parameters: WorkloadParameters, streams: Streams) -> None:
        self.parameters = parameters
        self.streams = streams
        self._prefix = parameters.frameworks.prefix_tokens()[1]

    def draw(self, count: int) -> Families:
        """Draw the next families.

        Parameters
        ----------
        count : int

        Returns
        -------
        Families
        """
        p = self.parameters
        frameworks = p.frameworks
        framework = _choose(self.streams("framework"), frameworks.shares(), count)
        tool_shares = zipf_shares(frameworks.toolsets, frameworks.zipf_exponent)
        toolset = _choose(self.streams("toolset"), tool_shares, count)
        tenant_shares = zipf_shares(p.tenants.count, p.tenants.zipf_exponent)
        tenant = _choose(self.streams("tenant"), tenant_shares, count)
        none = np.full(count, -1, np.int64)
        prefix = self._prefix[framework, toolset]
        root = self._level(0, np.arange(count), framework, toolset, tenant, none, prefix)
        levels = [root]
        if p.forks.spawn_ratio > 0:
            for level in range(1, p.forks.levels + 1):
                levels.append(self._spawn(level, levels[-1]))
        return self._timed(levels)

    def _level(
        self,
        level: int,
        family: IntArray,
        framework: IntArray,
        toolset: IntArray,
        tenant: IntArray,
        parent_row: IntArray,
        context: IntArray,
    ) -> Families:
        """Tokens and own times of the sessions of one level; arrivals from the session's start."""
        from scipy.special import ndtr

        from smetric_model.workload._synthesis_kernels import evolve

        p, shape = self.parameters, self.parameters.sessions
        count = family.size

        def stream(name: str) -> np.random.Generator:
            return self.streams(name, level)

        lengths = shape.turns if level == 0 else p.forks.turns
        length_score = stream("turns").standard_normal(count)
        turns = np.maximum(np.rint(lengths.quantile(ndtr(length_score))), 1).astype(np.int64)
        rows = int(turns.sum())
        size_score = _correlated(
            stream("size").standard_normal(count), length_score, shape.size_turns_correlation
        )
        size = np.exp(shape.size_sigma * size_score - shape.size_sigma**2 / 2)
        first_score = _correlated(
            stream("first_tokens").standard_normal(count),
            length_score,
            shape.first_turns_correlation,
        )
        first = _tokens(shape.first_tokens.quantile(ndtr(first_score)))
        limit = _tokens(shape.context_limit_tokens.draw(stream("context_limit_tokens"), count))
        largest = round(quantile_of(shape.context_limit_tokens, 1.0))
        limit = np.where(context + first > limit, largest, limit)
        user = np.zeros(rows, dtype=bool)
        if level == 0:
            user = stream("user_turn").random(rows) < shape.user_ratio
        new = np.empty(rows)
        by_agent = int(rows - user.sum())
        new[~user] = shape.tool_result_tokens.draw(stream("tool_result_tokens"), by_agent)
        new[user] = shape.user_tokens.draw(stream("user_tokens"), rows - by_agent)
        new *= np.repeat(size, turns)
        output = _tokens(shape.output_tokens.draw(stream("output_tokens"), rows))
        edit = stream("edit").random(rows)
        rewrite_ratio = self._rewrite_ratio(stream("rewrite_ratio"), count)
        kept = np.ones(rows)
        rewritten = edit < np.repeat(rewrite_ratio, turns)
        kept[rewritten] = p.history.kept_ratio.draw(stream("kept_ratio"), int(rewritten.sum()))
        summary = _tokens(p.history.summary_tokens.draw(stream("summary_tokens"), rows))
        restored = np.rint(p.history.restored_tokens.draw(stream("restored_tokens"), rows))
        trigger = np.where(user, 0, 1).astype(np.int8)
        offsets = _offsets(turns)
        trigger[offsets[:-1]] = 0 if level == 0 else 1
        prompt, keep = np.empty(rows, np.int64), np.empty(rows, np.int64)
        evolve(
            offsets,
            self._prefix[framework, toolset],
            context,
            first,
            _tokens(new),
            edit,
            rewrite_ratio,
            p.history.compaction_ratio,
            kept,
            float(p.history.replaced_ratio),
            float(shape.answer_kept_ratio),
            round(p.history.instruction_tokens),
            summary,
            restored.astype(np.int64),
            limit,
            output,
            trigger,
            prompt,
            keep,
        )
        think = self._think_times(user, level)
        think[offsets[:-1]] = np.nan
        execution = p.execution
        e2e = (
            execution.base_s
            + (prompt - keep) * execution.per_new_token_s
            + output * execution.per_output_token_s
        )
        if execution.sigma > 0:
            normal = stream("execution").standard_normal(rows)
            e2e *= np.exp(execution.sigma * normal - execution.sigma**2 / 2)
        return Families(
            family=family,
            framework=framework,
            toolset=toolset,
            tenant=tenant,
            level=np.full(count, level),
            parent_row=parent_row,
            turns=turns,
            prompt_tokens=prompt,
            keep_tokens=keep,
            output_tokens=output,
            trigger=trigger,
            # milliseconds, and time must pass: a turn arrives after the one it continues
            think_time_s=np.round(think, 3),
            e2e_s=np.maximum(np.round(e2e, 3), 1e-3),
            arrival_s=np.zeros(rows),
        )

    def _rewrite_ratio(self, rng: np.random.Generator, count: int) -> FloatArray:
        ratio, spread = (
            self.parameters.history.rewrite_ratio,
            self.parameters.history.rewrite_spread,
        )
        if min(spread, ratio, 1 - ratio) < 1e-9:
            return np.full(count, float(ratio))
        total = (1 - spread) / spread
        return rng.beta(ratio * total, (1 - ratio) * total, count)

    def _think_times(self, user: npt.NDArray[np.bool_], level: int) -> FloatArray:
        times = self.parameters.think
        humans = int(user.sum())
        human = times.human_s.draw(self.streams("human_s", level), humans)
        idle = self.streams("idle", level).random(humans) < times.idle_ratio
        human[idle] = times.idle_s.draw(self.streams("idle_s", level), int(idle.sum()))
        think = np.empty(user.size)
        think[user] = human
        think[~user] = times.tool_s.draw(self.streams("tool_s", level), user.size - humans)
        return think

    def _spawn(self, level: int, above: Families) -> Families:
        """Sessions spawned by the turns of the level above; parent rows count within that level."""
        forks = self.parameters.forks
        rows = above.prompt_tokens.size
        spawning = np.flatnonzero(self.streams("spawn", level).random(rows) < forks.spawn_ratio)
        children = forks.children.draw(self.streams("children", level), spawning.size)
        parent_row = np.repeat(spawning, np.maximum(np.rint(children), 1).astype(np.int64))
        shared = forks.shared_ratio.draw(self.streams("shared_ratio", level), parent_row.size)
        session = np.repeat(np.arange(above.turns.size), above.turns)[parent_row]
        prefix = self._prefix[above.framework[session], above.toolset[session]]
        history = np.maximum(above.prompt_tokens[parent_row] - prefix, 0)
        context = np.minimum(prefix, above.prompt_tokens[parent_row])
        context = context + np.floor(history * shared).astype(np.int64)
        return self._level(
            level,
            above.family[session],
            above.framework[session],
            above.toolset[session],
            above.tenant[session],
            parent_row,
            context,
        )

    def _timed(self, levels: list[Families]) -> Families:
        """Put the levels together: subagents delay their parents, parents start them."""
        forks = self.parameters.forks
        delays = [
            np.round(forks.delay_s.draw(self.streams("delay_s", number), part.turns.size), 3)
            for number, part in enumerate(levels)
            if number > 0
        ]
        duration = [np.zeros(0)] * len(levels)
        for number in range(len(levels) - 1, -1, -1):
            part = levels[number]
            if number + 1 < len(levels) and forks.joined:
                wait = np.zeros(part.prompt_tokens.size)
                below = levels[number + 1]
                np.maximum.at(wait, below.parent_row, delays[number] + duration[number + 1])
                # the next row is the next turn, unless it opens the next session (think time NaN)
                part.think_time_s[1:] = np.fmax(
                    part.think_time_s[1:],
                    np.where(np.isnan(part.think_time_s[1:]), np.nan, wait[:-1]),
                )
            offsets = part.offsets
            step = np.nan_to_num(part.think_time_s)
            step[1:] += part.e2e_s[:-1]
            # within a session only: a sum over all sessions would lose milliseconds
            step[offsets[:-1]] = 0.0
            _running_sums(step, offsets, part.arrival_s)
            last = offsets[1:] - 1
            duration[number] = part.arrival_s[last] + part.e2e_s[last]
        for number in range(1, len(levels)):
            part, above = levels[number], levels[number - 1]
            start = above.arrival_s[part.parent_row] + above.e2e_s[part.parent_row]
            part.arrival_s[:] += np.repeat(start + delays[number - 1], part.turns)
        return _stack(levels)


def _running_sums(step: FloatArray, offsets: IntArray, out: FloatArray) -> None:
    """Sum up within each session, in whole milliseconds."""
    total = np.cumsum(np.rint(step * 1e3).astype(np.int64))
    base = np.repeat(total[offsets[:-1]], np.diff(offsets))
    out[:] = (total - base) / 1e3


def _stack(levels: list[Families]) -> Families:
    """Lay the levels of the same families one after the other; rows are counted on."""
    if len(levels) == 1:
        return levels[0]
    first_row = np.cumsum([0] + [part.prompt_tokens.size for part in levels])
    values = {
        item.name: np.concatenate([getattr(part, item.name) for part in levels])
        for item in fields(Families)
    }
    values["parent_row"] = np.concatenate(
        [levels[0].parent_row]
        + [part.parent_row + first_row[number] for number, part in enumerate(levels[1:])]
    )
    return Families(**values)


def _correlated(own: FloatArray, other: FloatArray, correlation: float) -> FloatArray:
    """Mix normal scores so that they correlate with others."""
    result: FloatArray = correlation * other + math.sqrt(1 - correlation**2) * own
    return result


def _tokens(values: FloatArray) -> IntArray:
    result: IntArray = np.maximum(np.rint(values), 1).astype(np.int64)
    return result


def _choose(rng: np.random.Generator, shares: FloatArray, count: int) -> IntArray:
    result: IntArray = np.searchsorted(np.cumsum(shares)[:-1], rng.random(count), side="right")
    return result.astype(np.int64)
