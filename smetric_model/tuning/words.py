"""Advice on thresholds in words."""

from __future__ import annotations

import math
from typing import TYPE_CHECKING

from smetric_model.analytic.thresholds import LEAST_OVERLOAD
from smetric_model.planning.words import byte_size, number, percent
from smetric_model.tuning.results import USUAL

if TYPE_CHECKING:
    from smetric_model.tuning.results import Needs, SloShares, Tuning
    from smetric_model.tuning.situation import Situation

__all__ = ["advice", "needs_words", "threshold"]

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
    lines = [_headline(tuning), _optimum(tuning), _why(tuning), _loads(tuning.at_advice)]
    lines += [_movers(tuning), _usual(tuning), _plateau(tuning), _low_hits(tuning.at_advice)]
    return tuple(line for line in lines if line)


def _pair(overload: float, hit_ratio: float) -> str:
    return f"OVERLOAD {threshold(overload)}, HIT_RATIO {threshold(hit_ratio)}"


def _headline(tuning: Tuning) -> str:
    pair = _pair(tuning.overload, tuning.hit_ratio)
    if tuning.keeps_usual:
        return _keep(tuning)
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


def _keep(tuning: Tuning) -> str:
    lost = tuning.lost_ratio(*USUAL)
    best = tuning.best
    text = f"Keep the usual pair, {_pair(*USUAL)}: nothing to gain that shows."
    usual = "is the best of them"
    if lost:
        usual = (
            f"loses {percent(lost)} of the best ({number(best.total_within_slo_tps)} tokens/s"
            f" within SLO at {_pair(best.overload, best.hit_ratio)})"
        )
    if not tuning.matters:
        return (
            f"{text} The thresholds do not matter here: the pairs tried differ by"
            f" {percent(tuning.spread_ratio)} in tokens within SLO, and this one {usual}."
        )
    return (
        f"{text} Of the pairs tried it {usual}, and up to {percent(tuning.plateau_ratio)} the"
        f" closed form does not tell them apart (docs/thresholds.md); the worst loses"
        f" {percent(tuning.spread_ratio)}."
    )


def _optimum(tuning: Tuning) -> str:
    """Say where the plateau's middle and the closed form's optimum lie, and why apart."""
    if tuning.best.total_within_slo_tps <= 0:
        return ""
    optimum = tuning.social_overload, tuning.social_hit_ratio
    return (
        f"The middle of the plateau is {_pair(tuning.overload, tuning.hit_ratio)}, the closed"
        f" form's optimum OVERLOAD* {threshold(optimum[0])}, HIT_RATIO* {threshold(optimum[1])}:"
        " the optimum is where one mean move just pays in waiting, whatever the SLO; the middle is"
        " as far as can be from pairs that lose tokens within SLO."
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
    joined = f"one that has {_requests(s.receiver_load)}"
    if s.receiver_load < 0.005:
        joined = "an idle one"
    return (
        f"At {_pair(s.overload, s.hit_ratio)} an instance has {_requests(s.service.mean_load)}"
        f" under way on average; a request that is free to choose goes to {joined}, and"
        f" {percent(s.migrated_ratio)} of the follow-ups move."
    )


def _requests(mean: float) -> str:
    text = number(mean, 2)
    return f"{text} request" if text == "1" else f"{text} requests"


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
    lost = tuning.lost_ratio(*USUAL)
    if lost is None or tuning.keeps_usual:
        return ""
    return f"The usual pair, {_pair(*USUAL)}, loses {percent(lost)}."


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
    at = f"HIT_RATIO {threshold(s.hit_ratio)}"
    if max(evicted, rewritten) < 0.005:
        return f"Hits below {at} are rare here: neither evicted nor rewritten contexts."
    shares = (
        f"Of the follow-ups {percent(rewritten)} find no more than {at} because their history was"
        f" rewritten (the trace's own share, the same at any rate), {percent(evicted)} because"
        " home has evicted their context at this rate"
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
        The scenario's rate, unservable requests included [requests/s].

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
        lines.append(f"Largest rate with less than {loss} out of SLO: {_rate(needs, most)}.")
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
        lines.append(
            f"{_with_these(needs)} no global tier is needed: without one"
            f" {_lost(needs.without_tier)}."
        )
    else:
        lines.append(
            f"{_with_these(needs)} the least global tier within {loss} of one without limit:"
            f" {byte_size(tier)}/node."
        )
    link = needs.least_nic_bytes_per_s
    if link is None:
        lines.append(f"No interface comes within {loss} of one without limit.")
    elif link == 0:
        lines.append(_any_link(needs))
    else:
        lines.append(
            f"{_with_these(needs)} the slowest interface within {loss} of one without limit:"
            f" {_gbps(link)}; {_traffic(needs)}."
        )
    return tuple(lines)


def _rate(needs: Needs, rate_rps: float) -> str:
    instances = "instance" if needs.instances == 1 else "instances"
    return f"{number(rate_rps)} requests/s with the given {needs.instances:,} {instances}"


def _any_link(needs: Needs) -> str:
    if needs.nodes == 1:
        return "Any interface will do: one node, nothing crosses it."
    if needs.nic_traffic_bytes_per_s == 0:
        return "Any interface will do: without a global tier nothing is fetched between nodes."
    return (
        f"{_with_these(needs)} the slowest interface tried, {_gbps(needs.slowest_nic_bytes_per_s)},"
        f" is enough, as what it does not bring in time is computed again: with it"
        f" {_lost(needs.with_slowest_nic)}. As given, {_traffic(needs)}."
    )


def _gbps(bytes_per_s: float) -> str:
    return f"{number(bytes_per_s * 8 / 1e9, 2)} Gbit/s"


def _traffic(needs: Needs) -> str:
    return (
        f"a node fetches and writes {_gbps(needs.nic_traffic_bytes_per_s)} on average for the"
        " global tier"
    )


def _with_these(needs: Needs) -> str:
    """Name the cluster that an answer is for, against the fewest instances."""
    text = "instance" if needs.instances == 1 else "instances"
    text = f"With the given {needs.instances:,} {text}"
    fewest = needs.fewest_instances
    if fewest is None or fewest == needs.instances:
        return f"{text},"
    times = number(needs.instances / fewest, 2)
    return f"{text} ({times} times the {fewest:,} that the rate needs)"


def _lost(shares: tuple[SloShares, ...]) -> str:
    """Say what is lost with the given instances, and with the fewest."""
    given, *fewer = shares
    text = (
        f"{percent(given.lost_ratio)} of the tokens within SLO are lost"
        f" ({percent(given.without_limit_ratio)} to {percent(given.least_ratio)} of those offered)"
    )
    for few in fewer:
        text += (
            f", but {percent(few.lost_ratio)} with {few.instances:,}"
            f" ({percent(few.without_limit_ratio)} to {percent(few.least_ratio)})"
        )
    return text
