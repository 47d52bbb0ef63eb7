"""Claims held against a table whose answers are known."""

from __future__ import annotations

import io
import itertools
import math

import numpy as np
import pandas as pd
import pytest

from smetric_model.reproduction import claims_table, load_claims, load_parameters, score
from smetric_model.reproduction.estimates import ESTIMATES, Level
from smetric_model.reproduction.report import claims_markdown, score_markdown
from smetric_model.reproduction.rows import Rows, ratio
from smetric_model.reproduction.sensitivity import (
    deciding,
    sensitivity_figure,
    sensitivity_table,
)
from smetric_model.reproduction.table import MEASURES, frame

PRESET = "bailian-trace-1-medium"
LOADS = (1.0, 1.25, 1.5, 1.75, 2.0)
#: goodput of each policy at its peak, and the load of it
PEAKS = {
    "smetric": (115.0, 1.5),
    "smetric-basic": (112.0, 1.5),
    "bailian": (100.0, 1.25),
    "lmetric": (90.0, 1.25),
    "load-balance": (95.0, 1.0),
    "dynamo": (95.0, 1.0),
}


def made_up_table():
    """Goodput falls by 40 % of its peak a unit of load away from it, SMetric's by 20 %."""
    rows = []
    parameters = load_parameters()
    for setup, load, seed in itertools.product(parameters.setups, LOADS, (1, 2)):
        for policy, tier in itertools.product(setup.policies, parameters.tiers):
            peak, where = PEAKS[policy]
            slope = 0.2 if policy.startswith("smetric") else 0.4
            measures = dict.fromkeys(MEASURES, 1.0)
            measures["recomputed_ratio"] = 0.26
            measures["local_ratio"] = 0.5 + load / 100
            for statistic in ("p75", "p90", "p99"):
                name = f"imbalance_processed_tokens_30s_{statistic}"
                measures[name] = 2.0 if policy == "smetric" else 3.0
            goodput = peak * (1 - slope * abs(load - where)) * (1 + 0.1 * seed)
            row = {
                "setup": setup.name, "preset": PRESET, "study": "sweep", "assumption": "",
                "variant": "", "policy": policy, "tier": tier, "load": load, "seed": seed,
                "verb": "simulate", "goodput_tps": goodput, "valid": load < 2.0, **measures,
            }  # fmt: skip
            rows.append(row)
            if policy == "smetric" and tier == "full" and load == 1.5:
                for value, share in ((1.0, 0.97), (math.inf, 1.01)):
                    change = f"router.overload = {value}"
                    rows.append(
                        row
                        | {
                            "study": "router", "assumption": "router.overload",
                            "variant": change, "goodput_tps": goodput * share,
                        }
                    )  # fmt: skip
    return frame(rows)


@pytest.fixture(scope="module")
def table():
    return made_up_table()


@pytest.fixture(scope="module")
def claims(table):
    return claims_table(table).set_index("claim")


def test_every_claim_of_a_cluster_has_a_rule():
    about_traces = {f"C{n:02d}" for n in range(1, 12)}
    assert set(ESTIMATES) == {claim.id for claim in load_claims()} - about_traces


def test_rules_are_those_of_the_claims_themselves():
    for claim in load_claims():
        if "235B" in claim.setting or "prefill" in claim.setting:
            estimate = ESTIMATES[claim.id]
            setup = "colocated-235b" if "235B" in claim.setting else "prefill-30b"
            if isinstance(estimate, Level):
                assert estimate.setup == setup, claim.id
            else:  # compares policies: a function of the set-up that it was made with
                cells = [c.cell_contents for c in estimate.__closure__]
                assert setup in cells, claim.id


def test_peaks_and_gains(claims):
    # 115 against Bailian's 100, each at its own peak
    assert claims.loc["C32", "low"] == pytest.approx(0.15)
    assert claims.loc["C32", "high"] == pytest.approx(0.15)
    assert claims.loc["C32", "agrees"] == "yes"
    assert claims.loc["C33", "agrees"] == "no"
    # at 1.5x Bailian is at 90, LMetric at 81, load balance at 76
    assert claims.loc["C29", "simulated"] == pytest.approx(115 / 90 - 1)
    assert claims.loc["C29", "spread"] == pytest.approx(0, abs=1e-9)  # paired: the seed cancels
    assert claims.loc["C29", "note"] == "against bailian, at 1.5x"
    assert claims.loc["C41", "simulated"] == pytest.approx(115 / 81 - 1)
    # load balance at its peak against the best of the two others
    assert claims.loc["C13", "simulated"] == pytest.approx(-0.05)
    assert claims.loc["C13", "agrees"] == "yes"


def test_hit_ratios_are_read_at_the_policys_peak(claims):
    assert claims.loc["C34", "simulated"] == pytest.approx(0.515)
    assert claims.loc["C35", "simulated"] == pytest.approx(0.5125)
    assert claims.loc["C14", "low"] == pytest.approx(0.74)
    assert claims.loc["C14", "agrees"] == "yes"


def test_orderings(claims, table):
    assert claims.loc["C23", "agrees"] == "yes"
    assert claims.loc["C31", "agrees"] == "yes"
    assert claims.loc["C31", "simulated"] == pytest.approx(-0.1)
    worse = table.copy()
    smetric = (worse["policy"] == "smetric") & (worse["load"] == 2.0)
    worse.loc[smetric, "goodput_tps"] *= 0.5
    worse.loc[worse["policy"] == "smetric", "imbalance_processed_tokens_30s_p99"] = 4.0
    again = claims_table(worse).set_index("claim")
    assert again.loc["C31", "agrees"] == "no"
    assert again.loc["C23", "agrees"] == "no"


def test_the_largest_change_of_a_sweep_counts(claims):
    assert claims.loc["C69", "simulated"] == pytest.approx(0.03)
    assert claims.loc["C69", "agrees"] == "yes"
    assert claims.loc["C70", "agrees"] == "not comparable"


def test_what_is_missing_is_not_comparable(claims, table):
    assert set(claims["predicted_agrees"]) == {"", "not comparable", "yes"}
    assert claims.index[claims["predicted_agrees"] == "yes"].tolist() == ["C12"]  # arithmetic
    assert claims.loc["C01", "agrees"] == "not comparable"
    few = table[table["setup"] == "colocated-30b"]
    assert claims_table(few).set_index("claim").loc["C40", "agrees"] == "not comparable"


def test_context_is_not_scored(claims):
    context = claims[claims["use"] == "context"]
    assert (context["agrees"] == "").all()
    found = score(claims.reset_index()).set_index("use")
    assert set(found.index) == {"calibrate", "predict"}
    for use, row in found.iterrows():
        part = claims[claims["use"] == use]
        assert row["claims"] == len(part)
        assert row["agree"] == (part["agrees"] == "yes").sum()
        assert row["comparable"] == part["agrees"].isin(["yes", "no"]).sum()


def test_figures_of_the_traces(table):
    workload = pd.DataFrame(
        {
            "preset": [PRESET, PRESET, "bailian-trace-2-medium"],
            "seed": [1, 2, 1],
            "ideal_reuse_ratio": [0.79, 0.81, 0.5],
            "system_reuse_ratio": [0.1, 0.1, 0.2],
        }
    ).reindex(
        columns=[
            "preset", "seed", "ideal_reuse_ratio", "intra_reuse_ratio", "system_reuse_ratio",
            "soon_reuse_ratio", "first_turn_ratio", "requests_per_instance_and_minute",
            "imbalance_median",
        ]
    )  # fmt: skip
    claims = claims_table(table, workload).set_index("claim")
    assert claims.loc["C01", "simulated"] == pytest.approx(0.80)
    assert claims.loc["C01", "spread"] == pytest.approx(0.02 / math.sqrt(2))
    assert claims.loc["C01", "agrees"] == "yes"
    assert claims.loc["C03", "agrees"] == "no"
    assert claims.loc["C04", "agrees"] == "yes"  # about the other trace
    assert claims.loc["C02", "agrees"] == "not comparable"


def test_runs_that_did_not_drain_are_counted(table):
    assert Rows(table, PRESET, "simulate").undrained("colocated-30b", "smetric", "full", 2.0) == 2
    assert Rows(table, PRESET, "simulate").undrained("colocated-30b", "smetric", "full", 1.5) == 0


def test_ratio_pairs_seeds():
    value = ratio(np.array([2.0, 6.0, np.nan]), np.array([1.0, 2.0, 1.0]))
    assert value.mean == pytest.approx(8 / 3 - 1)  # of the means
    assert value.spread == pytest.approx(math.sqrt(0.5))  # of the pairs' 1 and 2
    assert math.isnan(ratio(np.array([1.0]), np.array([np.nan])).mean)


@pytest.fixture(scope="module")
def varied(table):
    """Under one variant Bailian's goodput halves, under the other nothing changes."""
    parts = []
    for variant, share in (("a = 1", 0.5), ("a = 2", 1.0)):
        part = table[table["study"] == "sweep"].copy()
        part.loc[part["policy"] == "bailian", "goodput_tps"] *= share
        parts.append(part.assign(study="sensitivity", assumption="a", variant=variant))
    return pd.concat([table, *parts], ignore_index=True)


def test_one_assumption_at_a_time(varied, claims):
    found = sensitivity_table(varied, PRESET)
    assert (found["base"] == found["claim"].map(claims["simulated"])).all()
    same = found[found["variant"] == "a = 2"]
    assert (same["value"] == same["base"]).all()
    other = found[found["variant"] == "a = 1"].set_index("claim")
    # Bailian at half: load balance (95 at 1.0x) is now the strongest peak
    assert other.loc["C32", "value"] == pytest.approx(115 / 95 - 1)
    assert other.loc["C33", "value"] == pytest.approx(115 / 50 - 1)
    decided = deciding(found).set_index("claim")
    assert set(decided.index) == set(found.loc[found["base_agrees"] == "no", "claim"])
    assert decided.loc["C33", "largest"] == "a = 1: 1.3"
    assert decided.loc["C33", "flips"] == ""


def test_a_variant_that_makes_a_claim_agree_is_named(varied):
    table = varied.copy()
    chosen = (table["variant"] == "a = 1") & (table["policy"] == "bailian")
    table.loc[chosen, "goodput_tps"] *= 2 * 1.12  # 2.7 % below SMetric
    assert (
        deciding(sensitivity_table(table, PRESET))
        .set_index("claim")
        .loc["C33", "flips"]
        .startswith("a = 1: 0.0")
    )


def test_a_table_without_variants_has_no_sensitivity(table):
    found = sensitivity_table(table, PRESET)
    assert found.empty
    assert deciding(found).empty


def test_figure_marks_what_agrees(varied):
    figure = sensitivity_figure(sensitivity_table(varied, PRESET))
    figure.savefig(io.BytesIO(), format="png")  # draws
    axes = figure.axes[0]
    assert [label.get_text() for label in axes.get_xticklabels()] == ["a = 1", "a = 2"]


def test_markdown_has_every_claim_once(claims):
    text = claims_markdown(claims.reset_index())
    for claim, row in claims.iterrows():
        assert text.count(f"| {claim} ") == (row["use"] != "context")
    assert "**0.74 ± 0**" in text  # agrees: bold
    assert score_markdown(score(claims.reset_index())).count("\n") == 4
