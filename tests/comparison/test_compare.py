from __future__ import annotations

import json
import math

import numpy as np
import pandas as pd
import pytest
from click.testing import CliRunner
from hypothesis import given
from hypothesis import strategies as st
from scipy import stats

from smetric_model import Outcome, Scenario, compare, predict, sweep
from smetric_model.cli.compare import command
from smetric_model.comparison.figure import comparison_figure
from smetric_model.comparison.statistics import difference, holm, interval
from smetric_model.errors import SpecError

numbers = st.floats(-1e6, 1e6, allow_nan=False)


def rows(policy: str, tps: list[float], seeds=None, **more) -> pd.DataFrame:
    seeds = range(len(tps)) if seeds is None else seeds
    lines = [
        {
            "policy": policy,
            "verb": "simulate",
            "seed": s,
            "total_tps": t,
            "window_s": 900.0,
            "warmup_s": 60.0,
            "arrival_rate_rps": 4.0,
            "unservable_ratio": 0.0,
            **more,
        }
        for s, t in zip(seeds, tps, strict=True)
    ]
    return pd.DataFrame(lines)


def line(comparison, name: str, quantity: str = "total_tps") -> pd.Series:
    table = comparison.table
    (found,) = table.index[(table["name"] == name) & (table["quantity"] == quantity)]
    return table.loc[found]


def test_common_noise_is_paired_away():
    a, b = rows("a", [100, 200, 300, 400]), rows("b", [103, 201, 303, 402])
    found = line(compare([a, b]), "b")
    expected = stats.ttest_rel(b["total_tps"], a["total_tps"])
    assert found["test"] == "paired t"
    assert found["p_value"] == pytest.approx(expected.pvalue)
    around = expected.confidence_interval(0.95)
    assert (found["difference_low"], found["difference_high"]) == pytest.approx(tuple(around))
    assert found["difference"] == pytest.approx(2.25)
    assert found["relative_difference"] == pytest.approx(2.25 / 250)
    # the same values with other seeds: noise of both sides
    apart = line(compare([a, b.assign(seed=[7, 8, 9, 10])]), "b")
    assert apart["test"] == "Welch"
    assert apart["p_value"] > 0.9
    assert apart["verdict"] == "tie"


@given(
    st.lists(st.tuples(numbers, numbers), min_size=2, max_size=6),
    st.sampled_from(["t", "wilcoxon"]),
)
def test_both_ways_round(pairs, test):
    left = {k: a for k, (a, _) in enumerate(pairs)}
    right = {k: b for k, (_, b) in enumerate(pairs)}
    there, back = difference(left, right, 0.9, test), difference(right, left, 0.9, test)
    assert there.mean == pytest.approx(-back.mean)
    assert there.p_value == pytest.approx(back.p_value)
    assert there.low == pytest.approx(-back.high)
    assert difference(left, left, 0.9, test).p_value == 1.0


@given(st.lists(st.floats(0, 1), min_size=1, max_size=8))
def test_holm_is_monotone_and_never_smaller(p_values):
    p = np.array([*p_values, math.nan])
    adjusted = holm(p)
    assert math.isnan(adjusted[-1])
    assert (adjusted[:-1] >= p[:-1] - 1e-15).all()
    assert (adjusted[:-1] <= 1).all()
    order = np.argsort(p[:-1], kind="stable")
    assert (np.diff(adjusted[order]) >= 0).all()
    # Bonferroni for the smallest
    assert adjusted[order[0]] == pytest.approx(min(1.0, p[order[0]] * len(p_values)))


def test_the_interval_covers_as_often_as_it_says():
    draw = np.random.default_rng(3).normal(5.0, 2.0, (2000, 4))
    ends = [interval(sample, 0.9) for sample in draw]
    covered = np.mean([low <= 5.0 <= high for low, high in ends])
    assert 0.88 < covered < 0.92


def test_one_seed_is_not_tested():
    found = line(compare([rows("a", [100.0]), rows("b", [110.0])]), "b")
    assert found["verdict"] == "untested"
    assert found["relative_difference"] == pytest.approx(0.1)
    assert math.isnan(found["low"])


def test_baseline_and_names():
    a, b = rows("a", [1.0, 2.0]), rows("b", [2.0, 4.0])
    found = compare({"x": a, "y": b}, baseline="b")
    assert found.names == ("b", "a")
    assert line(found, "a")["difference"] == pytest.approx(-1.5)
    assert compare({"x": a, "y": b}, by="source").names == ("x", "y")
    assert compare([a, a]).names == ("1", "2")


def test_what_is_unlike_is_noted():
    a = rows("a", [100.0, 101.0])
    b = rows("b", [100.0, 101.0], seeds=[0, 0])
    b = b.assign(window_s=60.0, arrival_rate_rps=5.0, unservable_ratio=0.2, valid=False)
    notes = " | ".join(compare([a, b]).notes)
    for words in (
        "windows differ",
        "realised rates differ",
        "unservable shares differ",
        "seeds differ",
        "same seed",
        "not valid",
    ):
        assert words in notes, words
    assert compare([a, rows("b", [1.0, 2.0])]).notes == ()


def test_an_outcome_beside_a_sweep():
    swept = rows("a", [1.0, 2.0], status="done", **{"workload.window_s": 900})
    found = compare([rows("b", [1.0, 2.0]), swept])
    assert not any("no figures" in note for note in found.notes)
    broken = compare([rows("b", [1.0, 2.0]), swept.assign(status=["done", "failed"])])
    assert "a: of 2 rows 1 failed; they have no figures" in broken.notes


def test_points_of_a_sweep_are_compared_apart(small_trace):
    base = Scenario.from_dict(
        {"workload": {"trace": str(small_trace)}, "cluster": {"instances": 2, "gpus_per_node": 1}}
    )
    over = {"workload.rate_rps": [0.2, 0.3, 1e4], "router.policy": ["smetric", "bailian"]}
    frame = sweep(base, over)
    found = compare(frame)
    assert found.names == ("smetric", "bailian")
    assert found.conditions == ("workload.rate_rps",)
    table = found.table
    mean = table[(table["quantity"] == "total_tps") & (table["name"] == "bailian")]["mean"]
    assert mean.tolist()[:2] == frame["total_tps"][[1, 3]].tolist()
    assert any("2 unstable" in note or "1 unstable" in note for note in found.notes)
    figure = comparison_figure(found)
    assert len(figure.axes) == 4
    assert figure.axes[-1].get_xlabel() == "workload.rate_rps"


def test_verbs_side_by_side(small_trace, tmp_path):
    base = Scenario.from_dict(
        {
            "workload": {"trace": str(small_trace), "rate_rps": 0.2},
            "cluster": {"instances": 2, "gpus_per_node": 1},
        }
    )
    outcome = predict(base)
    other = outcome.replace(verb="bound")
    found = compare([outcome, other])
    assert found.names == ("predict", "bound")
    assert any("no router can beat" in note for note in found.notes)
    panels = comparison_figure(found).axes
    assert any("tokens/s" in axes.get_xlabel() for axes in panels)


def test_files_of_every_kind(tmp_path):
    a, b = rows("a", [1.0, 2.0]), rows("b", [2.0, 4.0])
    a.to_csv(tmp_path / "a.csv", index=False)
    b.to_parquet(tmp_path / "b.parquet")
    outcome = Outcome({"policy": "c", "verb": "simulate", "seed": 0, "total_tps": 7.0})
    (tmp_path / "run").mkdir()
    (tmp_path / "run" / "outcome.json").write_text(outcome.to_json())
    (tmp_path / "rows.json").write_text(
        json.dumps({"rows": b.assign(policy="d").to_dict("records")})
    )
    files = [str(tmp_path / name) for name in ("a.csv", "b.parquet", "run", "rows.json")]
    options = ["--csv", str(tmp_path / "out.csv"), "--plot", str(tmp_path / "out.svg")]
    result = CliRunner().invoke(command, [*files, *options, "--json"])
    assert result.exit_code == 0, result.output
    told = json.loads(result.stdout)
    assert told["names"] == ["a", "b", "c", "d"]
    assert len(pd.read_csv(tmp_path / "out.csv")) == len(told["rows"])
    assert "<svg" in (tmp_path / "out.svg").read_text()
    shown = CliRunner().invoke(command, files)
    assert "total_tps" in shown.stdout
    assert "Holm" in shown.stdout.replace("\n", " ")


@pytest.mark.parametrize(
    ("name", "content", "words"),
    [
        ("x.json", "{", "cannot be read"),
        ("x.json", "[1]", "no outcome"),
        ("x.json", '{"what": 1}', "no column of the schema"),
        ("x.json", "[]", "no outcome"),
        ("x.csv", "", "cannot be read"),
        ("x.parquet", "PAR", "cannot be read"),
        ("x.toml", "a = 1", "is needed"),
    ],
)
def test_wrong_files(tmp_path, name, content, words):
    (tmp_path / name).write_text(content)
    with pytest.raises(SpecError, match=words):
        compare(tmp_path / name)
    with pytest.raises(SpecError, match="no such file"):
        compare(tmp_path / "nowhere.json")
    (tmp_path / "empty").mkdir()
    with pytest.raises(SpecError, match="in it"):
        compare(tmp_path / "empty")


@pytest.mark.parametrize(
    ("options", "words"),
    [
        ({"by": "polcy"}, "did you mean policy"),
        ({"baseline": "z"}, "none of a, b"),
        ({"quantities": ["total_tp"]}, "did you mean total_tps"),
        ({"confidence": 1.0}, "between 0 and 1"),
        ({"test": "f"}, "one of t"),
    ],
)
def test_wrong_options(options, words):
    with pytest.raises(SpecError, match=words):
        compare([rows("a", [1.0]), rows("b", [1.0])], **options)


def test_nothing_to_compare():
    with pytest.raises(SpecError, match="no rows"):
        compare([])
    with pytest.raises(SpecError, match="an Outcome, a table or a file"):
        compare([3])
