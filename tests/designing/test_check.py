"""Numbers of instances confirmed by simulation, with simulations whose answer is known."""

from __future__ import annotations

import math
import time
from collections.abc import Mapping, Sequence
from typing import Any, ClassVar

import pytest

from smetric_model.designing.check import MOST_TRIES, Check, check_capacity, check_instances
from smetric_model.designing.sensitivity import attained
from smetric_model.scenario import Scenario
from smetric_model.searches import fewest, fewest_near


class Known:
    """Simulations by formula: a share that grows by 1 % an instance, seeds apart by a spread."""

    def __init__(self, enough: int, spread: float = 0.0, error: str = ""):
        self.enough, self.spread, self.error = enough, spread, error
        self.asked: list[int] = []
        self.rounds = 0

    def simulate(
        self, designs: Mapping[str, Scenario], seeds: Sequence[int]
    ) -> list[list[dict[str, Any]]]:
        self.rounds += 1
        answers = []
        for scenario in designs.values():
            count = scenario.cluster.instances
            self.asked.append(count)
            share = 0.9501 + 0.01 * (count - self.enough)
            answers.append(
                [
                    {"error": self.error}
                    if self.error
                    else {
                        "within_slo_ratio": share + self.spread * (k - (len(seeds) - 1) / 2),
                        "total_tps": 100.0,
                        "total_within_slo_tps": 90.0,
                        "ttft_p90_s": 1.0,
                        "tpot_p90_s": 0.02,
                        "error": "",
                    }
                    for k, _ in enumerate(seeds)
                ]
            )
        return answers


def checked(known: Any, start: int, ranged: bool = False, deadline: float = math.inf) -> Check:
    names = ["a"] if ranged else []
    return check_instances(
        known, {"a": Scenario()}, {"a": start}, [0, 1, 2], lambda _checks: names, deadline
    )["a"]


@pytest.mark.parametrize("start", [7, 9, 10, 11, 14])
def test_the_fewest_is_found_from_either_side(start: int) -> None:
    known = Known(10)
    check = checked(known, start)
    assert check.instances == 10
    assert check.complete
    assert {9, 10} <= set(known.asked)
    assert len(known.asked) == len(set(known.asked))
    assert [t.instances for t in check.tries] == sorted(t.instances for t in check.tries)


def test_the_interval_over_seeds_gives_a_range() -> None:
    # three seeds 1 % apart: half the interval is 4.30 * 1 % / sqrt(3) = 2.5 %
    check = checked(Known(10, spread=0.01), 10, ranged=True)
    assert check.instances == 10
    assert (check.low, check.high) == (8, 13)
    at = check.at
    assert at is not None
    assert at.half_width == pytest.approx(4.3027 * 0.01 / math.sqrt(3), rel=1e-3)


def test_without_spread_the_range_is_the_answer() -> None:
    check = checked(Known(10), 12, ranged=True)
    assert (check.low, check.instances, check.high) == (10, 10, 10)


def test_tries_are_limited_and_it_is_said() -> None:
    check = checked(Known(1_000_000), 10)
    assert check.instances is None
    assert not check.complete
    assert len(check.tries) == MOST_TRIES


class Tabled(Known):
    """Simulations by a table: shares within SLO that a plan's own search met, in per cent."""

    MET: ClassVar[dict[int, float]] = {
        17: 0.7, 18: 1.4, 20: 5.6, 24: 20.4, 32: 54.3, 40: 91.7, 41: 94.7, 42: 96.5, 43: 97.5,
        44: 98.7, 48: 99.8,
    }  # fmt: skip

    def simulate(
        self, designs: Mapping[str, Scenario], seeds: Sequence[int]
    ) -> list[list[dict[str, Any]]]:
        answers = super().simulate(designs, seeds)
        for scenario, rows in zip(designs.values(), answers, strict=True):
            for row in rows:
                row["within_slo_ratio"] = self.MET[scenario.cluster.instances] / 100
                row["arrival_rate_rps"] = 7.5
        return answers


@pytest.mark.parametrize("most", [8, MOST_TRIES])
def test_the_answer_is_the_fewest_of_all_tries(monkeypatch: pytest.MonkeyPatch, most: int) -> None:
    # far from the closed form, the search may be cut short at 44, and tries for the range go on
    monkeypatch.setattr("smetric_model.designing.check.MOST_TRIES", most)
    check = checked(Tabled(0), 17, ranged=True)
    assert check.instances == 42
    assert check.refuted == 41
    assert check.complete
    assert (check.low, check.high) == (42, 42)
    at = check.at
    assert at is not None
    assert (at.mean, at.arrival_rate_rps) == pytest.approx((0.965, 7.5))


def test_a_search_cut_short_says_which_numbers_it_refuted(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("smetric_model.designing.check.MOST_TRIES", 7)
    check = checked(Tabled(0), 17)
    assert (check.refuted, check.instances, check.complete) == (40, 48, False)


def test_what_cannot_be_simulated_is_asked_once() -> None:
    known = Known(10, error="not simulated: x")
    check = checked(known, 10, ranged=True)
    assert check.instances is None
    assert known.asked == [10]
    assert check.at is not None
    assert check.at.error == "not simulated: x"


def test_after_the_deadline_no_round_begins() -> None:
    known = Known(10)
    check = checked(known, 10, ranged=True, deadline=time.monotonic() - 1)
    assert known.rounds == 0
    assert check.instances is None
    assert not check.complete
    assert check.at is None


def test_designs_are_tried_in_the_same_rounds() -> None:
    known: Any = Known(10)
    designs = {"a": Scenario(), "b": Scenario()}
    checks = check_instances(known, designs, {"a": 9, "b": 12}, [0, 1, 2], lambda _c: [])
    assert [c.instances for c in checks.values()] == [10, 10]
    assert known.rounds < len(known.asked)


def test_given_instances_are_simulated_once() -> None:
    known: Any = Known(30)
    (check,) = check_capacity(known, {"a": Scenario()}, [0, 1, 2]).values()
    assert check.instances == 32
    (short,) = check_capacity(Known(40), {"a": Scenario()}, [0, 1, 2]).values()  # type: ignore[arg-type]
    assert short.instances is None


@pytest.mark.parametrize("least", [1, 2])
@pytest.mark.parametrize("start", [1, 2, 5, 17, 40])
def test_near_searches_find_what_searches_find(least: int, start: int) -> None:
    for edge in range(1, 45):
        tried: list[int] = []

        def good(count: int, edge: int = edge, tried: list[int] = tried) -> bool:
            tried.append(count)
            return count >= edge

        found = fewest_near(good, start, least)
        asked = list(tried)
        assert found == max(fewest(good, start) or 0, least)
        assert len(asked) == len(set(asked))
        assert min(asked) >= least
    assert fewest_near(lambda _n: False, start, least, most=100) is None


def test_the_attained_rate(monkeypatch: pytest.MonkeyPatch) -> None:
    class Row:
        def __init__(self, rate: float):
            self.rate = rate

        def number(self, _name: str) -> float:
            return 1.0 - 0.01 * self.rate  # 0.95 at 5 requests/s

    monkeypatch.setattr(
        "smetric_model.designing.sensitivity.predict",
        lambda scenario, demand: Row(scenario.workload.rate_rps),
    )
    for start in (0.2, 4.0, 5.0, 30.0):
        found = attained(Scenario(), None, start).rate_rps  # type: ignore[arg-type]
        assert 5.0 * (1 - 0.01) <= found <= 5.0
    assert attained(Scenario(), None, 1e5).rate_rps == 0.0  # type: ignore[arg-type]
