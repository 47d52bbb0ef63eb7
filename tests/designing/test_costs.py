"""The bill, who bears it, and the designs that no other beats."""

from __future__ import annotations

import math
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from smetric_model.designing.costs import pareto_front, token_costs
from smetric_model.designing.engine_time import CLASSES
from smetric_model.designing.prices import Bill, Prices, bill_of, read_prices
from smetric_model.errors import SpecError
from smetric_model.scenario import Scenario

share = st.floats(0, 1)
money = st.floats(0, 1e4)
tps = st.sampled_from([0.0, 1e-2, 3.0, 1e5])


def row(
    gpu: list[float], link: list[float], tokens: list[float], fetched: float
) -> dict[str, float]:
    whole = sum(gpu) or 1.0
    moved = sum(link) or 1.0
    found = {f"gpu_{name}_ratio": v / whole for name, v in zip(CLASSES, gpu, strict=True)}
    found |= {f"link_{name}_ratio": v / moved for name, v in zip(CLASSES, link, strict=True)}
    found |= {f"{name}_tps": v for name, v in zip(CLASSES, tokens, strict=True)}
    return found | {"global_ratio": fetched, "total_within_slo_tps": 0.9 * sum(tokens)}


@given(
    st.lists(share, min_size=3, max_size=3).filter(lambda v: min(v) > 1e-6),
    st.lists(share, min_size=3, max_size=3),
    st.lists(tps, min_size=3, max_size=3).filter(lambda v: sum(v) > 0),
    st.sampled_from([0.0, 0.3]),
    st.tuples(money, money, money, money),
)
def test_the_classes_bear_the_whole_bill(
    gpu: list[float],
    link: list[float],
    tokens: list[float],
    fetched: float,
    parts: tuple[float, float, float, float],
) -> None:
    bill = Bill(*parts)
    costs = token_costs(bill, row(gpu, link, tokens, fetched))
    borne = sum(
        getattr(costs, name) * rate * 3600 / 1e6
        for name, rate in zip(CLASSES, tokens, strict=True)
        if rate > 0
    )
    assert borne == pytest.approx(bill.total, rel=1e-9, abs=1e-12)
    assert costs.total * sum(tokens) * 3600 / 1e6 == pytest.approx(bill.total, rel=1e-9, abs=1e-12)
    for name, rate in zip(CLASSES, tokens, strict=True):
        assert math.isnan(getattr(costs, name)) == (rate == 0)


def test_each_part_goes_where_it_is_used() -> None:
    found = row([0.5, 0.25, 0.25], [0, 1, 0], [1e3, 1e4, 1e2], 0.4)
    costs = token_costs(Bill(gpus=100, nodes=0, host_memory=10, nics=1), found)
    assert costs.shares["computed_prompt"] == pytest.approx(50 / 111)
    assert costs.shares["reused_prompt"] == pytest.approx(36 / 111)
    assert costs.shares["output"] == pytest.approx(25 / 111)
    assert costs.computed_prompt == pytest.approx(50 / (3600 * 1e3) * 1e6)
    # a tier from which nothing comes, and links on which nothing moves, are everybody's
    unused = token_costs(
        Bill(gpus=100, nodes=0, host_memory=10, nics=1),
        row([0.5, 0.25, 0.25], [0, 0, 0], [1e3, 1e4, 1e2], 0.0),
    )
    assert unused.shares["output"] == pytest.approx(0.25)


points = st.lists(
    st.tuples(st.sampled_from([0.0, 1.0, 2.0, 3.0]), st.sampled_from([0.0, 1.0, 2.0])), max_size=12
)


@given(points)
def test_the_front_is_what_none_beats(found: list[tuple[float, float]]) -> None:
    front = pareto_front(found)
    for k, (x, y) in enumerate(found):
        better = [(a, b) for a, b in found if a <= x and b <= y and (a, b) != (x, y)]
        assert front[k] == (not better)
    assert any(front) == bool(found)


def test_a_missing_figure_is_on_no_front() -> None:
    assert pareto_front([(1.0, math.nan), (2.0, 2.0)]) == [False, True]


def test_the_bill_by_hand() -> None:
    scenario = Scenario.from_dict({"cluster": {"instances": 12, "nics_per_node": 2}})
    prices = Prices({"H20": 2.0}, host_memory_gb_hour=0.001, nic_gbps_hour=0.01, node_hour=3.0)
    bill = bill_of(scenario, prices)  # two nodes of 1,000 GB and 2 x 200 Gbit/s
    assert (bill.gpus, bill.nodes) == (24.0, 6.0)
    assert bill.host_memory == pytest.approx(2.0)
    assert bill.nics == pytest.approx(8.0)
    assert bill.total == pytest.approx(40.0)


def test_without_prices_the_unit_is_the_gpu_hour() -> None:
    scenario = Scenario.from_dict({"engine": {"tp": 2}, "cluster": {"instances": 5}})
    assert bill_of(scenario, Prices()).total == 10.0
    assert Prices().unit == "GPU-hours"


def test_a_gpu_without_a_price() -> None:
    with pytest.raises(SpecError, match="no gpu_hour of H20; there is one of H100"):
        bill_of(Scenario(), Prices({"H100": 1.0}))


@pytest.mark.parametrize(
    ("text", "told"),
    [
        ("gpu_hour.H20 = -1", "at least 0"),
        ("gpu_hour.H20 = nan", "at least 0"),
        ('gpu_hour.H20 = "2"', "at least 0"),
        ("gpu_hour = 2", "a table by GPU"),
        ("gpu_hours.H20 = 2", "did you mean gpu_hour"),
        ("node_hour = 2", "gpu_hour is missing"),
        ("currency = 1", "a text is needed"),
        ('currency = "EUR"', "no price is given"),
    ],
)
def test_wrong_prices_are_told_in_words(tmp_path: Path, text: str, told: str) -> None:
    path = tmp_path / "prices.toml"
    path.write_text(f"[prices]\n{text}\n")
    with pytest.raises(SpecError, match=told) as error:
        read_prices(path)
    assert str(path) in str(error.value)


def test_prices_of_a_file(tmp_path: Path) -> None:
    path = tmp_path / "prices.toml"
    path.write_text('[prices]\ncurrency = "EUR"\nnode_hour = 4\n[prices.gpu_hour]\nH20 = 2.5\n')
    prices = read_prices(path)
    assert prices.gpu_hour == {"H20": 2.5}
    assert (prices.unit, prices.node_hour, prices.given) == ("EUR", 4, True)
