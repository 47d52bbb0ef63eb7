"""A plan in words: rounding laws, and sentences that hold whatever a plan leaves open."""

from __future__ import annotations

import math
import re
from dataclasses import replace
from itertools import product
from typing import TYPE_CHECKING

import pytest
from hypothesis import given
from hypothesis import strategies as st

from smetric_model.planning import words

if TYPE_CHECKING:
    from smetric_model.planning import Plan

finite = st.floats(1e-6, 1e15)


@given(finite, st.integers(2, 5))
def test_a_rounded_number_is_close(value: float, digits: int) -> None:
    text = words.number(value, digits)
    read = float(text.replace(",", ""))
    assert abs(read - value) <= 0.51 * 10.0 ** (1 - digits) * value
    assert words.number(-value, digits) == "-" + text


@given(finite, finite)
def test_rounding_keeps_the_order(one: float, other: float) -> None:
    low, high = sorted((one, other))
    low_text, high_text = (words.number(v).replace(",", "") for v in (low, high))
    assert float(low_text) <= float(high_text)


def test_what_has_no_number_is_said() -> None:
    assert words.number(None) == words.number(math.nan) == "–"
    assert words.number(math.inf) == "unlimited"
    assert words.number(0.0) == "0"
    assert words.number(999.6) == "1,000"
    assert words.byte_size(math.inf) == words.byte_size(math.nan) == "no finite size"


@given(st.floats(0, 1), st.integers(0, 3))
def test_per_cent_is_all_or_nothing_only_where_it_is(ratio: float, digits: int) -> None:
    text = words.percent(ratio, digits)
    shown = float(text.strip("<>%"))
    assert abs(shown - 100 * ratio) <= 1.01 * 10.0**-digits
    assert (shown == 0) == (ratio == 0)
    assert (shown == 100) == (ratio == 1)


@given(st.floats(1e-9, 1e9))
def test_a_duration_reads_back(seconds: float) -> None:
    value, unit = words.duration(seconds).split(" ")
    scale = {"µs": 1e-6, "ms": 1e-3, "s": 1.0, "min": 60.0, "h": 3600.0}[unit]
    assert float(value.replace(",", "")) * scale == pytest.approx(seconds, rel=0.006)


@given(st.floats(1e3, 1e17))
def test_a_size_reads_back(size: float) -> None:
    value, unit = words.byte_size(size).split(" ")
    scale = {"GB": 1e9, "TB": 1e12}[unit]
    assert float(value.replace(",", "")) * scale == pytest.approx(size, rel=0.006)


def unmet(plan: Plan, *names: str) -> Plan:
    """The plan, with ends that no rate and no number of instances satisfies."""
    ends = {
        name: replace(end, attainment_rps=None, attainment_tps=None, instances_needed=None)
        if name in names
        else end
        for name, end in plan.ends.items()
    }
    return replace(plan, ends=ends)


def test_the_answer_names_both_ends_and_the_instances(small_plan: Plan) -> None:
    text = words.answer(small_plan)
    none, ideal = small_plan.ends["none"], small_plan.ends["ideal"]
    assert none.attainment_tps < ideal.attainment_tps
    for value in (none.attainment_tps, ideal.attainment_tps, small_plan.rate_rps):
        assert words.number(value) in text
    assert f"{ideal.instances_needed:,}" in text
    assert f"{none.instances_needed:,}" in text
    assert text.endswith("have 2.")


def test_ends_are_named_by_size_not_by_place(small_plan: Plan) -> None:
    # a slow fabric can make ideal reuse the smaller end
    ends = small_plan.ends
    swapped = replace(small_plan, ends=ends | {"none": ends["ideal"], "ideal": ends["none"]})
    low, high = ends["none"].attainment_tps, ends["ideal"].attainment_tps
    between = f"between {words.number(low)} and {words.number(high)} tokens/s"
    assert between in words.answer(small_plan)
    assert between in words.answer(swapped)


@pytest.mark.parametrize("with_rate", [True, False])
@pytest.mark.parametrize("failing", list(product([True, False], repeat=3)))
def test_every_answer_is_one_whole_sentence(
    small_plan: Plan, failing: tuple[bool, ...], with_rate: bool
) -> None:
    names = [name for name, fails in zip(words.END_NAMES, failing, strict=True) if fails]
    plan = unmet(small_plan, *names)
    plan = plan if with_rate else replace(plan, rate_rps=None)
    lines = words.details(plan)
    text = words.answer(plan)
    assert len(lines) == 3
    for line in (text, *lines):
        assert not re.search(r"None|nan|–|\s\s", line)
        assert line.endswith(".")
    assert len(re.findall(r"\.(\s|$)", text)) == 1
    assert ("instance" in text) == with_rate
    assert ("no rate" in text) == bool(names)
    for name, line in zip(words.END_NAMES, lines, strict=True):
        assert ("no rate" in line) == (name in names)


@given(st.floats(0, 0.5), st.floats(0, 0.5))
def test_the_slo_missed_more_often_is_the_limit(ttft: float, tpot: float) -> None:
    class End:
        limited_by = "either"
        ttft_missed_ratio, tpot_missed_ratio = ttft, tpot

    text = words.limit_of(End())  # type: ignore[arg-type]
    first, second = text.index("TTFT"), text.index("TPOT")
    assert first < second if ttft >= tpot else second < first


def test_saturation_names_what_saturates(small_plan: Plan) -> None:
    end = replace(small_plan.ends["ideal"], limited_by="saturation", binding_resource="nic")
    assert words.limit_of(end) == "saturation of the NICs"


def test_unservable_requests_are_counted_with_their_reason(small_plan: Plan) -> None:
    text = words.unservable(small_plan)
    assert text.startswith("1 of 61 requests (1.6%): 1 longer than")


def test_tables_have_a_cell_for_every_column(small_plan: Plan) -> None:
    assert {len(row.cells) for row in words.capacity_rows(small_plan)} == {3}
    assert {len(row.cells) for row in words.tier_rows(small_plan)} == {3}
    assert {len(row.cells) for row in words.fetch_rows(small_plan)} == {2}
    shown = {row.label: row.cells for row in words.capacity_rows(small_plan)}
    assert shown["reached at"] == tuple(
        words.number(small_plan.ends[name].peak_rps) for name in words.END_NAMES
    )


def test_fetching_that_never_pays_says_so(small_plan: Plan) -> None:
    last = small_plan.fetch.curve_tokens[-1]
    fetch = replace(small_plan.fetch, rdma_pays_tokens=(), dram_pays_tokens=((500.0, last),))
    cells = [row.cells[1] for row in words.fetch_rows(replace(small_plan, fetch=fetch))]
    assert cells == ["", "from 500 tokens", "no length"]
    first = small_plan.fetch.curve_tokens[0]
    for ranges, text in (
        (((first, last),), "any length"),
        (((first, 90.0), (200.0, 400.0)), "up to 90 or 200 to 400 tokens"),
    ):
        assert words.pays(small_plan, ranges) == text
    assert words.fetch_rows(replace(small_plan, fetch=None)) == []


def test_a_rate_beyond_saturation_is_told(small_plan: Plan) -> None:
    assert not any("saturates" in fact for fact in words.tier_facts(small_plan))
    beyond = replace(small_plan.tiers, rate_rps=2 * small_plan.ends["ideal"].saturation_rps)
    assert "saturates" in words.tier_facts(replace(small_plan, tiers=beyond))[0]
