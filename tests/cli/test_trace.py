from __future__ import annotations

import json
from pathlib import Path

import pytest
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
    # sessions in progress when the window opens do not begin in the trace
    assert 0 < info["first_turn_ratio"] < info["sessions"] / info["requests"]
    assert 0.7 < info["ideal_reuse_ratio"] < 0.9


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


def small(tmp_path: Path) -> Path:
    rows = [
        {"timestamp": 1000 * k, "input_length": 512 * len(b), "output_length": 5, "hash_ids": b}
        for k, b in enumerate([[0, 1, 2], [0, 3, 4], [0, 1, 2, 5], [0, 3, 4, 6]])
    ]
    path = tmp_path / "small.jsonl"
    path.write_text("\n".join(map(json.dumps, rows)))
    return path


def test_info_as_a_table_and_with_inferred_sessions(tmp_path: Path) -> None:
    result = run("info", str(small(tmp_path)))
    assert result.exit_code == 0
    assert "unknown" in result.stdout
    info = json.loads(run("info", str(small(tmp_path)), "--infer-sessions", "--json").stdout)
    assert (info["sessions"], info["first_turn_ratio"]) == (2, 0.5)
    assert info["ideal_reuse_ratio"] == (0 + 1 + 3 + 3) / 14


def test_schema_names_every_column() -> None:
    schema = json.loads(run("schema", "--json").stdout)
    text = run("schema").stdout
    assert all(column["name"] in text for column in schema["columns"])
    assert "smetric_trace" in schema["header"]


def test_reuse(tmp_path: Path) -> None:
    out = tmp_path / "out"
    result = run(
        "reuse", str(small(tmp_path)), "--json", "--kv-bytes-per-token", "1e6",
        "--size-tokens", "512", "--size-tokens", "10000", "--out", str(out),
    )  # fmt: skip
    assert result.exit_code == 0, result.output
    assert "sessions are inferred" in result.stderr
    values = json.loads(result.stdout)
    assert values["ideal_reuse_ratio"] == 0.5
    assert sum(values["reuse_ratio"].values()) == 1
    assert values["hit_curve"]["size_gb"] == [0.512, 10.0]
    assert values["hit_curve"]["lru_hit_ratio"][1] == 0.5
    assert values["sessions_inferred"]["sessions"] == 2
    assert {path.name for path in out.iterdir()} == {
        "origin.csv", "intervals.csv", "hit_curve.csv", "working_set.csv"
    }  # fmt: skip
    assert run("reuse", str(small(tmp_path))).exit_code == 0


def test_sessions_and_balance(tmp_path: Path) -> None:
    path = str(data_dir() / "traces" / "agents-small.parquet")
    values = json.loads(run("sessions", path, "--json", "--out", str(tmp_path)).stdout)
    assert abs(sum(values["trigger_ratio"].values()) - 1) < 1e-9
    assert values["sessions_inferred"] is None
    assert (tmp_path / "turns.csv").is_file()
    values = json.loads(run("balance", path, "--instances", "4", "--json").stdout)
    assert 1 <= values["imbalance_processed_tokens"]["p50"] <= 4
    assert values["recorded_service_time_ratio"] == 1
    assert run("balance", path).exit_code == 0
    assert run("sessions", path).exit_code == 0


def test_convert_and_session_starts(tmp_path: Path) -> None:
    weka = tmp_path / "weka.json"
    ask = {"t": 0, "in": 130, "out": 5, "hash_ids": [1, 2], "api_time": 1}
    documents = [
        {"id": name, "block_size": 64, "requests": [ask, ask | {"t": 9}]} for name in "abc"
    ]
    weka.write_text("\n".join(map(json.dumps, documents)))
    without = run("reuse", str(weka), "--json")
    assert json.loads(without.stdout)["hit_curve"] is None
    assert "share no clock" in without.stderr
    target = tmp_path / "t.parquet"
    assert run("convert", str(weka), str(target), "--session-rate", "0.1").exit_code == 0
    info = json.loads(run("info", str(target), "--json").stdout)
    assert (info["requests"], info["sessions"], info["session_clock"]) == (6, 3, "shared")
    assert json.loads(run("reuse", str(target), "--json").stdout)["hit_curve"] is not None


def main(*arguments: str):
    import subprocess
    import sys

    return subprocess.run(
        [sys.executable, "-c", "from smetric_model.cli import main; main()", *arguments],
        capture_output=True,
        text=True,
        check=False,
    )


def test_errors_are_one_line(tmp_path: Path) -> None:
    broken = tmp_path / "broken"
    broken.write_text("{oops")
    for arguments, word in (
        (["info", str(broken)], "broken:1: not valid JSON"),
        (["info", str(tmp_path / "nowhere")], "No such file"),
        (["reuse", str(small(tmp_path)), "--window", "0"], "window_s is 0.0"),
        (["convert", str(small(tmp_path)), str(tmp_path / "t.csv")], "ending '.csv'"),
    ):
        result = main("trace", *arguments)
        assert result.returncode != 0
        assert word in result.stderr
        assert result.stderr.splitlines()[-1].startswith("smetric-model: ")
        assert "Traceback" not in result.stderr
        assert result.stdout == ""


@pytest.mark.parametrize(
    "arguments",
    [
        ("reuse", "--window", "inf"),
        ("balance", "--window", "inf"),
        ("reuse", "--kv-bytes-per-token", "nan"),
        ("reuse", "--kv-bytes-per-token", "-1"),
        ("reuse", "--common-session-ratio", "nan"),
        ("reuse", "--size-tokens", str(10**30)),
        ("info", "--block-tokens", str(10**30)),
        ("info", "--seed", "-1"),
    ],
)
def test_absurd_options_are_refused(tmp_path: Path, arguments: tuple[str, ...]) -> None:
    command, option, value = arguments
    result = main("trace", command, str(small(tmp_path)), option, value)
    assert result.returncode != 0
    assert result.stdout == ""
    assert "Traceback" not in result.stderr
    assert "Warning" not in result.stderr
    assert option.strip("-").replace("-", "_").removesuffix("_s") in result.stderr.replace("-", "_")
