"""A plan in words and rows, for people: shared by the command line and the report.

Numbers are rounded to three digits here and nowhere else; :meth:`Plan.to_dict` has them whole.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from collections.abc import Mapping

    from smetric_model.planning import EndPlan, Plan

__all__ = [
    "END_NAMES",
    "RESOURCE_NAMES",
    "Row",
    "answer",
    "beyond_context",
    "byte_size",
    "capacity_rows",
    "details",
    "duration",
    "engine",
    "fetch_rows",
    "headline",
    "limit_of",
    "number",
    "pays",
    "percent",
    "rate_unit",
    "reusable",
    "slo",
    "step_words",
    "tier_facts",
    "tier_rows",
    "unservable",
    "unservable_requests",
]

#: by assumption about reuse: heading of a column, and how a sentence calls it
END_NAMES = {"none": "no reuse", "tiers": "own tiers", "ideal": "ideal reuse"}
_END_WORDS = {
    "none": "without any reuse",
    "tiers": "with its own KV tiers",
    "ideal": "with ideal reuse",
}
RESOURCE_NAMES = {"compute": "compute", "kv": "KV pool", "nic": "NICs"}
_CLOSE = 1.5  # two SLOs missed about as often limit together


@dataclass(frozen=True)
class Row:
    """One row of a table.

    Attributes
    ----------
    label : str
        What it shows.
    unit : str
        Unit of its cells; empty where they carry their own or have none.
    cells : tuple of str
        One a column.
    detail : bool
        Whether it belongs to the row above.
    """

    label: str
    unit: str
    cells: tuple[str, ...]
    detail: bool = False

    @property
    def title(self) -> str:
        """Label with its unit."""
        return f"{self.label} [{self.unit}]" if self.unit else self.label


# --- numbers ------------------------------------------------------------------------------------


def number(value: float | None, digits: int = 3) -> str:
    """Return a number rounded to ``digits`` significant digits, with thousands separators.

    Parameters
    ----------
    value : float or None
        None and NaN become a dash.
    digits : int
        Significant digits.
    """
    if value is None or math.isnan(value):
        return "–"
    if math.isinf(value):
        return "unlimited" if value > 0 else "–"
    if value == 0:
        return "0"
    places = digits - 1 - math.floor(math.log10(abs(value)))
    rounded = round(value, places)
    if abs(rounded) >= 10 ** (digits - 1):
        return f"{rounded:,.0f}"
    return f"{rounded:.{digits}g}"


def percent(ratio: float | None, digits: int = 1) -> str:
    """Return a ratio in per cent; what is not quite all or nothing is not rounded to it."""
    if ratio is None or not math.isfinite(ratio):
        return "–"
    edge = 0.5 * 10.0 ** -(digits + 2)
    if 0 < ratio < edge:
        return f"<{10.0**-digits:.{digits}f}%"
    if 1 - edge < ratio < 1:
        return f">{100 - 10.0**-digits:.{digits}f}%"
    return f"{ratio:.{digits}%}"


def reusable(workload: dict[str, Any]) -> str:
    """Say how much of a plan's workload an unbounded store could reuse."""
    ratio = workload["ideal_reuse_ratio"]
    if ratio is None:
        return "reuse unknown, no block ids"
    return f"{percent(ratio)} of prompt tokens reusable, from a cold start on"


def duration(seconds: float | None) -> str:
    """Return a time in the unit that suits it."""
    if seconds is None or not math.isfinite(seconds):
        return "unlimited" if seconds == math.inf else "–"
    if seconds == 0:
        return "0 s"
    for below, scale, unit in ((1e-3, 1e6, "µs"), (1.0, 1e3, "ms"), (600.0, 1.0, "s")):
        if seconds < below:
            return f"{number(seconds * scale)} {unit}"
    return f"{number(seconds / 60)} min" if seconds < 36_000 else f"{number(seconds / 3600)} h"


def byte_size(size: float | None) -> str:
    """Return bytes in GB (1e9), or TB from 10 of them."""
    if size is None or not math.isfinite(size):
        return "no finite size"
    return f"{number(size / 1e12)} TB" if size >= 1e13 else f"{number(size / 1e9)} GB"


def _tokens(count: float) -> str:
    return f"{count:,.0f}"


# --- sentences ----------------------------------------------------------------------------------


def beyond_context(plan: Plan) -> str:
    """Say how many requests are longer than the LLM was made for; empty for none."""
    return str(plan.workload.get("beyond_context", ""))


def unservable(plan: Plan) -> str:
    """Return how many requests cannot be served, and why."""
    return unservable_requests(plan.workload["unservable"], plan.workload["requests"])


def unservable_requests(unservable: Mapping[str, int], requests: int) -> str:
    """Return how many of so many requests cannot be served, and why.

    Parameters
    ----------
    unservable : mapping of str to int
        Requests by reason.
    requests : int
        All of them.
    """
    count = sum(unservable.values())
    text = f"{count:,} of {requests:,} requests ({percent(count / requests)})"
    reasons = "; ".join(f"{n:,} {reason}" for reason, n in unservable.items())
    return f"{text}: {reasons}" if reasons else text


def headline(plan: Plan) -> str:
    """Return what is served on what."""
    return _served(plan, f"{_count(plan.scenario.cluster.instances, 'instance')} of ")


def engine(plan: Plan) -> str:
    """Return what is served on instances of what, however many."""
    return _served(plan, "instances of ")


def _served(plan: Plan, of: str) -> str:
    instance = plan.instance
    gpus = f"{instance['tp']} x {instance['gpu']}"
    return (
        f"{instance['llm']} ({instance['weight_dtype']} weights, {instance['kv_dtype']} KV) on"
        f" {of}{gpus} ({instance['engine']}), KV pool"
        f" {_tokens(instance['local_tier_tokens'])} tokens each"
    )


def slo(plan: Plan) -> str:
    """Return what a request must meet, and how many of them."""
    asked = plan.scenario.slo
    return (
        f"TTFT at most {number(asked.ttft_base_s)} s +"
        f" {number(asked.ttft_per_prompt_token_s * 1e3)} ms per prompt token, mean TPOT at most"
        f" {duration(asked.tpot_s)}, by {percent(asked.attainment, 0)} of requests"
    )


def _count(count: float, noun: str) -> str:
    return f"{count:,} {noun}" if count == 1 else f"{count:,} {noun}s"


def limit_of(end: EndPlan) -> str:
    """Return in words what keeps an end's attainment capacity from being higher."""
    if end.limited_by == "saturation":
        return f"saturation of the {_resource(end)}"
    first, second = ("TTFT", end.ttft_missed_ratio), ("TPOT", end.tpot_missed_ratio)
    if second[1] > first[1]:
        first, second = second, first
    text = f"{first[0]}, missed by {percent(first[1])} of requests"
    return f"{text} ({second[0]} by {percent(second[1])})"


def answer(plan: Plan) -> str:
    """Return the plan's answer in one sentence: tokens/s, what limits them, instances needed."""
    wanted = percent(plan.scenario.slo.attainment, 0)
    within = f"with {wanted} of requests within the SLO"
    served = sorted(
        (e for e in plan.ends.values() if e.attainment_rps is not None),
        key=lambda e: e.attainment_tps or 0.0,
    )
    if not served:
        best = max(reversed(plan.ends.values()), key=lambda e: e.best_within_slo_ratio)
        text = (
            f"This cluster serves no rate {within}: even idle and {_END_WORDS[best.reuse]}"
            f" {percent(best.best_within_slo_ratio)} meet it, limited by {_short_limit(best)}"
        )
    else:
        low, high = served[0], served[-1]
        if len(served) < len(plan.ends):
            failing = [_END_WORDS[e.reuse] for e in plan.ends.values() if e not in served]
            text = (
                f"This cluster serves up to {_tps(high)} {within}, limited by"
                f" {_short_limit(high)} ({_END_WORDS[high.reuse]}), and {_and(failing)} no rate at"
                " all"
            )
        elif _tps(low) == _tps(high):
            text = (
                f"This cluster serves {_tps(high)} {within}, limited by {_short_limit(high)},"
                " whatever is reused"
            )
        else:
            text = (
                f"This cluster serves between {number(low.attainment_tps)} and {_tps(high)}"
                f" {within}, limited by {_short_limit(low)}"
            )
            if _short_limit(low) != _short_limit(high):
                text += (
                    f" ({_END_WORDS[low.reuse]}) and by {_short_limit(high)}"
                    f" ({_END_WORDS[high.reuse]})"
                )
    return f"{text}{_instances(plan)}."


def details(plan: Plan) -> list[str]:
    """Return what the answer leaves out: each end's capacity, limit and instances, and what is."""
    lines = []
    for name, words in _END_WORDS.items():
        end = plan.ends[name]
        if end.attainment_rps is None:
            text = (
                f"no rate; even idle, {percent(end.best_within_slo_ratio)} of requests meet the SLO"
            )
        else:
            text = f"{_tps(end)} ({number(end.attainment_rps)} {rate_unit(plan)})"
        text = f"{_capital(words)}: {text}, limited by {limit_of(end)}"
        if plan.rate_rps is not None:
            needed = end.instances_needed
            text += (
                f"; no number of instances serves {number(plan.rate_rps)} requests/s"
                if needed is None
                else f"; {_count(needed, 'instance')} for {number(plan.rate_rps)} requests/s"
            )
        lines.append(text + ".")
    return lines


def _capital(text: str) -> str:
    return text[:1].upper() + text[1:]


def _and(texts: list[str]) -> str:
    return " and ".join(texts)


def _resource(end: EndPlan) -> str:
    return RESOURCE_NAMES.get(end.binding_resource, end.binding_resource)


def _short_limit(end: EndPlan) -> str:
    low, high = sorted((end.ttft_missed_ratio, end.tpot_missed_ratio))
    if end.limited_by != "saturation" and low * _CLOSE > high:
        return "TTFT and TPOT"
    return limit_of(end).split(",")[0]


def _tps(end: EndPlan) -> str:
    return f"{number(end.attainment_tps)} tokens/s"


def _instances(plan: Plan) -> str:
    """Continue the answer: how many instances the rate needs, against how many there are."""
    if plan.rate_rps is None:
        return ""
    rate = f"{number(plan.rate_rps)} requests/s"
    needed = {name: e.instances_needed for name, e in plan.ends.items()}
    known = [n for n in needed.values() if n is not None]
    never = [_END_WORDS[name] for name, n in needed.items() if n is None]
    if not known:
        return f"; no number of instances serves {rate}"
    low, high = min(known), max(known)
    count = _count(low, "instance") if low == high else f"between {low:,} and {high:,} instances"
    text = f"; you need {count} for {rate}"
    if never:
        text += f" ({_and(never)} no number is enough)"
    return f"{text} and have {plan.scenario.cluster.instances:,}"


# --- rows ---------------------------------------------------------------------------------------


def rate_unit(plan: Plan) -> str:
    """Return the unit of the rates of perfect placement, which count what can be served.

    Parameters
    ----------
    plan : Plan
    """
    some = float(plan.workload["unservable_ratio"]) > 0
    return "servable requests/s" if some else "requests/s"


def capacity_rows(plan: Plan, needed: bool = True) -> list[Row]:
    """Return the capacity table, one column for each assumption about reuse.

    Parameters
    ----------
    plan : Plan
    needed : bool, default True
        Whether the instances that the rate needs are among the rows.
    """
    ends = [plan.ends[name] for name in END_NAMES]
    wanted = percent(plan.scenario.slo.attainment, 0)

    def cells(*values: str) -> tuple[str, ...]:
        return values

    rows = [
        Row("reused prompt tokens", "", cells(*(percent(e.reused_ratio) for e in ends))),
        Row(
            f"{wanted} within SLO up to",
            rate_unit(plan),
            cells(*(number(e.attainment_rps) for e in ends)),
        ),
        Row("total there", "tokens/s", cells(*(number(e.attainment_tps) for e in ends)), True),
        Row("most within SLO", "tokens/s", cells(*(number(e.peak_within_slo_tps) for e in ends))),
        Row(
            "reached at",
            rate_unit(plan),
            cells(*(number(e.peak_rps if e.peak_within_slo_tps else None) for e in ends)),
            True,
        ),
        Row(
            "mean TPOT meets SLO up to",
            rate_unit(plan),
            cells(*(number(e.tpot_ceiling_rps) for e in ends)),
        ),
        Row("saturates at", rate_unit(plan), cells(*(number(e.saturation_rps) for e in ends))),
        Row("total there", "tokens/s", cells(*(number(e.saturation_tps) for e in ends)), True),
        Row("what saturates, placement perfect", "", cells(*(_resource(e) for e in ends)), True),
        Row(
            "within SLO on an idle cluster",
            "",
            cells(*(percent(e.best_within_slo_ratio) for e in ends)),
        ),
        Row("requests that fill a KV pool", "", cells(*(number(e.max_batch) for e in ends))),
    ]
    if needed and plan.rate_rps is not None:
        rows.insert(
            5,
            Row(
                f"instances for {number(plan.rate_rps)} requests/s",
                "",
                cells(
                    *(
                        "none" if e.instances_needed is None else f"{e.instances_needed:,}"
                        for e in ends
                    )
                ),
            ),
        )
    return rows


def tier_rows(plan: Plan) -> list[Row]:
    """Return what KV tiers and links are asked for, against what there is: three cells a row."""
    tiers = plan.tiers
    if tiers is None:
        return []
    rows = [
        Row(
            "KV pools, pinned by running requests",
            "",
            (
                byte_size(tiers.pinned_bytes),
                byte_size(tiers.local_bytes),
                percent(tiers.pinned_bytes / tiers.local_bytes),
            ),
        )
    ]
    for share, size in tiers.global_bytes.items() if tiers.curve_bytes else ():
        used = size / tiers.provisioned_bytes if tiers.provisioned_bytes > 0 else math.nan
        rows.append(
            Row(
                f"global tier, to serve {share} of the reuse",
                "",
                (byte_size(size), byte_size(tiers.provisioned_bytes), percent(used)),
            )
        )
    demanded, capacity = (
        tiers.link_bytes_per_s_per_node,
        tiers.link_capacity_bytes_per_s_per_node,
    )
    known = math.isfinite(capacity) and capacity > 0
    rows.append(
        Row(
            "NICs, per node and direction",
            "",
            (
                _gbps(demanded),
                _gbps(capacity) if known else "–",
                percent(demanded / capacity) if known else "–",
            ),
        )
    )
    return rows


def _gbps(bytes_per_s: float) -> str:
    return f"{number(8e-9 * bytes_per_s)} Gbit/s"


def tier_facts(plan: Plan) -> list[str]:
    """Return what the tiers then do, a sentence each."""
    tiers = plan.tiers
    if tiers is None:
        return []
    if not tiers.curve_bytes and plan.workload["ideal_reuse_ratio"] is None:
        return ["Reuse is unknown (no block ids) and counts as none; the tiers serve nothing."]
    if not tiers.curve_bytes:
        return ["Nothing is reusable; the tiers serve nothing."]
    facts = []
    end = plan.ends["ideal"]
    if tiers.rate_rps > end.saturation_rps:
        facts.append(
            f"With random arrivals this cluster saturates at {number(end.saturation_rps)}"
            f" {rate_unit(plan)}, even with ideal reuse ({_resource(end)}): at"
            f" {number(tiers.rate_rps)} its KV pools count as full of running requests."
        )
    facts += [
        f"The KV pools together keep KV for {duration(tiers.local_retention_s)} after its last"
        f" use and serve {percent(tiers.local_ratio)} of prompt tokens; an unbounded global tier"
        f" serves {percent(tiers.global_ratio)} more."
    ]
    if tiers.provisioned_bytes > 0:
        facts.append(
            f"The provisioned {byte_size(tiers.provisioned_bytes)} of global tier serve"
            f" {percent(tiers.provisioned_serves_ratio)} of what is reusable."
        )
    else:
        facts.append("No global tier is provisioned.")
    section = plan.scenario.cluster
    line = section.nics_per_node * section.nic_bytes_per_s
    capacity = tiers.link_capacity_bytes_per_s_per_node
    if math.isfinite(capacity) and 0 < capacity < 0.9 * line:
        facts.append(
            f"A node's NICs have a line rate of {_gbps(line)}; transfers of this size get"
            f" {_gbps(capacity)} of it while GPUs compute (data/fabric.toml, measured)."
        )
    return facts


def fetch_rows(plan: Plan) -> list[Row]:
    """Return the ways to get the mean reusable prefix: time, and at which lengths each pays."""
    fetch = plan.fetch
    if fetch is None:
        return []

    return [
        Row("recompute (prefill)", "", (duration(fetch.recompute_s), "")),
        Row(
            "fetch from the node's DRAM",
            "",
            (duration(fetch.dram_s), pays(plan, fetch.dram_pays_tokens)),
        ),
        Row(
            "fetch over RDMA",
            "",
            (duration(fetch.rdma_s), pays(plan, fetch.rdma_pays_tokens)),
        ),
    ]


def pays(plan: Plan, ranges: tuple[tuple[float, float], ...]) -> str:
    """Return ranges of prefix lengths in words, against those that the plan looked at."""
    if plan.fetch is None or not ranges:
        return "no length"
    first, last = plan.fetch.curve_tokens[0], plan.fetch.curve_tokens[-1]
    texts = []
    for low, high in ranges:
        if low <= first and high >= last:
            return "any length"
        if low <= first:
            texts.append(f"up to {number(high)}")
        elif high >= last:
            texts.append(f"from {number(low)}")
        else:
            texts.append(f"{number(low)} to {number(high)}")
    return f"{' or '.join(texts)} tokens"


def step_words(plan: Plan) -> list[str]:
    """Return what each step of the plan carries, one text a step."""
    texts = []
    for step in plan.steps:
        if step.prefill_tokens > 0:
            work = (
                f"{_tokens(step.prefill_tokens)} new tokens after"
                f" {_tokens(step.prefill_context_tokens)}"
            )
        else:
            work = (
                f"{number(step.decode_batch)} sequences of"
                f" {_tokens(step.decode_context_tokens)} tokens"
            )
        texts.append(work)
    return texts
