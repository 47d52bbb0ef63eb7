"""``smetric-model plan`` as its users call it."""

from __future__ import annotations

import json
import signal
import subprocess
import sys
import time
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest

from smetric_model.analytic.demand import instance_of
from smetric_model.cli import main
from smetric_model.scenario import Scenario

if TYPE_CHECKING:
    from smetric_model.planning import Plan


@pytest.fixture
def asked(monkeypatch: pytest.MonkeyPatch, small_plan: Plan) -> list[Any]:
    """Scenarios that were asked for; each gets the small plan."""
    scenarios: list[Any] = []

    def answer(scenario: Any, progress: Any = None) -> Plan:
        scenarios.append(scenario)
        return small_plan

    monkeypatch.setattr("smetric_model.planning.plan", answer)
    return scenarios


def run(monkeypatch: pytest.MonkeyPatch, capfd: Any, *arguments: str) -> tuple[int, str, str]:
    monkeypatch.setattr(sys, "argv", ["smetric-model", "plan", *arguments])
    with pytest.raises(SystemExit) as end:
        main()
    out, err = capfd.readouterr()
    return int(end.value.code or 0), out, err


@pytest.mark.parametrize("columns", [80, 120])
def test_the_table_fits_the_terminal(
    monkeypatch: pytest.MonkeyPatch, capfd: Any, asked: list[Any], columns: int
) -> None:
    monkeypatch.setenv("COLUMNS", str(columns))
    code, out, _ = run(monkeypatch, capfd)
    assert code == 0
    lines = out.splitlines()
    assert lines[0].startswith("unservable: 1 of 61 requests (1.6%)")
    assert max(len(line) for line in lines) <= columns
    # each row of a table stands on one line, with its unit
    rows = [line for line in lines if line.startswith("│")]
    labels = [row.strip("│").split("│")[0].strip() for row in rows]
    assert "" not in labels
    assert "saturates at [requests/s]" in labels
    assert "most within SLO [tokens/s]" in labels
    assert "instances for 0.8 requests/s" in labels
    assert "…" not in out


def test_json_is_one_object_and_nothing_else(
    monkeypatch: pytest.MonkeyPatch, capfd: Any, asked: list[Any], tmp_path: Path
) -> None:
    code, out, err = run(monkeypatch, capfd, "--json", "--out", str(tmp_path / "made"))
    assert code == 0
    content = json.loads(out)
    assert content["scenario"]["client"]["timeout_s"] is None
    assert str(tmp_path / "made" / "plan.html") in err.replace("\n", "")
    assert json.loads((tmp_path / "made" / "plan.json").read_text()) == content


def test_brackets_in_names_are_no_markup(
    monkeypatch: pytest.MonkeyPatch, capfd: Any, small_plan: Plan
) -> None:
    from dataclasses import replace

    odd = replace(small_plan, workload=small_plan.workload | {"source": "a[/red][bold]b.jsonl"})
    monkeypatch.setattr("smetric_model.planning.plan", lambda *_a, **_k: odd)
    code, out, _ = run(monkeypatch, capfd)
    assert code == 0
    assert "a[/red][bold]b.jsonl" in out


def test_another_llm_brings_its_own_types(
    monkeypatch: pytest.MonkeyPatch, capfd: Any, asked: list[Any]
) -> None:
    run(monkeypatch, capfd, "--llm", "Qwen3-235B-A22B-FP8", "--tp", "4")
    run(monkeypatch, capfd, "--llm", "Qwen3-235B-A22B-FP8", "--weight-dtype", "bf16")
    run(monkeypatch, capfd, "--weight-dtype", "fp8")
    assert [s.llm.weight_dtype for s in asked] == [None, "bf16", "fp8"]
    instance = instance_of(asked[0])
    assert (instance.weight_dtype, instance.kv_dtype) == ("fp8", "bf16")
    assert asked[0].engine.tp == 4
    assert asked[2].llm.name == "Qwen3-Coder-30B-A3B-Instruct"


@pytest.mark.parametrize(
    ("arguments", "told"),
    [
        (["--weight-dtype", "fp5"], "fp5"),
        (["--instances", "0"], "--instances"),
        (["--trace", "no-such-file"], "no-such-file"),
    ],
)
def test_wrong_options_are_told_in_words(
    monkeypatch: pytest.MonkeyPatch, capfd: Any, asked: list[Any], arguments: list[str], told: str
) -> None:
    code, out, err = run(monkeypatch, capfd, *arguments)
    assert code != 0
    assert out == ""
    assert told in err
    assert "Traceback" not in err
    assert asked == []


def test_a_folder_that_cannot_be_is_told_before_the_work(
    monkeypatch: pytest.MonkeyPatch, capfd: Any, asked: list[Any], tmp_path: Path
) -> None:
    (tmp_path / "file").write_text("")
    code, out, err = run(monkeypatch, capfd, "--out", str(tmp_path / "file" / "below"))
    assert code != 0
    assert out == ""
    assert "Traceback" not in err
    assert asked == []


@pytest.mark.skipif(not hasattr(signal, "setitimer"), reason="no interval timers here")
@pytest.mark.parametrize("after_s", [0.6, 1.2, 2.0])
def test_an_interrupt_ends_with_130(after_s: float) -> None:
    """Also one that arrives while libraries are imported, which they may swallow."""
    code = "from smetric_model.cli import main; print('ready', flush=True); main()"
    process = subprocess.Popen(
        [sys.executable, "-c", code, "plan"],
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
        # a shell starts its background jobs with interrupts ignored, and children inherit that
        preexec_fn=lambda: signal.signal(signal.SIGINT, signal.SIG_DFL),
    )
    assert process.stdout is not None
    process.stdout.readline()
    time.sleep(after_s)
    process.send_signal(signal.SIGINT)
    out, err = process.communicate(timeout=60)
    assert process.returncode == 130
    assert out == ""
    assert "Traceback" not in err
    assert err.strip().splitlines()[-1] == "smetric-model: interrupted"


def test_a_folder_is_a_trace(tmp_path: Path) -> None:
    """As for the other commands that read one."""
    scenario = Scenario().replace(**{"workload.trace": str(tmp_path)})
    assert scenario.trace_path() == tmp_path
