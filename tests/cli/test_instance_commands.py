"""``step-time``, ``latency`` and ``plan`` as a shell calls them."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path

import pytest
from click.testing import CliRunner

from smetric_model.cli import _root
from smetric_model.scenario import Scenario

ROOT = Path(__file__).resolve().parents[2]
CODER = ["--llm", "Qwen3-Coder-30B-A3B-Instruct", "--gpu", "H20", "--tp", "1"]


def run(*arguments: str) -> dict:
    result = CliRunner().invoke(_root, [*arguments, "--json"], catch_exceptions=False)
    assert result.exit_code == 0, result.output
    return json.loads(result.stdout)


def shell(*arguments: str) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        [sys.executable, "-c", "from smetric_model.cli import main; main()", *arguments],
        capture_output=True,
        text=True,
        check=False,
    )


def test_step_time() -> None:
    step = run("step-time", *CODER, "--prefill-tokens", "8192", "--decode-batch", "8",
               "--decode-context", "600")  # fmt: skip
    assert {"step_time_s", "bound_by", "groups"} <= set(step)
    total = sum(group["time_s"] for group in step["groups"].values())
    assert total == pytest.approx(step["step_time_s"])
    assert step["bound_by"] == "compute"
    decode = run("step-time", *CODER, "--prefill-tokens", "0", "--prefill-context", "0",
                 "--decode-batch", "1", "--decode-context", "600", "--engine", "vllm")  # fmt: skip
    eager = run("step-time", *CODER, "--decode-batch", "1", "--mode", "eager")
    assert decode["step_time_s"] < eager["step_time_s"]


def test_latency() -> None:
    cold = run("latency", *CODER, "--prompt-tokens", "8192", "--output-tokens", "100")
    assert {"ttft_s", "tpot_s", "e2e_s"} <= set(cold)
    assert cold["ttft_s"] + 99 * cold["tpot_s"] == pytest.approx(cold["e2e_s"])
    hit = run("latency", *CODER, "--prompt-tokens", "8192", "--output-tokens", "100",
              "--hit-tokens", "8192", "--hit-tier", "rdma", "--concurrency", "8")  # fmt: skip
    assert hit["ttft_s"] < cold["ttft_s"]
    assert hit["tpot_s"] > cold["tpot_s"]
    one = run("latency", *CODER, "--prompt-tokens", "10", "--output-tokens", "1")
    assert one["tpot_s"] is None
    assert one["e2e_s"] == one["ttft_s"]


def test_another_gpu_is_marked() -> None:
    other = run("latency", "--llm", "Qwen3-8B", "--gpu", "H100", "--prompt-tokens", "10",
                "--output-tokens", "5", "--engine", "sglang")  # fmt: skip
    assert other["carried_over"] is True
    assert other["fitted_for"] == "H20/sglang"


def test_plan_writes_one_object_and_the_table(small_scenario: Scenario, tmp_path: Path) -> None:
    path = str(tmp_path / "small.toml")
    Path(path).write_text(small_scenario.to_toml())
    # that a plan simulates is seen in tests/designing and in the pages' examples
    asked = ["plan", path, "--instances", "16", "--rate", "2", "--no-simulation"]
    asked += ["--out", str(tmp_path / "out")]
    table = CliRunner().invoke(_root, asked, catch_exceptions=False)
    result = json.loads((tmp_path / "out" / "plan.json").read_text())
    assert result["rate_rps"] == 2
    assert result["scenario"]["cluster"]["instances"] == 16
    assert set(result["ends"]) == {"none", "tiers", "ideal"}
    assert table.stdout.startswith("recommended: ")
    assert "\nunservable: 1 of 61 " in table.stdout


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (["step-time", "--llm", "Qwen9", "--gpu", "H20"], "LLM 'Qwen9' is not known"),
        (["step-time", "--llm", "Qwen3-8B", "--gpu", "H21"], "'H21' is not known"),
        (["step-time", *CODER], "an empty step"),
        (["latency", *CODER, "--prompt-tokens", "5", "--output-tokens", "1", "--hit-tokens", "6"],
         "hit_tokens is 6; it must lie between 0 and prompt_tokens = 5"),
        (["latency", *CODER, "--prompt-tokens", "5", "--output-tokens", "1", "--engine", "x"],
         "engine 'x' has no fitted efficiencies; known: sglang, vllm"),
        (["latency", *CODER, "--tp", "3", "--prompt-tokens", "5", "--output-tokens", "1"],
         "tp = 3: "),
        (["plan", "--llm", "no-such-llm"], "LLM 'no-such-llm' is not known"),
        (["plan", "--llm", "Qwen3-235B-A22B"], "the smallest tp that fits is 8"),
        (["plan", "--trace", str(ROOT / "README.md")], "README.md"),
    ],
)  # fmt: skip
def test_errors_are_one_line_on_stderr(arguments: list[str], message: str) -> None:
    result = shell(*arguments)
    assert result.returncode == 1
    assert result.stdout == ""
    assert message in result.stderr
    assert "Traceback" not in result.stderr


@pytest.mark.parametrize(
    "arguments",
    [
        ["latency", *CODER, "--prompt-tokens", "0", "--output-tokens", "1"],
        ["latency", *CODER, "--prompt-tokens", "ten", "--output-tokens", "1"],
        ["latency", *CODER, "--output-tokens", "1"],
        ["step-time", *CODER, "--mode", "fast"],
        ["plan", "no-such-file.toml"],
        ["plan", "--rate", "-1"],
        ["plann"],
    ],
)
def test_wrong_options_are_usage_errors(arguments: list[str]) -> None:
    result = shell(*arguments)
    assert result.returncode == 2
    assert result.stdout == ""
    assert result.stderr.startswith("Usage:")


def test_importing_loads_nothing_heavy() -> None:
    code = (
        "import sys, smetric_model; "
        "heavy = {'numpy', 'pandas', 'numba', 'matplotlib', 'scipy', 'pydantic', 'cvxpy'}; "
        "print(sorted(heavy & set(sys.modules)))"
    )
    result = subprocess.run(
        [sys.executable, "-c", code], capture_output=True, text=True, check=True
    )
    assert result.stdout.strip() == "[]"


def test_what_cannot_run_is_said() -> None:
    """The times of an instance that cannot exist are given, and marked as such."""
    request = ["--prompt-tokens", "1000", "--output-tokens", "10"]
    assert run("latency", *CODER, *request)["notes"] == []
    (note,) = run("latency", "--llm", "Qwen3-235B-A22B", "--gpu", "H20", *request)["notes"]
    assert "does not fit 1 x H20" in note
    assert "the smallest tp that fits is 8" in note
    (note,) = run("step-time", *CODER, "--decode-batch", "300", "--decode-context", "1000")["notes"]
    assert "exceed the KV pool" in note
    (note,) = run("step-time", *CODER, "--prefill-tokens", "8192", "--decode-batch", "1")["notes"]
    assert "exceed the token budget" in note
    long = run("latency", *CODER, "--prompt-tokens", "262144", "--output-tokens", "1")
    assert ["longest context" in n for n in long["notes"]] == [True]
    table = shell("latency", "--llm", "Qwen3-235B-A22B", "--gpu", "H20", *request)
    assert table.returncode == 0
    assert "does not fit" in table.stderr


@pytest.mark.parametrize(
    ("arguments", "named"),
    [
        (["latency", "--prompt-tokens", str(10**30), "--output-tokens", "1"], "--prompt-tokens"),
        (["latency", "--prompt-tokens", "1", "--output-tokens", str(10**30)], "--output-tokens"),
        (["step-time", "--prefill-tokens", str(10**30)], "--prefill-tokens"),
        (["step-time", "--decode-batch", "1", "--decode-context", str(10**30)], "--decode-context"),
        (
            [
                "latency",
                "--prompt-tokens",
                str(10**9),
                "--output-tokens",
                "1",
                "--token-budget",
                "1",
            ],
            "prompt_tokens is 1000000000",
        ),
    ],
)
def test_absurd_sizes_end_at_once(arguments: list[str], named: str) -> None:
    result = shell(arguments[0], *CODER, *arguments[1:], "--json")
    assert result.returncode != 0
    assert result.stdout == ""
    assert "Traceback" not in result.stderr
    assert named in result.stderr
