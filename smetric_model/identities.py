"""Identities that every outcome keeps, whichever verb gave it.

A violated identity is a defect of the verb (or of what was measured), never of the scenario.
Columns that a verb leaves missing are not checked.
"""

from __future__ import annotations

import itertools
import math
from collections.abc import Iterator
from dataclasses import dataclass
from typing import TYPE_CHECKING

import numpy as np
from numpy.typing import NDArray

from smetric_model.schema import imbalance_schema_column, load_schema

if TYPE_CHECKING:
    import pandas as pd

    from smetric_model.outcome import Outcome

__all__ = ["Violation", "check_identities"]

#: rounding of sums in floating point
_ROUNDING = 1e-6
#: Little's law of a closed form whose latency is integrated numerically
_CLOSED_FORM = 0.01
#: noise of a finite window, beside the requests that its edges cut
_WINDOW_NOISE = 0.02
_QUANTILES = ("p50", "p90", "p95", "p99")
_PARTS = ("prompt", "computed_prompt", "reused_prompt", "output", "total")


@dataclass(frozen=True, slots=True)
class Violation:
    """One identity that an outcome does not keep.

    Parameters
    ----------
    identity : str
        The identity in words.
    detail : str
        The values that contradict it.
    """

    identity: str
    detail: str

    def __str__(self) -> str:
        return f"{self.identity}: {self.detail}"


def check_identities(outcome: Outcome, carried_in_s: float | None = None) -> tuple[Violation, ...]:
    """Identities that an outcome violates.

    Sums of shares and of token rates; nothing negative or above its maximum; TPS within SLO not
    above TPS; ordered quantiles; TTFT, queueing and fetching not longer than what they are part
    of; Little's law (requests in flight = servable arrival rate × mean end-to-end time); and for
    each line of the table of requests: prompt = local + global + peer + recomputed, and
    TTFT + TPOT·(output − 1) = end-to-end, and (disaggregated serving) TTFT, the wait for the decode
    pool and the transfer of KV together not longer than end-to-end.

    Parameters
    ----------
    outcome : Outcome
    carried_in_s : float, optional
        Request-seconds inside the window of requests that arrived before it; whoever has seen
        them (``simulate``) makes Little's law exact with it.

    Returns
    -------
    tuple of Violation
        Empty where all identities hold.

    Notes
    -----
    Sums hold to 1e-6 relative.  Identities that compare what is *processed* inside the window
    with what *arrives* inside it (TPS within SLO ≤ TPS, Little's law) are exact in the long run
    only: a window also processes what was under way at its start, and not what is under way at
    its end.  For ``predict`` Little's law holds to 1 %.  Of ``simulate`` and ``measure``, the
    table of requests tells what the window's end cuts:

    - tokens of requests within SLO that were complete by then ≤ tokens processed
      (``measure``: to 2 %, its clocks are the clients');
    - with a(i) the arrival and E(i) the end-to-end time of a request of the window, and e its
      end, requests in flight · window length = ∑ min(E(i), e − a(i)) + ``carried_in_s``, to 1e-6.

    Where ``carried_in_s`` is not known, it is at least 0, and what it is at most depends on the
    past.  Arrivals at a steady rate λ carry ∑ E²/2 into a window as into the time after it, for
    a window of length w on average λ·mean(E²)/2, with variance λ·mean(E³)/3; up to four standard
    deviations more are allowed, and 2 % of the window.  (A backlog from before the window can
    exceed this.)  Without the table both hold to 2 % plus the 99th percentile of the end-to-end
    time over window length: it is the long requests that an edge cuts.
    """
    found = [*_ranges(outcome), *_sums(outcome), *_orders(outcome)]
    found += [*_within_slo(outcome), *_little(outcome, carried_in_s)]
    requests = outcome.requests
    if requests is not None:
        found += _request_lines(requests)
    return tuple(found)


def _ranges(outcome: Outcome) -> Iterator[Violation]:
    columns = load_schema()
    for name in outcome:
        column = columns.get(name) or imbalance_schema_column(name)
        if column.kind != "number":
            continue
        value = outcome.number(name)
        if value < column.minimum - _ROUNDING:
            yield Violation(f"{name} >= {column.minimum:g}", f"{name} = {value:g}")
        if value > column.maximum + _ROUNDING:
            yield Violation(f"{name} <= {column.maximum:g}", f"{name} = {value:g}")


def _sums(outcome: Outcome) -> Iterator[Violation]:
    number = outcome.number
    ones: list[tuple[str, ...]] = [
        ("local_ratio", "global_ratio", "peer_ratio", "recomputed_ratio")
    ]
    # Without reuse nothing is divided, and the three shares are 0 or missing.
    if number("reused_prompt_tps") > 0 or math.isnan(number("reused_prompt_tps")):
        ones.append(("intra_reuse_ratio", "system_reuse_ratio", "other_reuse_ratio"))
    ones.append(
        (
            "return_to_previous_ratio",
            "migrated_overload_ratio",
            "migrated_evicted_ratio",
            "migrated_other_ratio",
        )
    )
    for parts in ones:
        yield from _equal("1", 1.0, parts, outcome, _ROUNDING)
    for suffix in ("tps", "within_slo_tps"):
        for whole, part, rest in (
            ("total", "prompt", "output"),
            ("prompt", "computed_prompt", "reused_prompt"),
        ):
            name = f"{whole}_{suffix}"
            parts = (f"{part}_{suffix}", f"{rest}_{suffix}")
            yield from _equal(name, number(name), parts, outcome, _ROUNDING)
    window_s = number("window_s")
    arrived = number("arrival_rate_rps") * window_s
    yield from _equal("arrival_rate_rps * window_s", arrived, ("requests",), outcome, _ROUNDING)


def _equal(
    name: str, whole: float, parts: tuple[str, ...], outcome: Outcome, tolerance: float
) -> Iterator[Violation]:
    total = sum(outcome.number(part) for part in parts)
    if not (math.isfinite(whole) and math.isfinite(total)):
        return
    if not math.isclose(whole, total, rel_tol=tolerance, abs_tol=tolerance):
        values = ", ".join(f"{part} = {outcome.number(part):g}" for part in parts)
        yield Violation(f"{' + '.join(parts)} = {name}", f"{values}, sum {total:g}, not {whole:g}")


def _orders(outcome: Outcome) -> Iterator[Violation]:
    for small, large in (("ttft", "e2e"), ("queue", "ttft"), ("fetch", "ttft")):
        for statistic in ("mean", *_QUANTILES):
            yield from _at_most(
                f"{small}_{statistic}_s", f"{large}_{statistic}_s", outcome, _ROUNDING
            )
    for quantity in ("ttft", "tpot", "e2e", "queue", "fetch", "transfer_wait", "transfer"):
        for low, high in itertools.pairwise(_QUANTILES):
            yield from _at_most(f"{quantity}_{low}_s", f"{quantity}_{high}_s", outcome, _ROUNDING)
    yield from _at_most("reused_prompt_tps", "prompt_tps", outcome, _ROUNDING)
    ends = ("within_slo_ratio", "timed_out_ratio", "failed_ratio")
    if sum(number for name in ends if not math.isnan(number := outcome.number(name))) > 1 + 1e-9:
        values = ", ".join(f"{name} = {outcome.number(name):g}" for name in ends)
        yield Violation(f"{' + '.join(ends)} <= 1", values)


def _at_most(small: str, large: str, outcome: Outcome, tolerance: float) -> Iterator[Violation]:
    left, right = outcome.number(small), outcome.number(large)
    if left > right * (1 + tolerance) + _ROUNDING:
        yield Violation(f"{small} <= {large}", f"{left:g} > {right:g}")


def _within_slo(outcome: Outcome) -> Iterator[Violation]:
    """TPS within SLO at most TPS, as far as it was processed by the end of the window."""
    number = outcome.number
    later = dict.fromkeys(_PARTS, 0.0)
    tolerance = _edge(outcome)
    requests = _window_table(outcome, "ttft_s", "within_slo", "recomputed_tokens")
    if requests is not None:
        tolerance = _ROUNDING if outcome["verb"] == "simulate" else _WINDOW_NOISE
        left_s = _until_end_s(outcome, requests)
        good = requests["within_slo"].to_numpy(bool)
        unread = requests[good & (requests["ttft_s"].to_numpy() >= left_s - _ROUNDING)]
        cut = requests[good & (requests["e2e_s"].to_numpy() >= left_s - _ROUNDING)]
        later["prompt"] = float(unread["prompt_tokens"].sum())
        later["computed_prompt"] = float(unread["recomputed_tokens"].sum())
        later["reused_prompt"] = later["prompt"] - later["computed_prompt"]
        later["output"] = float(cut["output_tokens"].sum())
        later["total"] = later["prompt"] + later["output"]
    for part in _PARTS:
        small, large = f"{part}_within_slo_tps", f"{part}_tps"
        left, right = number(small), number(large)
        cut_tps = later[part] / number("window_s") if later[part] else 0.0
        if left - cut_tps > right * (1 + tolerance) + _ROUNDING:
            yield Violation(
                f"{small} <= {large}", f"{left:g} > {right:g} (after the window {cut_tps:g})"
            )


def _little(outcome: Outcome, carried_in_s: float | None) -> Iterator[Violation]:
    number = outcome.number
    # Requests that time out or never end are in flight without an end-to-end time.
    # A request that is tried again waits in no instance between its tries.
    tried_again = number("timed_out_ratio") > 0 or number("retries") > 0
    if outcome["valid"] is False or tried_again or number("failed_ratio") > 0:
        return
    name = "inflight_requests_mean = servable arrival rate * e2e_mean_s (Little)"
    inflight, window_s = number("inflight_requests_mean"), number("window_s")
    requests = _window_table(outcome)
    if requests is None or not math.isfinite(inflight):
        unservable = number("unservable_ratio")
        served = 1 - (0 if math.isnan(unservable) else unservable)
        expected = number("arrival_rate_rps") * served * number("e2e_mean_s")
        tolerance = max(_edge(outcome), _CLOSED_FORM)
        if (
            math.isfinite(inflight)
            and math.isfinite(expected)
            and not math.isclose(inflight, expected, rel_tol=tolerance, abs_tol=_ROUNDING)
        ):
            detail = f"{inflight:g}, not {expected:g} (tolerance {tolerance:.1%})"
            yield Violation(name, detail)
        return
    e2e_s = requests["e2e_s"].to_numpy(float)
    inside_s = np.minimum(e2e_s, _until_end_s(outcome, requests)).sum()
    carried_s = inflight * window_s - inside_s
    rounding_s = _ROUNDING * (1 + inside_s + (carried_in_s or 0.0))
    least_s = most_s = carried_in_s
    if least_s is None or most_s is None:
        noise_s = _WINDOW_NOISE * max(inside_s, inflight * window_s)
        spread_s = 4 * math.sqrt((e2e_s**3).sum() / (3 * window_s))
        least_s, most_s = 0.0, (e2e_s**2).sum() / (2 * window_s) + spread_s + noise_s
        if outcome["verb"] != "simulate":
            least_s = -noise_s
    if not least_s - rounding_s <= carried_s <= most_s + rounding_s:
        yield Violation(
            name,
            f"{inflight:g} for {window_s:g} s, of which its own arrivals take {inside_s:g}"
            f" request-seconds, leaves {carried_s:g} to earlier ones,"
            f" not {least_s:g} to {most_s:g}",
        )


def _window_table(outcome: Outcome, *needed: str) -> pd.DataFrame | None:
    """Return the served requests of a window that has edges, if the table tells their times."""
    requests = outcome.requests
    needed = ("status", "arrival_s", "e2e_s", *needed)
    if outcome["verb"] not in ("simulate", "measure") or requests is None:
        return None
    if not set(needed) <= set(requests) or not math.isfinite(_end_s(outcome)):
        return None
    served: pd.DataFrame = requests[requests["status"] == "served"]
    return served


def _end_s(outcome: Outcome) -> float:
    return outcome.number("warmup_s") + outcome.number("window_s")


def _until_end_s(outcome: Outcome, requests: pd.DataFrame) -> NDArray[np.float64]:
    """From arrival to the end of the window [s]."""
    left_s: NDArray[np.float64] = _end_s(outcome) - requests["arrival_s"].to_numpy(float)
    return left_s


def _edge(outcome: Outcome) -> float:
    """Relative tolerance between what a window processes and what arrives in it."""
    if outcome["verb"] in ("predict", "bound"):
        return _ROUNDING
    e2e_s = outcome.number("e2e_p99_s")
    if math.isnan(e2e_s):
        e2e_s = outcome.number("e2e_mean_s")
    share = e2e_s / outcome.number("window_s")
    return _WINDOW_NOISE + (share if math.isfinite(share) else 0.0)


def _request_lines(requests: pd.DataFrame) -> Iterator[Violation]:
    served = requests
    if "status" in requests:
        served = requests[requests["status"] == "served"]
    for name, column in load_schema("requests").items():
        if column.kind == "number" and name in served:
            lines = served[served[name] < 0]
            yield from _first(f"requests: {name} >= 0", lines, (name,))
    tiers = ("local_tokens", "global_tokens", "peer_tokens", "recomputed_tokens")
    if {"prompt_tokens", *tiers} <= set(served):
        away = (served[list(tiers)].sum(axis=1) - served["prompt_tokens"]).abs()
        lines = served[away > _ROUNDING * served["prompt_tokens"] + _ROUNDING]
        yield from _first(
            f"requests: {' + '.join(tiers)} = prompt_tokens", lines, (*tiers, "prompt_tokens")
        )
    times = ("ttft_s", "tpot_s", "output_tokens", "e2e_s")
    if set(times) <= set(served):
        decode_s = served["tpot_s"] * (served["output_tokens"] - 1)
        # One output token has no TPOT; its end-to-end time is its TTFT.
        decode_s = decode_s.where(served["output_tokens"] > 1, 0.0)
        away = (served["ttft_s"] + decode_s - served["e2e_s"]).abs()
        lines = served[away > _ROUNDING * served["e2e_s"] + _ROUNDING]
        yield from _first("requests: ttft_s + tpot_s * (output_tokens - 1) = e2e_s", lines, times)
    parts = ("ttft_s", "transfer_wait_s", "transfer_s", "e2e_s")
    if set(parts) <= set(served):
        sent = served[list(parts[:3])].sum(axis=1)
        lines = served[sent > served["e2e_s"] * (1 + _ROUNDING) + _ROUNDING]
        yield from _first("requests: ttft_s + transfer_wait_s + transfer_s <= e2e_s", lines, parts)


def _first(identity: str, lines: pd.DataFrame, columns: tuple[str, ...]) -> Iterator[Violation]:
    """One violation for all lines that break an identity, showing the first."""
    if len(lines):
        line = lines.iloc[0]
        values = ", ".join(f"{column} = {line[column]:g}" for column in columns)
        yield Violation(identity, f"{len(lines)} lines; line {lines.index[0]}: {values}")
