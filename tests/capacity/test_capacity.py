from __future__ import annotations

import json
import math

import numpy as np
import pytest
from click.testing import CliRunner

import smetric_model
from smetric_model.capacity import capacity
from smetric_model.cli.capacity import command
from smetric_model.errors import SolveError, SpecError, UnstableError
from smetric_model.outcome import Outcome
from smetric_model.scenario import Scenario
from smetric_model.simulate import simulate

BASE = Scenario.from_dict({"cluster": {"instances": 4}})
EDGE, WIDTH, SPREAD = 0.5, 0.4, 0.05


def row(scenario: Scenario, share: float, goodput: float) -> Outcome:
    return Outcome(
        {
            "verb": "simulate",
            "seed": scenario.seed,
            "arrival_rate_rps": scenario.workload.rate_rps,
            "within_slo_ratio": share,
            "total_within_slo_tps": goodput,
            "binding_resource": "compute",
            "valid": True,
        }
    )


def law(scenario: Scenario) -> Outcome:
    """Half of the requests within SLO at a rate that the seed moves: exp(SPREAD z) EDGE."""
    edge = EDGE * math.exp(SPREAD * np.random.default_rng(scenario.seed).standard_normal())
    share = 1 / (1 + (float(scenario.workload.rate_rps) / edge) ** (1 / WIDTH))
    return row(scenario, share, 1e4 * float(scenario.workload.rate_rps) * share)


def at_half(scenario: Scenario, **options):
    return capacity(scenario.replace(**{"slo.attainment": 0.5}), law, start_rps=0.3, **options)


def test_the_bracket_holds_the_edge_and_has_the_width_asked_for():
    found = at_half(BASE, seeds=1, tolerance=0.01)
    edge = EDGE * math.exp(SPREAD * np.random.default_rng(0).standard_normal())
    assert found.rate_rps == found.lower_rps <= edge < found.upper_rps
    assert found.upper_rps / found.lower_rps - 1 <= 0.01
    assert math.isnan(found.noise_rps)
    assert found.resource == "compute"


def test_every_rate_has_the_same_seeds():
    found = at_half(BASE.replace(seed=7), seeds=4)
    assert found.seeds == (7, 8, 9, 10)
    by_rate = found.rows.groupby("rate_rps")["seed"].apply(tuple)
    assert set(by_rate) == {found.seeds}
    assert (found.rows["rate_rps"] == found.rows["arrival_rate_rps"]).all()


def test_the_stated_noise_is_the_spread_of_repeats():
    repeats = [at_half(BASE.replace(seed=100 * k), seeds=8, tolerance=0.005) for k in range(60)]
    spread = np.std([found.rate_rps for found in repeats], ddof=1)
    stated = np.sqrt(np.mean([found.noise_rps**2 for found in repeats]))
    assert stated == pytest.approx(EDGE * SPREAD / math.sqrt(8), rel=0.2)
    assert stated == pytest.approx(spread, rel=0.35)


def test_the_peak_and_what_cannot_be_told_from_it():
    found = capacity(BASE, law, "peak_goodput", seeds=6, start_rps=1.0, tolerance=0.02)
    # of x/(1 + x^(1/w)) at x^(1/w) = w/(1 - w)
    peak = EDGE * (WIDTH / (1 - WIDTH)) ** WIDTH
    assert found.rate_rps == pytest.approx(peak, rel=0.08)
    assert found.lower_rps <= found.rate_rps <= found.upper_rps
    means = found.rows.groupby("rate_rps")["total_within_slo_tps"].mean()
    assert found.total_within_slo_tps == pytest.approx(means.max())
    best = found.rows[found.rows["rate_rps"] == found.rate_rps]["total_within_slo_tps"]
    assert found.noise_within_slo_tps == pytest.approx(best.sem())


def test_no_rate_is_an_answer_and_any_rate_an_error():
    def rising(asked: Scenario) -> Outcome:
        return row(asked, 1.0, float(asked.workload.rate_rps))

    hopeless = capacity(BASE, lambda asked: row(asked, 0.4, 1.0), seeds=2, start_rps=1)
    assert hopeless.rate_rps is None
    assert hopeless.within_slo_ratio == 0.4
    assert hopeless.total_within_slo_tps == 0
    assert not hopeless.outcomes
    with pytest.raises(SolveError, match="limits no rate"):
        capacity(BASE, lambda asked: row(asked, 1.0, 1.0), seeds=1, start_rps=1)
    with pytest.raises(SolveError, match="still rise"):
        capacity(BASE, rising, "peak_goodput", seeds=1, start_rps=1)


def test_what_saturates_serves_nothing():
    def answer(scenario: Scenario) -> Outcome:
        if float(scenario.workload.rate_rps) > EDGE:
            raise UnstableError("too much", "kv")
        return row(scenario, 1.0, float(scenario.workload.rate_rps))

    found = capacity(BASE, answer, seeds=2, start_rps=2.0)
    assert found.rate_rps is not None
    assert found.rate_rps <= EDGE < found.upper_rps
    assert set(found.rows.loc[found.rows["rate_rps"] > EDGE, "binding_resource"]) == {"kv"}
    peak = capacity(BASE, answer, "peak_goodput", seeds=2, start_rps=2.0)
    assert peak.rate_rps == pytest.approx(EDGE, rel=0.05)


@pytest.mark.parametrize(
    ("arguments", "options", "message"),
    [
        (("measure",), {}, "verb = 'measure'; one of predict, simulate, bound"),
        (("simulate", "best"), {}, "criterion = 'best'; one of attainment, peak_goodput"),
        (("simulate",), {"seeds": 0}, "seeds = 0: at least 1"),
        (("simulate",), {"tolerance": 0}, "tolerance = 0: above 0 and below 1"),
        (("simulate",), {"start_rps": -1.0}, "start_rps = -1.0: a finite number above 0"),
        (("bound", "peak_goodput"), {}, "'peak_goodput' has no bound"),
    ],
)
def test_wrong_questions(arguments, options, message):
    with pytest.raises(SpecError, match=message):
        capacity(BASE, *arguments, **options)


@pytest.fixture(scope="module")
def small() -> Scenario:
    return Scenario.from_dict(
        {
            "cluster": {"instances": 2, "gpus_per_node": 1},
            "workload": {"warmup_s": 120, "window_s": 300},
            "slo": {"attainment": 0.9},
        }
    )


def test_simulated_at_the_capacity_and_above(small):
    found = smetric_model.capacity(small, "simulate", seeds=2, tolerance=0.1)
    assert found.rate_rps is not None
    shares = {}
    for rate in (found.rate_rps, found.upper_rps):
        runs = [
            simulate(small.replace(**{"workload.rate_rps": rate, "seed": seed}))
            for seed in found.seeds
        ]
        shares[rate] = np.mean([run.number("within_slo_ratio") for run in runs])
        if rate == found.rate_rps:
            assert [dict(run) for run in runs] == [dict(one) for one in found.outcomes]
            missed = found.rows[found.rows["rate_rps"] == rate]
            # whoever misses one of the two is not within SLO
            both = 1 - missed["within_slo_ratio"]
            assert (
                missed[["ttft_missed_ratio", "tpot_missed_ratio"]].max(axis=1) <= both + 1e-9
            ).all()
            assert (missed["ttft_missed_ratio"] + missed["tpot_missed_ratio"] >= both - 1e-9).all()
    assert shares[found.rate_rps] >= small.slo.attainment > shares[found.upper_rps]


def test_no_router_has_more_than_the_bound(small):
    found = capacity(small, "simulate", seeds=1, tolerance=0.1)
    bound = capacity(small, "bound", seeds=1, tolerance=0.1)
    assert found.rate_rps is not None
    assert bound.rate_rps is not None
    assert bound.upper_rps > found.rate_rps
    assert bound.rows["total_within_slo_tps"].isna().all()


def test_the_command(small, tmp_path):
    path = tmp_path / "small.toml"
    path.write_text(small.to_toml())
    rows = tmp_path / "rows.csv"
    asked = [str(path), "--verb", "simulate", "--seeds", "2", "--tolerance", "20"]
    text = CliRunner().invoke(command, [*asked, "--csv", str(rows)], catch_exceptions=False)
    assert "requests/s with 90% of the requests within SLO" in " ".join(text.stdout.split())
    assert "TPOT missed" in " ".join(text.stdout.split()) or "TPOT" in text.stdout
    assert rows.read_text().startswith("rate_rps,")
    told = CliRunner().invoke(command, [str(path), "--json"], catch_exceptions=False)
    answer = json.loads(told.stdout)
    assert answer["verb"] == "predict"
    assert answer["rate_rps"] == pytest.approx(capacity(small).rate_rps)
    wrong = CliRunner().invoke(command, [str(path), "--criterion", "best"])
    assert wrong.exit_code == 2
    assert "'best' is not one of" in wrong.output
