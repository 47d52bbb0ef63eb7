"""What options of several commands change in a scenario."""

from pathlib import Path

import click
import pytest

from smetric_model.cli.scenario_options import workload_changes


def test_another_workload_comes_with_its_own_rate_and_replaces_the_scenarios(
    tmp_path: Path,
) -> None:
    trace = tmp_path / "trace.parquet"
    assert workload_changes(None) == {}
    assert workload_changes(trace) == {
        "workload.trace": str(trace),
        "workload.preset": None,
        "workload.rate_rps": "trace",
    }
    assert workload_changes(None, "bailian-trace-1-short") == {
        "workload.trace": None,
        "workload.preset": "bailian-trace-1-short",
        "workload.rate_rps": "trace",
    }
    with pytest.raises(click.UsageError, match="exclude each other"):
        workload_changes(trace, "bailian-trace-1-short")
