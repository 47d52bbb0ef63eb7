"""A search over few designs, whole: closed form, simulation, bound, answers."""

from __future__ import annotations

import json
import math
from pathlib import Path
from typing import TYPE_CHECKING

import pytest

from smetric_model.analytic.demand import cluster_of, demand_of, trace_of
from smetric_model.analytic.predict import predict
from smetric_model.designing import DesignSpace, Prices, plan
from smetric_model.designing.closed_form import size_design, sized
from smetric_model.designing.costs import token_costs
from smetric_model.designing.engine_time import CLASSES
from smetric_model.designing.prices import bill_of
from smetric_model.designing.rows import spent_text
from smetric_model.designing.sensitivity import with_outputs
from smetric_model.errors import SpecError
from smetric_model.simulate import simulate
from smetric_model.tuning import fewest_instances
from smetric_model.tuning.sizing import with_instances

if TYPE_CHECKING:
    from smetric_model.designing import DesignPlan
    from smetric_model.scenario import Scenario

FEW = DesignSpace({"router.policy": ("smetric", "bailian")})


@pytest.fixture
def light(monkeypatch: pytest.MonkeyPatch, small_search: DesignPlan) -> None:
    """Without the parts that other tests look at."""

    build = "smetric_model.designing.build"
    monkeypatch.setattr(f"{build}.thresholds", lambda *_a, **_k: None)
    monkeypatch.setattr(f"{build}.what_limits", lambda *_a, **_k: (None, ()))
    monkeypatch.setattr(f"{build}.placement_of", lambda *_a, **_k: small_search.placement)
    monkeypatch.setattr(f"{build}.optimum_of", lambda *_a, **_k: None)


def test_the_closed_form_finds_the_fewest(small_search: DesignPlan) -> None:
    asked = small_search.scenario
    known = fewest_instances(asked)
    given = small_search.given
    assert given.closed_form_instances == known.instances
    assert known.outcome is not None
    assert given.row["within_slo_ratio"] == known.outcome["within_slo_ratio"]
    exact = given.number("instances_exact")
    assert known.instances is not None
    assert known.instances - 1 < exact <= known.instances or math.isnan(exact)


@pytest.mark.parametrize("start", [None, 1, 9])
def test_the_start_does_not_matter(search_scenario: Scenario, start: int | None) -> None:
    demand = demand_of(search_scenario, trace_of(search_scenario))
    found = sized(search_scenario, demand, start)
    assert found.instances == fewest_instances(search_scenario, demand=demand).instances


def test_the_simulated_number_is_the_fewest_that_simulation_confirms(
    small_search: DesignPlan,
) -> None:
    check = small_search.given.check
    assert check is not None
    assert check.instances is not None
    assert small_search.given.instances == check.instances
    wanted = small_search.scenario.slo.attainment

    def mean(count: int) -> float:
        base = with_instances(small_search.scenario, count)
        rows = [simulate(base.replace(seed=seed)) for seed in small_search.seeds]
        return sum(row.number("within_slo_ratio") for row in rows) / len(rows)

    assert mean(check.instances) >= wanted
    if check.instances > 1:
        assert mean(check.instances - 1) < wanted
    tried = check.tried(check.instances)
    assert tried is not None
    assert tried.mean == pytest.approx(mean(check.instances))
    assert check.low is not None
    assert check.low <= check.instances


def test_what_cannot_be_is_a_row_with_its_reason(small_search: DesignPlan) -> None:
    design = small_search["L40S"]
    assert "does not fit" in design.error
    assert design.instances is None
    frame = small_search.frame().set_index("design")
    assert "does not fit" in frame.loc["L40S", "error"]
    assert math.isnan(frame.loc["L40S", "cost_per_hour"])
    assert len(frame) == len(small_search.designs)


def test_the_frame_is_tidy(small_search: DesignPlan) -> None:
    frame = small_search.frame()
    assert frame.columns.is_unique
    assert not any(frame[name].map(lambda v: isinstance(v, dict | list)).any() for name in frame)
    given = frame.iloc[0]
    assert given["design"] == "as given"
    assert given["global_tier.bytes_per_node"] == 1000e9
    assert given["cost_per_hour"] == given["gpus"] == small_search.given.gpus


def test_the_classes_bear_the_bill_of_a_real_design(small_search: DesignPlan) -> None:
    design = small_search.given
    assert design.costs is not None
    assert design.bill is not None
    for kind in ("gpu", "link"):
        shares = [design.number(f"{kind}_{name}_ratio") for name in CLASSES]
        assert min(shares) >= 0
        assert sum(shares) == pytest.approx(1.0)
    borne = sum(
        getattr(design.costs, name) * design.number(f"{name}_tps") * 3600 / 1e6
        for name in CLASSES
        if design.number(f"{name}_tps") > 0
    )
    assert borne == pytest.approx(design.bill.total)


def test_two_pools_share_the_bill_by_pool(search_scenario: Scenario) -> None:
    pools = search_scenario.replace(
        **{
            "cluster.serving": "disaggregated",
            "cluster.instances": 8,
            "cluster.prefill_instances": 4,
            "cluster.decode_instances": 4,
        }
    )
    row = size_design(pools)
    assert row["prefill_instances"] + row["decode_instances"] == row["instances"]
    # the decode pool reads prompts' KV: output bears no more than that pool
    assert 0 < row["gpu_output_ratio"] <= row["decode_instances"] / row["instances"]
    assert sum(row[f"gpu_{name}_ratio"] for name in CLASSES) == pytest.approx(1.0)


PRICED = {
    "colocated": {},
    "no tier": {"global_tier.bytes_per_node": 0.0},
    "two GPUs an instance, two NICs": {"engine.tp": 2, "cluster.nics_per_node": 2},
    "one node": {"workload.rate_rps": 0.05, "cluster.instances": 1},
    "two pools": {
        "cluster.serving": "disaggregated",
        "cluster.instances": 8,
        "cluster.prefill_instances": 4,
        "cluster.decode_instances": 4,
    },
    "two pools, no tier, four NICs": {
        "cluster.serving": "disaggregated",
        "cluster.instances": 8,
        "cluster.prefill_instances": 4,
        "cluster.decode_instances": 4,
        "cluster.nics_per_node": 4,
        "global_tier.bytes_per_node": 0.0,
    },
    "a preset": {"workload.trace": None, "workload.preset": "bailian-trace-1-short"},
}


@pytest.mark.parametrize("name", PRICED)
def test_costs_of_the_classes_times_their_tokens_are_the_bill(
    search_scenario: Scenario, name: str
) -> None:
    """With prices of GPUs, memory, NICs and nodes, and of each alone."""
    asked = search_scenario.replace(**PRICED[name])
    row = size_design(asked)
    sized_to = with_instances(asked, int(row["instances"]))
    parts = {
        "gpu_hour": {"H20": 2.0},
        "host_memory_gb_hour": 0.002,
        "nic_gbps_hour": 0.005,
        "node_hour": 1.0,
    }
    alone = [{"gpu_hour": {"H20": 0.0}} | {k: v} for k, v in parts.items()]
    costs = []
    for given in (parts, *alone):
        bill = bill_of(sized_to, Prices(**given))  # type: ignore[arg-type]
        found = token_costs(bill, row)
        borne = {
            kind: getattr(found, kind) * row[f"{kind}_tps"] * 3600 / 1e6
            for kind in CLASSES
            if row[f"{kind}_tps"] > 0
        }
        assert sum(borne.values()) == pytest.approx(bill.total, rel=1e-9)
        assert found.total * sum(row[f"{kind}_tps"] for kind in CLASSES) * 3600 / 1e6 == (
            pytest.approx(bill.total, rel=1e-9)
        )
        costs.append((bill.total, borne))
    # what is paid for by itself adds up to what is paid for together, class by class
    assert sum(total for total, _ in costs[1:]) == pytest.approx(costs[0][0])
    for kind, whole in costs[0][1].items():
        assert sum(borne[kind] for _, borne in costs[1:]) == pytest.approx(whole)
    memory = costs[2][1]
    if row["global_ratio"] > 0:  # the tier is there for what is reused
        assert memory["reused_prompt"] == pytest.approx(costs[2][0])
    assert (costs[2][0] > 0) == (asked.global_tier.bytes_per_node > 0)


def test_no_router_is_beyond_the_bound(small_search: DesignPlan) -> None:
    optimum = small_search.optimum
    assert optimum is not None
    assert 0 < optimum.goodput_share <= 1 + 1e-9
    assert optimum.fewest_instances is not None
    assert optimum.fewest_instances <= optimum.instances
    assert optimum.volume_load_multiple > 0


def test_a_larger_tier_is_compared_in_steps(small_search: DesignPlan) -> None:
    steps = [m for m in small_search.marginals if m.key == "global_tier.bytes_per_node"]
    assert [(m.from_value, m.to_value) for m in steps] == [(0, 1000e9), (1000e9, 2000e9)]
    for step in steps:
        sized = with_instances(small_search.scenario, small_search.given.instances or 0)
        assert step.units == pytest.approx(cluster_of(sized).nodes)
        assert step.saved_per_unit == pytest.approx(step.saved_gpus / step.units)
        assert math.isnan(step.cost)


def test_more_load_needs_more(small_search: DesignPlan) -> None:
    moves = {(m.key, m.change): m for m in small_search.sensitivities}
    needed = moves["workload.rate_rps", "+20%"].instances / 1.2
    assert moves["workload.rate_rps", "−20%"].instances == pytest.approx(0.8 * needed)
    for key, sign in (("output_tokens", 1), ("slo.ttft", -1), ("slo.tpot_s", -1)):
        less, more = moves[key, "−20%"].instances, moves[key, "+25%"].instances
        assert sign * (more - less) >= -0.03 * needed
    slow = moves["efficiencies.*_compute", "−10%"].instances
    fast = moves["efficiencies.*_compute", "+10%"].instances
    assert slow >= fast


def test_what_ends_the_capacity(small_search: DesignPlan) -> None:
    limit, wanted = small_search.limit, small_search.scenario.slo.attainment
    assert limit is not None
    assert not limit.saturated
    assert wanted <= limit.within_slo_ratio < wanted + 0.02
    assert limit.within_slo_ratio < limit.idle_within_slo_ratio <= 1
    sized = small_search.advised.sized
    assert sized is not None
    at = sized.replace(**{"workload.rate_rps": limit.rate_rps})
    assert predict(at).number("within_slo_ratio") == pytest.approx(limit.within_slo_ratio)


@pytest.mark.shared
def test_other_outputs_are_of_the_same_requests(shared_dir: Path) -> None:
    """What cannot be served still counts: else the same rate would be more work."""
    from smetric_model import Scenario

    trace = shared_dir / "traces" / "weka-claude-code-120.jsonl.gz"
    asked = Scenario().replace(**{"workload.trace": str(trace), "workload.rate_rps": 2.4})
    demand = demand_of(asked, trace_of(asked))
    assert demand.unservable_ratio > 0.05
    same = with_outputs(asked, demand, 1.0)
    assert same.unservable == demand.unservable
    assert same.requests == demand.requests
    here = with_instances(asked, 29)
    tps = predict(here, demand=demand).number("total_tps")
    assert predict(here, demand=same).number("total_tps") == pytest.approx(tps, rel=1e-6)
    less, more = (with_outputs(asked, demand, factor) for factor in (0.8, 1.25))
    assert less.unservable_ratio == demand.unservable_ratio <= more.unservable_ratio
    busy = [
        predict(here, demand=one).number("compute_utilisation_ratio")
        for one in (less, demand, more)
    ]
    assert busy == sorted(busy)


def test_one_clear_field_each(small_search: DesignPlan) -> None:
    content = small_search.to_dict()
    for name in ("recommended", "cheapest"):
        design = small_search[getattr(small_search, name)]
        assert content[name]["design"] == design.name
        assert content[name]["instances"] == design.instances
        assert content[name]["gpus"] == design.gpus
    assert "best" not in content
    # the tables of placement are of what is recommended
    assert content["placement"]["instances"] == small_search.advised.instances
    assert content["scenario"]["cluster"]["instances"] == 6
    assert small_search.placement.scenario.cluster.instances == small_search.advised.instances


def test_the_time_is_the_sum_of_its_parts(small_search: DesignPlan) -> None:
    more = small_search.with_time("report", 2.34)
    for plan_ in (small_search, more):
        assert sum(plan_.seconds.values()) == pytest.approx(plan_.elapsed_s)
        whole, _, parts = spent_text(plan_).partition(" s (")
        shown = [float(part.split()[-2]) for part in parts.rstrip(")").split(", ")]
        assert sum(shown) == pytest.approx(float(whole))
    assert more.elapsed_s == pytest.approx(small_search.elapsed_s + 2.34)
    assert "report 2.3 s" in spent_text(more)


def test_every_answer_has_its_source(small_search: DesignPlan) -> None:
    questions = [answer.question for answer in small_search.answers]
    assert questions[0] == "How many H20 for 0.8 requests/s?"
    assert "How far from optimal is it?" in questions
    assert "What do tokens cost?" in questions
    for answer in small_search.answers:
        assert answer.source
        assert answer.text.endswith(".")
        for ugly in ("nan", "None", "..", "  "):
            assert ugly not in answer.text, answer.text
    assert f"{small_search.given.instances} H20" in small_search.answers[0].text


def test_json_is_whole_and_finite(small_search: DesignPlan) -> None:
    content = json.loads(json.dumps(small_search.to_dict(), allow_nan=False))
    assert content["goal"] == "instances"
    assert [d["name"] for d in content["designs"]] == [d.name for d in small_search.designs]
    assert content["ends"].keys() == {"none", "tiers", "ideal"}
    assert content["answers"][0]["source"].startswith("simulated, 3 seeds")


def test_findings_of_others_stand_beside(small_search: DesignPlan) -> None:
    class Found:
        title = "What does a lost node cost?"
        words = ("Two instances.",)
        notes = ("as far as known",)

        def to_dict(self) -> dict[str, object]:
            return {"title": self.title}

    more = small_search.with_findings([Found()])
    assert more.to_dict()["findings"] == [{"title": Found.title}]
    assert small_search.findings == ()


def test_every_part_is_found_again(search_scenario: Scenario, tmp_path: Path) -> None:
    def once() -> DesignPlan:
        return plan(search_scenario, space=FEW, check=-1, folder=tmp_path, operations=0)

    first = once()
    second = once()
    assert (second.computed, second.found) == (0, first.computed)
    kept = ("answers", "ends", "tiers", "steps", "tuning", "sensitivities", "limit", "findings")
    one, two = first.to_dict(), second.to_dict()
    for name in (*kept, "notes", "recommended", "placement", "scenario", "workload"):
        assert json.dumps(two[name]) == json.dumps(one[name]), name
    assert len(two["findings"]) == 5
    assert [f.tables.keys() for f in second.findings] == [f.tables.keys() for f in first.findings]  # type: ignore[attr-defined]


@pytest.mark.usefixtures("light")
def test_finished_answers_are_found_again(search_scenario: Scenario, tmp_path: Path) -> None:
    def once() -> DesignPlan:
        return plan(search_scenario, space=FEW, check=0, seeds=3, folder=tmp_path)

    first, second = once(), once()
    assert first.found == 0
    assert first.computed >= 5
    assert (second.computed, second.found) == (0, first.computed)
    assert second.to_dict()["designs"] == first.to_dict()["designs"]
    # other prices are no other answers
    priced = plan(
        search_scenario, space=FEW, check=0, seeds=3, folder=tmp_path, prices=Prices({"H20": 2.0})
    )
    assert priced.computed == 0
    assert priced.given.bill is not None
    assert priced.given.bill.total == 2 * (priced.given.gpus or 0)


@pytest.mark.usefixtures("light")
def test_an_interrupt_keeps_what_was_finished(search_scenario: Scenario, tmp_path: Path) -> None:
    def stop(text: str) -> None:
        if text == "simulation: 2 of 3 done":
            raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        plan(search_scenario, progress=stop, space=FEW, check=0, seeds=3, folder=tmp_path)
    went_on = plan(search_scenario, space=FEW, check=0, seeds=3, folder=tmp_path)
    assert went_on.found == 4  # two designs in closed form, two simulations
    assert went_on.given.check is not None


@pytest.mark.usefixtures("light")
def test_without_simulation_the_closed_form_says_so(search_scenario: Scenario) -> None:
    quick = plan(search_scenario, space=FEW, check=-1)
    assert quick.seeds == ()
    assert quick.optimum is None
    assert quick.given.source == "closed form"
    assert quick.answers[0].source == "closed form"
    assert any("nothing was simulated" in note for note in quick.notes)


@pytest.mark.usefixtures("light")
def test_capacity_of_given_instances(search_scenario: Scenario) -> None:
    found = plan(
        search_scenario,
        space=DesignSpace({"cluster.instances": (6, 9)}),
        capacity=True,
        check=0,
        seeds=3,
    )
    assert found.goal == "capacity"
    six, nine = found.given, found["instances 9"]
    assert (six.instances, nine.instances) == (6, 9)
    assert 1.3 < nine.number("rate_rps") / six.number("rate_rps") < 1.8
    assert six.check is not None
    assert six.check.at is not None
    assert found.answers[0].question == "How much can this cluster serve?"
    assert six.costs is not None


@pytest.mark.usefixtures("light")
def test_what_no_number_serves(search_scenario: Scenario) -> None:
    hopeless = plan(search_scenario.replace(**{"slo.tpot_s": 0.001}), space=FEW, check=1, seeds=3)
    assert hopeless.given.error.startswith("no number of instances is enough: with 6,144 0.0%")
    looser = hopeless.looser
    assert looser is not None
    assert (looser.ttft_factor, looser.both_factor) == (None, None)  # it is TPOT that is too tight
    assert looser.tpot_factor is not None
    assert "a looser TTFT SLO does not help" in hopeless.answers[0].text
    # with the SLO that is said to do, a number is enough
    met = search_scenario.replace(**{"slo.tpot_s": 0.001 * looser.tpot_factor})
    assert size_design(met)["instances"] is not None
    assert size_design(met.replace(**{"slo.tpot_s": met.slo.tpot_s / 1.1}))["instances"] is None
    assert (hopeless.cheapest, hopeless.recommended) == ("", "as given")
    assert hopeless.to_dict()["cheapest"] is None
    assert "No number serves" in hopeless.answers[0].text


def test_mistakes_are_told_before_the_work(search_scenario: Scenario) -> None:
    told: list[str] = []
    with pytest.raises(SpecError, match="at least 3"):
        plan(search_scenario, told.append, seeds=2)  # type: ignore[arg-type]
    with pytest.raises(SpecError, match="no gpu_hour of H20"):
        plan(search_scenario, progress=told.append, prices=Prices({"H100": 1.0}))
    with pytest.raises(SpecError, match=r"cluster\.nics_per_node = 0"):
        plan(search_scenario, progress=told.append, space={"cluster.nics_per_node": [0]})
    for key, file in (
        ("engine.gpu", "no-such.toml"),
        ("llm.name", "no-such.json"),
        ("workload.trace", "no-such.jsonl"),
    ):
        with pytest.raises(SpecError, match=rf"space: .*{file}.*: no such file"):
            plan(search_scenario, progress=told.append, space={key: [file]})
    assert told == []
    with pytest.raises(SpecError, match="what plan solves for"):
        plan(search_scenario, space={"cluster.instances": [3]})
