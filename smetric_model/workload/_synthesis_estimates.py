"""Estimates of the generator's parameters, section by section; see ``synthesis_fit``."""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import numpy as np
import numpy.typing as npt

from smetric_model.workload.synthesis_distributions import (
    Constant,
    Distribution,
    LogNormal,
    Quantiles,
)
from smetric_model.workload.synthesis_parameters import (
    Execution,
    Forks,
    Frameworks,
    HistoryEdits,
    Sessions,
    ThinkTimes,
)

if TYPE_CHECKING:
    from smetric_model.workload.trace import Trace

__all__ = [
    "Facts",
    "describe",
    "digits",
    "estimate_execution",
    "estimate_forks",
    "estimate_frameworks",
    "estimate_sessions_and_history",
    "estimate_think_times",
]

FloatArray = npt.NDArray[np.float64]
IntArray = npt.NDArray[np.int64]

#: A log-normal this close to the values is preferred to a table of quantiles.
LOG_NORMAL_KS = 0.03
_SUMMARY_TOKENS = 2_000.0
#: Turns from which on a session's mean says something about the session.
_TURNS_FOR_FACTOR = 10
_SHARES = (
    0.0,
    0.01,
    0.05,
    0.1,
    0.2,
    0.3,
    0.4,
    0.5,
    0.6,
    0.7,
    0.8,
    0.9,
    0.95,
    0.98,
    0.99,
    0.998,
    0.9995,
    1.0,
)


def describe(values: npt.ArrayLike, *, floor: float = 1e-3) -> Distribution:
    """Distribution close to some values.

    Parameters
    ----------
    values : array_like
        At least one number; below ``floor`` they count as ``floor``.
    floor : float, default 0.001

    Returns
    -------
    Distribution
        A constant where all are equal; the log-normal with their median and middle two thirds, cut
        at their extremes, if its KS distance to them is at most 0.03; else a table of quantiles.
    """
    x = np.maximum(np.asarray(values, dtype=np.float64), floor)
    low, high = digits(float(x.min())), digits(float(x.max()))
    if low == high:
        return Constant(low)
    below, median, above = np.quantile(x, [0.1587, 0.5, 0.8413])
    fitted = LogNormal(digits(float(median)), digits(math.log(above / below) / 2), low, high)
    at = np.sort(x)
    steps = np.arange(at.size + 1) / at.size
    inside = fitted.below(at)
    if max(np.abs(inside - steps[1:]).max(), np.abs(inside - steps[:-1]).max()) <= LOG_NORMAL_KS:
        return fitted
    points = np.quantile(x, _SHARES)
    return Quantiles(
        tuple((share, digits(float(v))) for share, v in zip(_SHARES, points, strict=True))
    )


def digits(value: float) -> float:
    return float(f"{value:.4g}")


@dataclass(frozen=True, eq=False)
class Facts:
    """Columns of a trace and what follows from them, one value a request unless said otherwise."""

    trace: Trace
    block_tokens: int
    session: IntArray
    prompt: FloatArray
    output: FloatArray
    new: FloatArray  # prompt tokens beyond those shared with the turn before (all, for the first)
    kept: FloatArray  # tokens shared with the turn before
    before: IntArray  # row of the session's turn before; −1
    history: npt.NDArray[Any]
    trigger: npt.NDArray[Any]
    first: IntArray  # row of each session's first request, by session
    spawned: npt.NDArray[np.bool_]  # by session
    common: IntArray  # tokens of the common prefix

    @staticmethod
    def of(trace: Trace) -> Facts:
        from smetric_model.workload.origin import common_prefix_blocks
        from smetric_model.workload.sessions import turn_table

        _, block_tokens = trace.require_tree()
        session = trace.require_sessions()
        table = turn_table(trace)
        parent = trace.column("parent")
        same = (parent >= 0) & (session[np.maximum(parent, 0)] == session)
        before = np.where(same, parent, -1)
        prompt = trace.column("prompt_tokens").astype(np.float64)
        # a turn that keeps all of the path keeps the whole prompt, its last partial block too
        ratio = np.nan_to_num(table["kept_ratio"].to_numpy(dtype=np.float64))
        before_prompt = prompt[np.maximum(before, 0)]
        history = table["history"].astype(str).to_numpy()
        kept = np.where(
            history == "append", before_prompt, np.minimum(ratio * before_prompt, prompt)
        )
        kept = np.where(before >= 0, np.minimum(kept, prompt), 0.0)
        _, first = np.unique(session, return_index=True)
        above = parent[first]
        return Facts(
            trace=trace,
            block_tokens=block_tokens,
            session=session,
            prompt=prompt,
            output=trace.column("output_tokens").astype(np.float64),
            new=prompt - kept,
            kept=kept,
            before=before,
            history=history,
            trigger=table["trigger"].astype(str).to_numpy(),
            first=first,
            spawned=(above >= 0) & (session[np.maximum(above, 0)] != np.arange(first.size)),
            common=common_prefix_blocks(trace) * block_tokens,
        )


def estimate_frameworks(facts: Facts) -> tuple[Frameworks, FloatArray]:
    """Frameworks, and the shared prefix of each session [tokens]."""
    prefix = facts.common[facts.first].astype(np.float64)
    tree, _ = facts.trace.require_tree()
    with_prefix = np.flatnonzero(prefix > 0)
    if not with_prefix.size:
        none = Frameworks(count=1, system_tokens=Constant(0.0), tool_tokens=Constant(0.0))
        return none, prefix
    # sessions of one framework begin with the same prefix: the segment in which it ends, its length
    segment = _segment_at(
        tree.parent,
        tree.start_block,
        tree.request_segment[facts.first[with_prefix]],
        facts.common[facts.first[with_prefix]] // facts.block_tokens,
    )
    keys = np.stack([segment, prefix[with_prefix].astype(np.int64)])
    _, counts = np.unique(keys, axis=1, return_counts=True)
    ranked = np.sort(counts)[::-1]
    exponent = 0.0
    if ranked.size > 1:
        slope = np.polyfit(np.log(np.arange(1, ranked.size + 1)), np.log(ranked), 1)[0]
        exponent = digits(min(max(-float(slope), 0.0), 10.0))
    return (
        Frameworks(
            count=int(ranked.size),
            zipf_exponent=exponent,
            system_tokens=describe(prefix[with_prefix], floor=1.0),
            tool_tokens=Constant(0.0),
        ),
        prefix,
    )


def _segment_at(
    parent: npt.NDArray[np.int32], start: IntArray, segment: npt.NDArray[np.int32], depth: IntArray
) -> IntArray:
    """Walk up to the segment that holds the block before ``depth``."""
    at = segment.astype(np.int64)
    while True:
        high = (start[at] >= depth) & (parent[at] >= 0)
        if not high.any():
            return at
        at = np.where(high, parent[at], at)


def estimate_sessions_and_history(
    facts: Facts, prefix: FloatArray, notes: list[str]
) -> tuple[Sessions, HistoryEdits]:
    turns = np.bincount(facts.session)
    roots = ~facts.spawned
    later = facts.before >= 0
    own_prefix = prefix[facts.session]
    out_before = facts.output[np.maximum(facts.before, 0)]
    append = later & (facts.history == "append")
    user = facts.trigger == "user"
    in_roots = roots[facts.session]
    added = np.maximum(facts.new - out_before, 1.0)

    # a session under way when the trace begins does not show its first prompt
    whole = roots & (facts.trace.column("turn")[facts.first] == 0)
    whole = whole if whole.any() else roots
    first = np.maximum(facts.prompt[facts.first[whole]] - prefix[whole], 1.0)
    rows = np.flatnonzero(append)
    size, sigma = _session_factor(added[rows], facts.session[rows], turns.size)
    added = added / size[facts.session]
    many = roots & (turns >= _TURNS_FOR_FACTOR)

    def of(chosen: npt.NDArray[np.bool_], fallback: Distribution) -> Distribution:
        return describe(added[chosen], floor=1.0) if chosen.any() else fallback

    everything = of(append, Constant(1.0))
    if not append.any():
        notes.append("new tokens: no turn continues another; 1 stands in")
    sessions = Sessions(
        turns=_turns(facts, roots),
        first_tokens=describe(first, floor=1.0),
        tool_result_tokens=of(append & ~user, everything),
        user_tokens=of(append & user, everything),
        size_sigma=digits(sigma),
        first_turns_correlation=_correlation(first, turns[whole]),
        size_turns_correlation=_correlation(size[many], turns[many]) if sigma > 0 else 0.0,
        output_tokens=describe(facts.output, floor=1.0),
        answer_kept_ratio=1.0,
        user_ratio=_share(user & later & in_roots, later & in_roots),
        context_limit_tokens=_context_limit(facts, float(prefix.max())),
    )

    rewritten = later & (facts.history == "rewritten")
    reset = later & (facts.history == "reset")
    fixed = np.minimum(own_prefix, facts.prompt[np.maximum(facts.before, 0)])
    before_history = facts.prompt[np.maximum(facts.before, 0)] - fixed
    stays = np.clip((facts.kept - fixed) / np.maximum(before_history, 1.0), 0.0, 1.0)
    usual = float(np.median(added[append])) if append.any() else 0.0
    removed = float((before_history * (1 - stays))[rewritten].sum())
    back = float((facts.new - out_before - usual)[rewritten].sum())
    history = HistoryEdits(
        rewrite_ratio=_share(rewritten, later),
        rewrite_spread=_spread(facts, rewritten, later),
        kept_ratio=_ratios(stays[rewritten]),
        replaced_ratio=digits(min(max(back / removed, 0.0), 2.0)) if removed > 0 else 1.0,
        compaction_ratio=0.0,  # all resets are put down to the context limit
        instruction_tokens=1.0,
        restored_tokens=describe(
            np.maximum(facts.prompt - fixed - usual - _SUMMARY_TOKENS, 1.0)[reset], floor=1.0
        )
        if reset.any()
        else Constant(0.0),
        summary_tokens=Constant(_SUMMARY_TOKENS),
    )
    if reset.any():
        notes.append(f"summaries: their length is not told; {_SUMMARY_TOKENS:g} tokens")
    return sessions, history


def _correlation(one: npt.NDArray[Any], two: npt.NDArray[Any]) -> float:
    """Correlation of the normal scores of the ranks."""
    from scipy.special import ndtri
    from scipy.stats import rankdata

    if one.size < 3 or np.ptp(one) == 0 or np.ptp(two) == 0:
        return 0.0
    scores = [ndtri(rankdata(x) / (x.size + 1)) for x in (one, two)]
    matrix = np.asarray(np.corrcoef(np.stack(scores)), dtype=np.float64)
    return digits(float(np.clip(matrix[0, 1], -1.0, 1.0)))


def _turns(facts: Facts, roots: npt.NDArray[np.bool_]) -> Distribution:
    """Estimate the turns of a session where the ends of the trace cut some.

    Product-limit estimate with late entry: a session counts from its first turn in the trace on; it
    is cut where less than the 95th percentile of start-to-start gaps lies between its last request
    and the end of the trace.
    """
    turn = facts.trace.column("turn")
    arrival = facts.trace.column("arrival_s")
    last = np.zeros(facts.first.size, np.int64)
    last[facts.session] = np.arange(facts.session.size)  # rows come in order of arrival
    entry, length = turn[facts.first], turn[last] + 1
    cut = np.zeros(facts.first.size, dtype=bool)
    later = facts.before >= 0
    if facts.trace.session_clock == "shared" and later.any():
        gap = float(np.quantile(arrival[later] - arrival[facts.before[later]], 0.95))
        cut = arrival[last] + gap > arrival.max()
    entry, length, cut = entry[roots], length[roots], cut[roots]
    if not cut.any() and not entry.any():
        return describe(length, floor=1.0)
    if cut.all():
        return describe(length, floor=1.0)
    values = np.unique(length[~cut])
    # a session cut after its v-th turn in the trace does not tell whether it was the last
    at_risk = np.array(
        [((entry < v) & ((length > v) | (~cut & (length == v)))).sum() for v in values]
    )
    ended = np.array([((length == v) & ~cut).sum() for v in values])
    share = 1.0 - np.cumprod(1.0 - ended / at_risk)
    # draws of that law, for a description like any other; what lives longest lives to the maximum
    at = (np.arange(2_000) + 0.5) / 2_000
    place = np.searchsorted(share, at)
    drawn = np.where(place < values.size, values[np.minimum(place, values.size - 1)], length.max())
    return describe(drawn, floor=1.0)


def _context_limit(facts: Facts, longest_prefix: float) -> Distribution:
    """Estimate the prompt length at which sessions compact (product limit).

    A run of turns counts from its first prompt on (one that begins beyond a limit says nothing
    about it: the generator gives it the upper end).  It ends in a reset (the limit was reached at
    its longest prompt) or with the session (the limit lies above it).  What is left beyond the
    longest such run is put at the longest prompt of all.
    """
    reset = facts.history == "reset"
    order = np.lexsort((np.arange(facts.session.size), facts.session))
    starts = np.ones(order.size, dtype=bool)
    starts[1:] = np.diff(facts.session[order]) != 0
    run = np.cumsum(starts | reset[order]) - 1
    longest = np.zeros(int(run[-1]) + 1)
    np.maximum.at(longest, run, facts.prompt[order])
    # the run before one that begins with a reset ended in it
    ended = np.zeros(longest.size, dtype=bool)
    first_of_run = np.searchsorted(run, np.arange(longest.size))
    ended[:-1] = ~starts[first_of_run[1:]]
    entry = facts.prompt[order][first_of_run]
    top = float(facts.prompt.max()) + 1.0
    values = np.unique(longest[ended])
    values = values[values > longest_prefix]  # shorter ones are no matter of a full context
    if not values.size:
        return Constant(top)
    at_risk = np.array([((entry < v) & (longest >= v)).sum() for v in values])
    events = np.array([(ended & (longest == v)).sum() for v in values])
    # a run of one prompt is at risk there
    share = 1.0 - np.cumprod(1.0 - events / np.maximum(at_risk, events))
    points = [(0.0, float(values[0]))]
    for reached, value in zip(share.tolist(), values.tolist(), strict=True):
        if reached > 1 - 1e-6:  # nobody is left
            return Quantiles((*points, (1.0, value)))
        if reached > points[-1][0]:
            points.append((reached, value))
    return Quantiles((*points, (points[-1][0] + 1e-9, top), (1.0, top)))


def _session_factor(new: FloatArray, session: IntArray, count: int) -> tuple[FloatArray, float]:
    """Factor of each session, mean 1, and the sigma of its distribution.

    Random effects on the logarithm of the sessions' mean new tokens: the variance that single turns
    bring into a mean is taken off, and each session's factor is drawn towards 1 by its share.
    """
    turns = np.bincount(session, minlength=count).astype(np.float64)
    many = turns >= _TURNS_FOR_FACTOR
    if many.sum() < 3:
        return np.ones(count), 0.0
    mean = np.bincount(session, weights=new, minlength=count) / np.maximum(turns, 1)
    overall = float(new.mean())
    # relative variance of one turn within its session
    relative = float(np.mean((new / np.maximum(mean[session], 1e-9) - 1) ** 2))
    log_mean = np.log(np.maximum(mean, 1.0) / overall)
    noise = np.log1p(relative / np.maximum(turns, 1))
    between = max(float(np.var(log_mean[many], ddof=1) - noise[many].mean()), 0.0)
    weight = between / (between + noise) if between > 0 else np.zeros(count)
    factor = np.exp(np.where(turns > 0, weight * log_mean, 0.0))
    # sessions count by their turns here: what they add, divided by their factors, keeps its sum
    return factor, math.sqrt(between)


def _spread(facts: Facts, event: npt.NDArray[np.bool_], later: npt.NDArray[np.bool_]) -> float:
    """Correlation between two turns of a session, by the analysis of variance of 0-1 data."""
    n = np.bincount(facts.session[later], minlength=facts.first.size).astype(np.float64)
    k = np.bincount(facts.session[event], minlength=facts.first.size).astype(np.float64)
    n, k = n[n > 0], k[n > 0]
    if n.size < 2 or n.sum() <= n.size or k.sum() == 0:
        return 0.0
    mean = k.sum() / n.sum()
    between = float((n * (k / n - mean) ** 2).sum() / (n.size - 1))
    within = float((k * (1 - k / n)).sum() / (n.sum() - n.size))
    size = (n.sum() - (n**2).sum() / n.sum()) / (n.size - 1)
    total = between + (size - 1) * within
    return digits(min(max((between - within) / total, 0.0), 0.99)) if total > 0 else 0.0


def _ratios(values: FloatArray) -> Distribution:
    if not values.size:
        return Constant(0.5)
    if np.ptp(values) == 0:
        return Constant(digits(float(values[0])))
    points = np.minimum(np.quantile(values, _SHARES), 1.0)
    return Quantiles(
        tuple((share, digits(float(v))) for share, v in zip(_SHARES, points, strict=True))
    )


def _share(part: npt.NDArray[np.bool_], whole: npt.NDArray[np.bool_]) -> float:
    return digits(float(part.sum() / max(whole.sum(), 1)))


def estimate_execution(facts: Facts, notes: list[str]) -> Execution:
    """Non-negative least squares of the relative error."""
    from scipy.optimize import nnls

    from smetric_model.workload.reuse import ideal_reuse

    time = facts.trace.column("e2e_s").astype(np.float64)
    # a first turn finds what is shared; what one in progress had before the trace is not known
    first = facts.trace.column("turn") == 0
    new = np.where(first, facts.prompt - ideal_reuse(facts.trace), facts.new)
    known = np.flatnonzero((time > 0) & (first | (facts.before >= 0)))
    if known.size < 10:
        notes.append("execution: the trace records no completions; the defaults stand in")
        return Execution()
    matrix = np.stack([np.ones(known.size), new[known], facts.output[known]], axis=1)
    # slow outliers must not make typical requests negative: divide by the time itself
    factors, _ = nnls(matrix / time[known, None], np.ones(known.size))
    fitted = np.maximum(matrix @ factors, 1e-3)
    log_ratio = np.log(time[known] / fitted)
    sigma = float(np.std(log_ratio))
    factors = factors * math.exp(float(log_ratio.mean()) + sigma**2 / 2)
    base_s, per_new_token_s, per_output_token_s = (digits(float(f)) for f in factors)
    return Execution(base_s, per_new_token_s, per_output_token_s, digits(sigma))


def estimate_think_times(facts: Facts, execution: Execution, notes: list[str]) -> ThinkTimes:
    think = facts.trace.column("think_time_s").astype(np.float64).copy()
    later = facts.before >= 0
    missing = later & np.isnan(think)
    if missing.any():
        notes.append(
            f"think times: {int(missing.sum())} of {int(later.sum())} unknown; "
            "start to start less the execution time of the parameters"
        )
        arrival = facts.trace.column("arrival_s")
        before = facts.before[missing]
        stated = (
            execution.base_s
            + facts.new[before] * execution.per_new_token_s
            + facts.output[before] * execution.per_output_token_s
        )
        think[missing] = np.maximum(arrival[missing] - arrival[before] - stated, 0.0)
    user = later & (facts.trigger == "user")
    agent = later & ~user
    tool = describe(think[agent]) if agent.any() else ThinkTimes().tool_s
    human = describe(think[user]) if user.any() else ThinkTimes().human_s
    if later.any() and not user.any():
        notes.append("triggers: none is the user's; think times of all turns are the agent's")
    return ThinkTimes(tool_s=tool, human_s=human, idle_s=ThinkTimes().idle_s, idle_ratio=0.0)


def estimate_forks(facts: Facts, prefix: FloatArray) -> Forks:
    """Subagents: sessions whose first request has a parent in another session."""
    from smetric_model.workload._reuse_kernels import shared_blocks

    if not facts.spawned.any():
        return Forks()
    tree, block_tokens = facts.trace.require_tree()
    parent = facts.trace.column("parent")
    child_first = facts.first[facts.spawned]
    above = parent[child_first]
    shared = np.empty(above.size, np.int64)
    shared_blocks(
        tree.parent,
        tree.end_block,
        tree.request_segment,
        tree.request_blocks,
        child_first,
        above,
        shared,
    )
    fixed = np.minimum(prefix[facts.session[above]], facts.prompt[above])
    whole = np.maximum(facts.prompt[above] // block_tokens * block_tokens - fixed, 1.0)
    ratio = np.clip((shared * block_tokens - fixed) / whole, 0.0, 1.0)
    _, children = np.unique(above, return_counts=True)
    arrival = facts.trace.column("arrival_s")
    done = arrival + np.nan_to_num(facts.trace.column("e2e_s"))
    ends = np.full(facts.first.size, -np.inf)
    np.maximum.at(ends, facts.session, done)
    # the parent's next turn: does it come after its subagents have finished?
    following = np.full(len(facts.trace), -1)
    rows = np.flatnonzero(facts.before >= 0)
    following[facts.before[rows]] = rows
    after = following[above]
    waits = arrival[np.maximum(after, 0)] >= ends[facts.spawned] - 1.0
    joined = bool(np.mean(waits[after >= 0]) > 0.5) if (after >= 0).any() else False
    in_roots = ~facts.spawned[facts.session]
    return Forks(
        spawn_ratio=digits(float(np.unique(above).size / max(in_roots.sum(), 1))),
        children=describe(children, floor=1.0),
        shared_ratio=_ratios(ratio),
        turns=describe(np.bincount(facts.session)[facts.spawned], floor=1.0),
        delay_s=describe(np.maximum(arrival[child_first] - done[above], 0.0)),
        joined=joined,
    )
