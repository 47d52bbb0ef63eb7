"""Parameters, points and the runner."""

from __future__ import annotations

import dataclasses
import json

import pytest

from smetric_model.errors import SpecError
from smetric_model.reproduction import load_parameters, read_results, reproduce
from smetric_model.reproduction.points import groups
from smetric_model.reproduction.runner import group_rows
from smetric_model.reproduction.table import KEYS, frame, read_rows, write_results


@pytest.fixture(scope="module")
def parameters():
    return load_parameters()


@pytest.fixture(scope="module")
def small(parameters):
    """Eight instances of the large model, two loads, one seed: seconds."""
    few = parameters.only(presets=("bailian-trace-1-long",), setups=("colocated-235b",), quick=True)
    return dataclasses.replace(
        few, seeds=(1,), loads=(0.5, 1.5), anchor_coarse_ratio=2.0, anchor_fine_ratio=2.0
    )


def test_every_parameter_has_its_reason():
    from smetric_model.datafiles import load_toml

    content = load_toml("reproduction.toml")
    tables = [content["scenario"], *(s["scenario"] for s in content["setups"].values())]
    for table in tables:
        for key, entry in table.items():
            assert set(entry) == {"value", "reason"}, key
            assert len(entry["reason"]) >= 9, key


def test_tiers_follow_from_the_local_tier(parameters):
    for setup in parameters.setups:
        cluster = setup.scenario.cluster
        nodes = -(-cluster.instances * setup.scenario.engine.tp // cluster.gpus_per_node)
        assert setup.full_tier_bytes == 4 * 1280e9
        assert setup.tier_bytes_per_node("full") * nodes == pytest.approx(4 * 1280e9)
        assert setup.tier_bytes_per_node(1.6) * nodes == pytest.approx(1.6 * setup.local_tier_bytes)
        assert setup.tier_bytes_per_node(1e6) == setup.tier_bytes_per_node("full")


def test_policies_share_their_traces(parameters):
    anchors = {s.name: dict.fromkeys(parameters.presets, 1.0) for s in parameters.setups}
    work = list(groups(parameters, anchors))
    for verb, seeds in (("simulate", parameters.seeds), ("predict", parameters.seeds[:1])):
        for seed in seeds:
            mine = [g for g in work if g.verb == verb and g.seed == seed]
            assert {(g.setup, g.preset, g.load) for g in mine} == {
                (s.name, p, load)
                for s in parameters.setups
                for p in parameters.presets
                for load in parameters.loads
            }
            sweep = [p for g in mine for p in g.points if p.study == "sweep"]
            cells = len({(g.setup, g.preset, g.load) for g in mine})
            assert len(sweep) == cells * (4 * len(parameters.tiers) + 1)
    keys = [key for group in work for key in group.row_keys()]
    assert len(set(keys)) == len(keys)


def test_anything_unknown_is_refused(parameters):
    with pytest.raises(SpecError, match=r"preset = 'tiny': one of"):
        parameters.only(presets=("tiny",))
    with pytest.raises(SpecError, match=r"setup = 'gpu': one of"):
        parameters.only(setups=("gpu",))


def test_a_run_goes_on_where_it_stopped(small, tmp_path):
    first = reproduce(small, tmp_path, processes=1)
    assert first.computed_rows == len(first.table) == 2 * 2 * 9
    assert set(first.table["verb"]) == {"simulate", "predict"}
    # the peak that fixes 1.0x is one of SMetric's own sweep
    assert first.anchors["colocated-235b"]["bailian-trace-1-long"] > 0

    path = tmp_path / "rows.jsonl"
    lines = path.read_text().splitlines(keepends=True)
    path.write_text("".join(lines[:-3]) + lines[-3][:50] + "\n")  # killed while it wrote
    again = reproduce(small, tmp_path, processes=1)
    assert again.computed_rows == 3
    assert again.table.equals(first.table)

    write_results(again.table, tmp_path / "results.parquet", "abc")
    read = read_results(tmp_path / "results.parquet")
    assert read.attrs["commit"] == "abc"
    assert read[list(KEYS)].equals(again.table[list(KEYS)])
    assert read["goodput_tps"].to_numpy() == pytest.approx(
        again.table["goodput_tps"].to_numpy(), rel=1e-6, nan_ok=True
    )

    with pytest.raises(SpecError, match="other parameters"):
        reproduce(dataclasses.replace(small, seeds=(2,)), tmp_path, processes=1)


def test_paired_runs_are_deterministic_and_differ_by_policy(parameters, small):
    setup = small.setups[0]
    (group,) = [
        g
        for g in groups(small, {setup.name: {small.presets[0]: 0.5}})
        if g.load == 1.5 and g.verb == "simulate"
    ]
    key = next(k for k in group.row_keys() if k[5] == "bailian" and k[6] == "none")
    one = group_rows(setup, small.tiers, group, {key})
    two = group_rows(setup, small.tiers, group, {key})
    assert one == two
    (row,) = one
    assert row["tier_ratio"] == 0
    assert row["global_ratio"] == 0
    assert row["rate_rps"] == pytest.approx(0.75)


def test_tables_of_others_are_refused(tmp_path):
    with pytest.raises(SpecError, match="no such result table"):
        read_results(tmp_path / "none.parquet")
    (tmp_path / "bad.parquet").write_text("PAR")
    with pytest.raises(SpecError, match="no result table"):
        read_results(tmp_path / "bad.parquet")


def test_frame_keeps_the_last_of_two_rows(tmp_path):
    row = dict.fromkeys(KEYS, "x") | {"load": 1.0, "seed": 1}
    (tmp_path / "r").write_text(
        json.dumps(row | {"goodput_tps": 1.0}) + "\n" + json.dumps(row | {"goodput_tps": 2.0})
    )
    table = frame(read_rows(tmp_path / "r"))
    assert table["goodput_tps"].tolist() == [2.0]
