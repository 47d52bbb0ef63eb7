"""Advice on thresholds in words."""

from __future__ import annotations

import math
from typing import TYPE_CHECKING

from smetric_model.analytic.thresholds import LEAST_OVERLOAD
from smetric_model.planning.words import byte_size, number, percent

if TYPE_CHECKING:
    from smetric_model.tuning.results import Needs, Tuning
    from smetric_model.tuning.situation import Situation

__all__ = ["advice", "needs_words", "threshold"]

#: the pair that is usual, to compare with
USUAL = (2.0, 0.5)

_COSTS = {
    "fetch_s": (
        "the fetch of its KV",
        "a faster link, or less KV per token, would lower OVERLOAD*",
    ),
    "recompute_s": (
        "computing its KV again",
        "a larger global tier would lower OVERLOAD*",
    ),
    "link_s": (
        "the transfers it slows down",
        "a faster link, or more interfaces a node, would lower OVERLOAD*",
    ),
    "others_recompute_s": (
        "the requests that its recomputation delays",
        "a larger global tier, or less load, would lower OVERLOAD*",
    ),
    "dead_copy_s": (
        "the room its dead copy takes",
        "a larger local tier (fewer requests an instance, smaller KV) would lower OVERLOAD*",
    ),
}


def threshold(value: float) -> str:
    """Return a threshold for people: two digits after the point, or "never"."""
    return "inf (never)" if math.isinf(value) else f"{value:.2f}".rstrip("0").rstrip(".")


def advice(tuning: Tuning) -> tuple[str, ...]:
    """Return the advice of a tuning, a sentence or two each.

    Parameters
    ----------
    tuning : Tuning

    Returns
    -------
    tuple of str
    """
    lines = [_headline(tuning), _why(tuning), _loads(tuning.situation)]
    lines += [line for line in (_movers(tuning), _usual(tuning), _plateau(tuning)) if line]
    lines.append(_low_hits(tuning.situation))
    return tuple(lines)


def _headline(tuning: Tuning) -> str:
    pair = f"OVERLOAD {threshold(tuning.overload)}, HIT_RATIO {threshold(tuning.hit_ratio)}"
    if tuning.best.total_within_slo_tps <= 0:
        return (
            f"{pair} by the closed form alone: no pair of thresholds is predicted to serve"
            f" {number(tuning.rate_rps)} requests/s within SLO."
        )
    if not tuning.matters:
        return (
            f"The thresholds do not matter here: the pairs tried differ by"
            f" {percent(tuning.spread_ratio)} in tokens within SLO. {pair} will do."
        )
    return (
        f"{pair}: {number(tuning.best.total_within_slo_tps)} tokens/s within SLO at most; the worst"
        f" pair tried loses {percent(tuning.spread_ratio)}."
    )


def _why(tuning: Tuning) -> str:
    s = tuning.situation
    cost = s.cost
    if cost.social_s <= 0:
        return "A move costs nothing here: a follow-up hits at home no more than elsewhere."
    name = _largest(s)
    parts = f"most of it {_COSTS[name][0]} ({number(getattr(cost, name), 2)} s)"
    return (
        f"A move costs {number(cost.social_s, 2)} request-seconds for"
        f" {number(s.moved_tokens)} tokens, {parts}, and joining one request fewer saves"
        f" {number(s.saving_s, 2)}: leaving pays from a home load of"
        f" {number(s.social_overload * s.service.mean_load, 2)} on, OVERLOAD*"
        f" {threshold(s.social_overload)}. A request that minds only its own time"
        f" ({number(cost.private_s, 2)} s) would leave from OVERLOAD"
        f" {threshold(s.private_overload)} on."
    )


def _loads(s: Situation) -> str:
    return (
        f"An instance serves {number(s.service.mean_load, 2)} requests on average; those that may"
        f" choose join one with {s.receiver_load:.2f}, and"
        f" {percent(s.migrated_ratio)} of the follow-ups move."
    )


def _largest(s: Situation) -> str:
    return max(_COSTS, key=lambda name: getattr(s.cost, name))


def _movers(tuning: Tuning) -> str:
    s = tuning.situation
    if s.cost.social_s <= 0:
        return ""
    if s.social_overload <= LEAST_OVERLOAD:
        return (
            f"OVERLOAD* is at its floor of {LEAST_OVERLOAD}: moves are cheap against what they"
            " save. Longer histories, slower links or a smaller global tier would raise it."
        )
    return (
        f"What would move it: {_COSTS[_largest(s)][1]}; longer histories raise it, and so does a"
        " lighter load."
    )


def _usual(tuning: Tuning) -> str:
    best = tuning.best.total_within_slo_tps
    for point in tuning.grid:
        if (point.overload, point.hit_ratio) == USUAL and best > 0 and tuning.matters:
            lost = 1 - point.total_within_slo_tps / best
            return f"The usual pair, OVERLOAD 2 and HIT_RATIO 0.5, loses {percent(lost)}."
    return ""


def _plateau(tuning: Tuning) -> str:
    if not tuning.matters or tuning.best.total_within_slo_tps <= 0:
        return ""
    best = tuning.plateau[0]
    over = [p.overload for p in tuning.plateau if p.hit_ratio == best.hit_ratio]
    hits = [p.hit_ratio for p in tuning.plateau if p.overload == best.overload]
    return (
        f"Within {percent(tuning.plateau_ratio)} of the best: OVERLOAD {threshold(min(over))} to"
        f" {threshold(max(over))} (at HIT_RATIO {threshold(best.hit_ratio)}), HIT_RATIO"
        f" {threshold(min(hits))} to {threshold(max(hits))} (at OVERLOAD"
        f" {threshold(best.overload)})."
    )


def _low_hits(s: Situation) -> str:
    evicted, rewritten = s.evicted_ratio, s.rewritten_ratio
    if max(evicted, rewritten) < 0.005:
        return "Hits below HIT_RATIO are rare here: neither evicted nor rewritten contexts."
    shares = (
        f"Of the follow-ups {percent(evicted)} find less than HIT_RATIO because home has evicted"
        f" their context, {percent(rewritten)} because their history was rewritten"
    )
    if evicted >= 2 * rewritten:
        return f"{shares}: a low hit here means eviction, and leaving loses little."
    if rewritten >= 2 * evicted:
        return (
            f"{shares}: a low hit here means a rewritten history. No instance has more of it, so"
            " leaving for it gains nothing but balance."
        )
    return f"{shares}: a low hit here may mean either."


def needs_words(needs: Needs, rate_rps: float) -> tuple[str, ...]:
    """Return the answers to the inverse questions, a line each.

    Parameters
    ----------
    needs : Needs
        The answers.
    rate_rps : float
        The scenario's rate [requests/s].

    Returns
    -------
    tuple of str
    """
    loss = percent(needs.loss)
    lines = []
    most = needs.largest_rate_rps
    if most is None:
        lines.append(f"No rate keeps the tokens that miss the SLO below {loss}.")
    else:
        lines.append(f"Largest rate with less than {loss} out of SLO: {number(most)} requests/s.")
    if needs.fewest_instances is None:
        lines.append(
            f"No number of instances keeps the loss below {loss} at {number(rate_rps)} requests/s."
        )
    else:
        lines.append(
            f"Fewest instances for {number(rate_rps)} requests/s with less than {loss} out of SLO:"
            f" {needs.fewest_instances}."
        )
    tier = needs.least_global_bytes_per_node
    if tier is None:
        lines.append(f"No global tier of a usable size comes within {loss} of one without limit.")
    elif tier == 0:
        lines.append(f"Without a global tier less than {loss} is lost.")
    else:
        lines.append(
            f"Least global tier within {loss} of one without limit: {byte_size(tier)}/node."
        )
    link = needs.least_nic_bytes_per_s
    if link is None:
        lines.append(f"No interface comes within {loss} of one without limit.")
    elif link == 0:
        lines.append("Any interface will do: nothing, or next to nothing, moves between nodes.")
    else:
        lines.append(
            f"Slowest interface within {loss} of one without limit: {number(link * 8 / 1e9)} Gbps."
        )
    return tuple(lines)
