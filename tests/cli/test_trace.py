from __future__ import annotations

import json
from pathlib import Path

from click.testing import CliRunner

from smetric_model.cli.trace import command
from smetric_model.datafiles import data_dir


def run(*arguments: str):
    return CliRunner().invoke(command, list(arguments))


def test_info_of_the_shipped_trace() -> None:
    result = run("info", str(data_dir() / "traces" / "agents-small.parquet"), "--json")
    assert result.exit_code == 0
    info = json.loads(result.stdout)
    keys = {"requests", "sessions", "prompt_tokens", "output_tokens", "first_turn_ratio"}
    assert keys | {"ideal_reuse_ratio", "repaired", "dropped"} <= info.keys()
    assert 2_000 < info["requests"] < 10_000
    assert info["sessions"] / info["requests"] == info["first_turn_ratio"]
    assert 0.8 < info["ideal_reuse_ratio"] < 1


def test_the_shipped_trace_comes_from_its_script(tmp_path: Path) -> None:
    import runpy

    root = Path(__file__).parents[2]
    tool = runpy.run_path(str(root / "tools" / "make_agents_small.py"))
    tool["write"](tool["make"](0), tmp_path / "again.parquet")
    from smetric_model.workload import load_trace

    again = load_trace(tmp_path / "again.parquet")
    shipped = load_trace(data_dir() / "traces" / "agents-small.parquet")
    assert again.requests.equals(shipped.requests)
    assert (again.tree.request_blocks == shipped.tree.request_blocks).all()
    assert (data_dir() / "traces" / "agents-small.parquet").stat().st_size < 1_000_000
