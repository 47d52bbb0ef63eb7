"""What the answers make of differences, on plans whose numbers are set by hand."""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import replace
from typing import Any, ClassVar

import pytest

from smetric_model.designing import DesignSpace, Prices
from smetric_model.designing.check import Check, Try
from smetric_model.designing.choices import cheaper, which_policy
from smetric_model.designing.figures import designs_figure, sensitivity_figure
from smetric_model.designing.marginals import marginals
from smetric_model.designing.optimum import fewest_by_volume
from smetric_model.designing.pools import far_more, what_pools
from smetric_model.designing.prices import bill_of
from smetric_model.designing.recommended import cheapest_of, recommended_of
from smetric_model.designing.results import Answer, DesignPlan, DesignResult, Goal, Optimum
from smetric_model.designing.rows import counted_units, rate_text, tried_text
from smetric_model.designing.sensitivity import Sensitivity
from smetric_model.designing.verdicts import NOTHING, closed_form_gap, difference
from smetric_model.designing.words import answers
from smetric_model.designing.worth import what_optimal, worth_it
from smetric_model.scenario import Scenario
from smetric_model.tuning.sizing import with_instances

TIER = "global_tier.bytes_per_node"


class Placed:
    """As much of a placement as the answers look at."""

    workload: ClassVar[dict[str, Any]] = {"ideal_reuse_ratio": 0.8}


def scenario(nodes_of: int = 2) -> Scenario:
    return Scenario().replace(
        **{"cluster.gpus_per_node": nodes_of, "cluster.dram_bytes_per_node": 4e12, TIER: 1000e9}
    )


def simulated(count: int, closed: int, low: int | None = None, high: int | None = None) -> Check:
    tried = Try(count, (0.95, 0.96, 0.97), 0.96, 0.02, 95.0, 100.0, 1.0, 0.02)
    low, high = low or count, high or count
    return Check(count, low, high, closed, (tried,), True)


def design(
    name: str,
    closed: int,
    check: Check | None = None,
    changes: Mapping[str, Any] | None = None,
    exact: float = math.nan,
    prices: Prices | None = None,
) -> DesignResult:
    changes = dict(changes or {})
    at = with_instances(scenario().replace(**changes), closed)
    count = closed if check is None or check.instances is None else check.instances
    return DesignResult(
        name=name,
        changes=tuple(changes.items()),
        scenario=at,
        error="",
        row={"instances": closed, "instances_exact": exact, "rate_rps": 3.0, "nodes": 99},
        bill=bill_of(with_instances(at, count), prices or Prices()),
        closed_form_cost=bill_of(at, prices or Prices()).total,
        check=check,
    )


def policy(
    key: str, closed: int, check: Check | None = None, prices: Prices | None = None
) -> DesignResult:
    return design(key, closed, check, {"router.policy": key}, prices=prices)


def planned(
    *designs: DesignResult,
    prices: Prices | None = None,
    goal: Goal = "instances",
    optimum: Optimum | None = None,
    rate_rps: float = 3.0,
) -> DesignPlan:
    some = any(d.check is not None for d in designs)
    return DesignPlan(
        scenario=scenario(),
        goal=goal,
        placement=Placed(),  # type: ignore[arg-type]
        space=DesignSpace({}),
        prices=prices or Prices(),
        designs=designs,
        recommended=recommended_of(designs, goal, some),
        cheapest=cheapest_of(designs, goal, some),
        rate_rps=rate_rps,
        tuning=None,
        marginals=marginals(designs, goal, prices or Prices()),
        optimum=optimum,
        limit=None,
        looser=None,
        sensitivities=(),
        answers=(),
        findings=(),
        notes=(),
        seeds=(0, 1, 2) if some else (),
        elapsed_s=0.0,
        seconds={},
    )


def said(answer: Answer | None) -> str:
    assert answer is not None
    return answer.text


def test_policies_are_compared_by_the_same_source() -> None:
    # 18 is simulated and 21 closed form, for the given policy as well
    plan = planned(
        design("as given", 21, simulated(18, 21)),
        policy("lmetric", 21),
        policy("bailian", 21, simulated(18, 21)),
    )
    text = said(which_policy(plan))
    assert text.startswith(f"SMetric will do: {NOTHING} to LMetric, Bailian.")
    both = "simulated and (closed form): SMetric 18 (21), LMetric – (21), Bailian 18 (21)"
    assert both in text
    assert "costs up to" not in text
    assert "LMetric 18" not in text


def test_a_policy_that_is_really_worse_is_named() -> None:
    plan = planned(
        design("as given", 18, simulated(18, 18)),
        policy("lmetric", 26, simulated(25, 26)),
        policy("bailian", 18, simulated(19, 18)),
    )
    text = said(which_policy(plan))
    assert text.startswith(f"SMetric will do: {NOTHING} to Bailian; LMetric needs 7 more.")


def test_one_instance_never_shows() -> None:
    plan = planned(design("as given", 10, simulated(10, 10)), policy("bailian", 9, simulated(9, 9)))
    for source in ("simulated", "closed form"):
        found = difference(plan, plan.designs[1], source)  # type: ignore[arg-type]
        assert found is not None
        assert (found.more, found.shows) == (-1, False)


def test_the_interval_over_seeds_counts_towards_the_other() -> None:
    wide = planned(
        design("as given", 20, simulated(20, 20, low=17, high=21)),
        policy("bailian", 17, simulated(17, 17)),
        policy("lmetric", 23, simulated(23, 23)),
    )
    shown = [difference(wide, d, "simulated") for d in wide.designs[1:]]
    assert [d.shows for d in shown if d is not None] == [False, True]


def test_the_closed_form_cannot_tell_what_simulation_shows_it_misses() -> None:
    plan = planned(design("as given", 21, simulated(18, 21)), policy("bailian", 18))
    assert closed_form_gap(plan) == 3
    found = difference(plan, plan.designs[1], "closed form")
    assert found is not None
    assert not found.shows
    # one above, one below: the two may be as far apart as both together
    both = planned(
        design("as given", 15, simulated(14, 15)), policy("bailian", 13, simulated(14, 13))
    )
    assert closed_form_gap(both) == 2
    # without any simulation a fifth
    assert closed_form_gap(planned(design("as given", 40), policy("bailian", 36))) == 8


def test_a_share_is_not_rounded_to_what_is_wanted() -> None:
    just_under = Try(14, (0.9498,) * 3, 0.9498, 0.047, 1.0, 1.0, 1.0, 1.0)
    assert tried_text(just_under, 0.95) == "94.98% ± 4.7%"
    assert tried_text(just_under) == "95.0% ± 4.7%"
    assert tried_text(replace(just_under, mean=0.95), 0.95) == "95.0% ± 4.7%"
    assert tried_text(replace(just_under, mean=0.9601), 0.95) == "96.0% ± 4.7%"


def test_a_search_cut_short_has_no_number() -> None:
    cut = Check(10, 10, 10, 20, simulated(10, 20).tries, complete=False)
    plan = planned(design("as given", 20, simulated(20, 20)), policy("bailian", 20, cut))
    assert difference(plan, plan.designs[1], "simulated") is None


@pytest.mark.parametrize(("other", "yes"), [(17, False), (18, False), (19, False), (14, True)])
def test_cheaper_and_policy_agree(other: int, yes: bool) -> None:
    plan = planned(
        design("as given", 18, simulated(18, 18)),
        policy("load-balance", other, simulated(other, other)),
    )
    cheap, which = said(cheaper(plan)), said(which_policy(plan))
    assert cheap.startswith("Yes" if yes else "No")
    assert (NOTHING in which) is not yes
    assert which.startswith("Load balance needs 4 fewer instances than SMetric") is yes
    # what is cheaper by a difference that shows is what is recommended
    assert plan.recommended == ("load-balance" if yes else "as given")
    assert ("in its place" in answers(plan)[0].text) is yes


def test_what_only_the_closed_form_finds_is_no_yes() -> None:
    given = design("as given", 18, simulated(18, 18))
    seen = planned(given, policy("bailian", 12, simulated(18, 18)), policy("lmetric", 17))
    # the gap of six that the simulation of Bailian shows is then the closed form's tolerance
    assert said(cheaper(seen)).startswith("No")
    unseen = planned(given, policy("bailian", 18, simulated(18, 18)), policy("lmetric", 12))
    assert said(cheaper(unseen)).startswith("Perhaps")
    assert "by the closed form alone LMetric 6 fewer (not simulated)" in said(which_policy(unseen))
    assert "not simulated" in said(cheaper(unseen))


def test_a_smaller_tier_is_not_cheaper_within_noise() -> None:
    prices = Prices({"H20": 2.0}, host_memory_gb_hour=0.0001)
    plan = planned(
        design("as given", 18, simulated(18, 18), prices=prices),
        design("tier 500 GB", 18, simulated(17, 18), {TIER: 500e9}, prices=prices),
        prices=prices,
    )
    text = said(cheaper(plan))
    assert text.startswith("No")
    assert NOTHING in text


def test_a_tier_that_costs_more_than_an_instance_is_cheaper_left_out() -> None:
    prices = Prices({"H20": 2.0}, host_memory_gb_hour=0.002)
    plan = planned(
        design("as given", 18, simulated(18, 18), prices=prices),
        design("no tier", 18, simulated(18, 18), {TIER: 0}, prices=prices),
        prices=prices,
    )
    assert said(cheaper(plan)).startswith("Yes")


def tiers(more: float, simulated_more: int | None = None) -> DesignPlan:
    given = design("as given", 21, simulated(18, 19), exact=21.0)
    check = None if simulated_more is None else simulated(simulated_more, 19)
    return planned(
        given,
        design("tier 500 GB", 21, simulated(19, 19), {TIER: 500e9}, exact=21.9),
        design("tier 2 TB", math.ceil(more), check, {TIER: 2000e9}, exact=more),
    )


def test_one_more_with_a_smaller_or_a_larger_tier_is_noise() -> None:
    text = said(worth_it(tiers(20.6, 19), TIER))
    assert text.startswith("No: 2,000 GB/node")
    assert "18 instances as given, 19 with 500 GB/node, 19 with 2,000 GB/node: " + NOTHING in text
    assert "fewer or more by so little is noise" in text
    assert text.count(NOTHING) == 3


def test_a_tier_that_shows_depends_on_the_price_unless_simulation_disagrees() -> None:
    assert said(worth_it(tiers(12.0), TIER)).startswith("It depends on the price")
    assert said(worth_it(tiers(12.0, 18), TIER)).startswith("No")
    text = said(worth_it(tiers(12.0, 11), TIER))
    assert text.startswith("It depends on the price")
    assert "only 2,000 GB/node differs by more than noise" in text


def test_the_tier_is_counted_at_the_instances_of_the_headline() -> None:
    plan = tiers(20.6)  # 18 simulated, two a node: 9 nodes; the closed form's 21 take 11
    up = next(m for m in plan.marginals if m.from_value == 1000e9)
    assert up.units == pytest.approx(9.0)
    assert "(9 TB more in all)" in said(worth_it(plan, TIER))
    assert "on 9 nodes of 2" in answers(plan)[0].text


def bounded(fewest: int | None, volume: int | None, instances: int = 18) -> DesignPlan:
    best = Optimum("as given", instances, 0.938, 0.95, fewest, 3.5, "compute", True, volume)
    return planned(design("as given", 21, simulated(instances, 21)), optimum=best)


def test_the_larger_bound_leads() -> None:
    text = said(what_optimal(bounded(4, 6)))
    assert text.startswith("No router, cache or schedule could do with fewer than 6 instances")
    assert "At most 12 instances of 18 (67%) are to be gained" in text
    # both are named, with what each is about
    assert "6 to carry the load at all, at any latency (these 18 could carry at most 3.5" in text
    assert "and 4 to serve as much within SLO" in text
    assert "share all work between all instances and know the future" in text
    text = said(what_optimal(bounded(9, 6)))
    assert "fewer than 9 instances; SMetric needs 18" in text
    assert "At most 9 instances of 18 (50%)" in text


def test_at_the_bound_nothing_is_to_be_gained() -> None:
    text = said(what_optimal(bounded(18, 6)))
    assert text.startswith("SMetric is at the bound")
    assert "to be gained" not in text


def test_the_volume_bound_in_instances() -> None:
    whole = with_instances(scenario(), 18)
    assert fewest_by_volume(whole, 3.5, 0.0, 0.0) == 6
    assert fewest_by_volume(whole, 18 / 7, 0.0, 0.0) == 7
    assert fewest_by_volume(whole, 0.9, 0.0, 0.0) == 18
    assert fewest_by_volume(whole, 3.5, 0.0, 0.2) is None
    # five take three of nine nodes, with a third of the tier, which may be all that limits
    assert fewest_by_volume(whole, 3.5, 1.0, 0.0) == 5
    pools = whole.replace(
        **{
            "cluster.serving": "disaggregated",
            "cluster.prefill_instances": 6,
            "cluster.decode_instances": 12,
        }
    )
    # five have two of the six for prefill: a third of that pool may be all that limits
    assert fewest_by_volume(pools, 3.0, 0.0, 0.0) == 5


def test_one_is_singular() -> None:
    assert rate_text(1.0) == "1 request/s"
    assert rate_text(1.2) == "1.2 requests/s"
    assert counted_units(1.0, "GPU") == "1 GPU"
    assert counted_units(0.999, "GPU", 2) == "1 GPU"
    assert counted_units(15.0, "GPU") == "15 GPUs"
    # one design has nothing to be compared with
    alone = planned(design("as given", 1, simulated(1, 1)), rate_rps=1.0)
    assert cheaper(alone) is None
    plan = planned(
        design("as given", 1, simulated(1, 1)), policy("bailian", 1, simulated(1, 1)), rate_rps=1.0
    )
    words = " ".join(f"{a.question} {a.text} {a.validity}" for a in answers(plan))
    for wrong in ("1 requests/s", "1 designs", "1 instances", "1 GPUs", "1 nodes"):
        assert f" {wrong}" not in words


def borrowing(name: str, closed: int, prices: Prices, unservable: float = 0.0) -> DesignResult:
    found = design(name, closed, changes={"engine.gpu": name}, prices=prices)
    row = found.row | {"note": "efficiencies of H20 carried over to H100"}
    return replace(found, row=row | {"unservable_ratio": unservable})


def test_borrowed_efficiencies_are_no_advice() -> None:
    prices = Prices({"H20": 2.0, "H100": 4.0})
    given = design("as given", 29, prices=prices)
    near = planned(given, borrowing("H100", 12, prices), prices=prices)
    text = said(cheaper(near))
    assert text.startswith("Perhaps")
    assert "H100 costs 48 price units an hour, as given 58" in text
    assert "carried over to H100" in text
    assert near.recommended == "as given"
    assert near.cheapest == "H100"
    # beyond what their error may be
    far = planned(given, borrowing("H100", 5, prices), prices=prices)
    assert said(cheaper(far)).startswith("Yes")
    assert far.recommended == "H100"


def test_what_serves_fewer_requests_saves_nothing() -> None:
    prices = Prices({"H20": 2.0, "H100": 4.0})
    given = design("as given", 29, prices=prices)
    given = replace(given, row=given.row | {"unservable_ratio": 0.02})
    same = planned(given, borrowing("H100", 5, prices, unservable=0.02), prices=prices)
    assert same.recommended == "H100"
    less = planned(given, borrowing("H100", 5, prices, unservable=0.1), prices=prices)
    assert (less.recommended, less.cheapest) == ("as given", "as given")
    assert cheaper(less) is None or said(cheaper(less)).startswith("No")
    # the headline says of how many requests it speaks
    text = answers(less)[0].text
    assert "3 requests/s, of which 98% (2.94 requests/s) can be served" in text
    assert "with 95% of those within the SLO" in text


def split(name: str, share: float, closed: int, limit: str) -> DesignResult:
    pools = {
        "cluster.serving": "disaggregated",
        "cluster.instances": 2,
        "cluster.prefill_instances": 1,
        "cluster.decode_instances": 1,
    }
    found = design(name, closed)
    at = with_instances(scenario().replace(**pools), closed)
    row = found.row | {"binding_resource": limit}
    return replace(found, changes=(("prefill_share", share),), scenario=at, row=row)


def test_two_pools_have_their_answer_with_what_limits_them() -> None:
    given = design("as given", 29)
    plan = planned(
        given,
        split("50% prefill", 0.5, 179, "prefill_nic_out"),
        split("25% prefill", 0.25, 323, "prefill_nic_out"),
    )
    text = said(what_pools(plan))
    assert text.startswith("No: the best split that was tried, 50% prefill, needs 179 instances")
    assert "6.2 times as many, limited by prefill's outward NICs" in text
    assert "cluster.nics_per_node = 1" in text
    (line,) = far_more(plan)
    assert line.startswith("50% prefill; 25% prefill: limited by prefill's outward NICs")
    better = planned(given, split("50% prefill", 0.5, 20, "decode_kv"))
    assert said(what_pools(better)).startswith("Yes")
    assert far_more(better) == []
    even = planned(given, split("50% prefill", 0.5, 28, "decode_kv"))
    assert NOTHING in said(what_pools(even))
    assert what_pools(planned(given)) is None


def test_what_closed_form_and_simulation_disagree_about_is_said_first() -> None:
    link = {"cluster.nic_bytes_per_s": 50e9}
    as_given = design("as given", 17, simulated(42, 17), exact=16.9)
    plan = planned(as_given, design("link 400 Gbps", 16, simulated(28, 16), link, exact=15.3))
    (text,) = plan.warnings
    assert "disagree here: 17 instances by the closed form, 42 simulated, as given" in text
    assert "2 of the 2 designs" in text
    # simulation decides what both were simulated for, by whatever the closed form says
    answer = said(worth_it(plan, "cluster.nic_bytes_per_s"))
    assert answer.startswith("It depends on the price: 400 Gbps")
    assert "saves 14 GPUs, simulated (by the closed form 1.6)" in answer
    assert "of 2 designs compared: link 400 Gbps needs 28 GPUs, as given 42" in said(cheaper(plan))
    assert plan.recommended == "link 400 Gbps"
    near = planned(design("as given", 15, simulated(14, 15, 13, 16)))
    assert near.warnings == ()
    assert planned(design("as given", 17)).warnings == ()  # nothing was simulated


def test_even_the_largest_number_tried_is_too_few() -> None:
    tried = Try(60, (0.4, 0.5, 0.6), 0.5, 0.2, 95.0, 100.0, 1.0, 0.02)
    plan = planned(design("as given", 17, Check(None, None, None, 17, (tried,), False)))
    assert "finds even 60 too few" in plan.warnings[0]


def test_windows_at_another_rate_are_said() -> None:
    check = simulated(14, 14)
    at = replace(check.tries[0], arrival_rate_rps=2.6)
    (text,) = planned(design("as given", 14, replace(check, tries=(at,)))).warnings
    assert "had 2.6 requests/s on average where 3 requests/s are asked for" in text
    assert "smaller rate" in text
    at = replace(at, arrival_rate_rps=2.9)
    assert planned(design("as given", 14, replace(check, tries=(at,)))).warnings == ()


def test_labels_of_bars_that_are_nothing_stand_apart() -> None:
    moves = [
        Sensitivity("slo.ttft", "TTFT SLO", change, factor, 1.0, 0.0, 10.0)
        for change, factor in (("+25%", 1.25), ("−20%", 0.8))
    ]
    moves += [
        Sensitivity("outputs", "outputs", "+20%", 1.2, 1.0, -0.1, 10.5),
        Sensitivity("outputs", "outputs", "−20%", 0.8, 1.0, -0.1, 10.0),
        Sensitivity("workload.rate_rps", "requests/s", "+20%", 1.2, 1.0, math.nan, 12.0),
        Sensitivity("workload.rate_rps", "requests/s", "−20%", 0.8, 1.0, math.nan, 8.0),
    ]
    plan = replace(planned(design("as given", 10)), sensitivities=tuple(moves))
    (axes,) = sensitivity_figure(plan).axes
    sides: dict[float, set[str]] = {}
    for label in axes.texts:
        sides.setdefault(label.xy[1], set()).add(str(label.get_horizontalalignment()))
    assert list(sides.values()) == [{"left", "right"}] * 3


def test_the_chart_shows_where_simulation_puts_the_given_design() -> None:
    plan = planned(design("as given", 17, simulated(42, 17)), policy("bailian", 17))
    plan = replace(
        plan, designs=tuple(replace(d, row={**d.row, "ttft_p90_s": 2.0}) for d in plan.designs)
    )
    (axes,) = designs_figure(plan).axes
    costs = {float(x) for line in axes.lines for x in line.get_xdata()}  # type: ignore[union-attr]
    assert costs == {17.0, 42.0}


def few(shares: Mapping[int, tuple[float, float]]) -> Check:
    tries = tuple(
        Try(n, (mean,) * 3, mean, half, 95.0, 100.0, 1.0, 0.02)
        for n, (mean, half) in shares.items()
    )
    count = next(n for n, (mean, _) in shares.items() if mean >= 0.95)
    low = next(n for n, (mean, half) in shares.items() if mean + half >= 0.95)
    high = next((n for n, (mean, half) in shares.items() if mean - half >= 0.95), None)
    return Check(count, low, high, min(shares), tries, True)


def no_tier(shares: Mapping[int, tuple[float, float]]) -> DesignPlan:
    slower = {TIER: 0, "cluster.nic_bytes_per_s": 12.5e9}
    given = design("as given", 1, few({1: (0.999, 0.003)}), exact=1.0)
    both = design("no tier, link 100 Gbps", 1, few(shares), slower, exact=1.0)
    plan = planned(
        given,
        both,
        design("tier 500 GB", 1, None, {TIER: 500e9}, exact=1.0),
        design("no tier", 1, None, {TIER: 0}, exact=1.0),
        design("link 100 Gbps", 1, None, {"cluster.nic_bytes_per_s": 12.5e9}, exact=1.0),
    )
    rows = [replace(d, row={**d.row, "within_slo_ratio": 0.9998}) for d in plan.designs]
    return replace(plan, designs=tuple(rows))


def test_the_tier_answer_does_not_contradict_a_simulated_row() -> None:
    plan = no_tier({1: (0.905, 0.003), 2: (1.0, 0.0)})
    said_of = "but simulation of no tier, link 100 Gbps needs 2 instances (1 as given; 90.5%"
    text = said(worth_it(plan, TIER))
    assert f"None at all costs nothing more by the closed form, {said_of}" in text
    assert "500 GB/node (0.5 TB less) costs nothing. None" in text
    assert said_of in said(worth_it(plan, "cluster.nic_bytes_per_s"))
    (warning,) = plan.warnings
    assert "1 instance by the closed form (>99.9% within SLO; simulated 90.5% ± 0.3%)" in warning
    assert "2 simulated, with no tier, link 100 Gbps" in warning


def test_few_instances_within_noise_are_no_contradiction() -> None:
    plan = no_tier({1: (0.94, 0.03), 2: (1.0, 0.0)})
    assert plan.warnings == ()
    text = said(worth_it(plan, TIER))
    assert "None at all costs nothing more." in text
    assert f"no tier, link 100 Gbps needs 2: {NOTHING}" in text
    # a share that is refuted by a hair is no reason either
    assert no_tier({1: (0.9499, 0.0), 2: (1.0, 0.0)}).warnings == ()


def test_one_of_few_instances_shows_beyond_the_intervals() -> None:
    for shares, shows in (
        ({1: (0.905, 0.003), 2: (1.0, 0.0)}, True),
        ({1: (0.94, 0.03), 2: (1.0, 0.0)}, False),
    ):
        plan = no_tier(shares)
        found = difference(plan, plan.designs[1], "simulated")
        assert found is not None
        assert (found.more, found.shows) == (1, shows)


def test_a_load_multiple_is_not_rounded_up_to_what_it_would_contradict() -> None:
    best = Optimum("as given", 14, 0.957, 0.95, 6, 1.9991, "compute", True, 8)
    text = said(what_optimal(planned(design("as given", 13, simulated(14, 13)), optimum=best)))
    assert "these 14 could carry at most 1.99 times this load" in text
    best = replace(best, instances=9)
    text = said(what_optimal(planned(design("as given", 9, simulated(9, 9)), optimum=best)))
    assert "At most 1 instance of 9 (11%) is to be gained" in text


def test_a_larger_tier_that_comes_out_dearer_gains_nothing() -> None:
    plan = planned(
        design("as given", 38, simulated(38, 37), exact=36.9),
        design("tier 2 TB", 38, simulated(38, 38), {TIER: 2000e9}, exact=38.1),
    )
    text = said(worth_it(plan, TIER))
    assert "(19 TB more in all) gains nothing by the closed form" in text
    assert "more by the closed form" not in text
