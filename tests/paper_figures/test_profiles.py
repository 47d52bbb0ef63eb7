import importlib
import sys
from pathlib import Path

import numpy as np
import pytest

from smetric_model import Scenario
from smetric_model.errors import SpecError
from smetric_model.reproduction.parameters import load_parameters
from smetric_model.reproduction.profiles import (
    PROBABILITIES,
    anchors_of,
    make_profiles,
    profile_of,
    read_profiles,
)
from smetric_model.simulate.run import simulate_in_detail


@pytest.fixture(scope="module")
def simulation():
    scenario = Scenario(
        cluster={"instances": 4},
        global_tier={"bytes_per_node": 500e9},
        workload={
            "preset": "bailian-trace-1-short",
            "rate_rps": 2.0,
            "warmup_s": 60.0,
            "window_s": 300.0,
        },
    )
    return simulate_in_detail(scenario)


def test_tokens_of_all_minutes_are_those_of_the_outcome(simulation):
    table = profile_of(simulation, 60.0)
    part = table[table["quantity"] == "processed_tokens"]
    assert len(part) == 4 * 5
    assert part["value"].sum() == pytest.approx(simulation.outcome["total_tps"] * 300.0)


def test_quantiles_are_those_of_the_requests(simulation):
    table = profile_of(simulation, 60.0)
    part = table[table["quantity"] == "ttft_s"].sort_values("at")
    assert np.all(np.diff(part["value"]) >= 0)
    median = part.loc[np.isclose(part["at"], 0.5), "value"].iloc[0]
    assert median == pytest.approx(simulation.outcome["ttft_p50_s"])
    assert len(part) == PROBABILITIES.size


def test_inflight_tokens_are_averages_over_the_minute(simulation):
    table = profile_of(simulation, 60.0)
    part = table[table["quantity"] == "inflight_tokens"]
    series = simulation.series()
    mean = (series["inflight_tokens"] * series["length_s"]).sum() / 300.0
    assert part["value"].sum() / 5 == pytest.approx(mean)


def test_what_is_no_profile_is_refused(tmp_path):
    with pytest.raises(SpecError, match="make_profiles"):
        read_profiles(tmp_path / "none.parquet")
    other = tmp_path / "other.parquet"
    other.write_bytes(b"no parquet")
    with pytest.raises(SpecError, match="no profiles"):
        read_profiles(other)


def test_the_unit_of_load_is_that_of_the_table():
    sys.path.insert(0, str(Path(__file__).parent))
    fixture_tables = importlib.import_module("fixture_tables")
    sys.path.pop(0)
    table = fixture_tables.results()
    anchors = anchors_of(table)
    assert set(anchors) == set(table["setup"])
    for by_preset in anchors.values():
        assert by_preset == pytest.approx({fixture_tables.PRESET: 8.0})


def test_a_set_up_without_a_rate_is_named():
    with pytest.raises(SpecError, match=r"1\.0x of colocated-30b"):
        make_profiles(load_parameters(), {})
