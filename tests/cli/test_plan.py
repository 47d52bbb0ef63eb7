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
from smetric_model.datafiles import data_dir
from smetric_model.scenario import Scenario

if TYPE_CHECKING:
    from smetric_model.designing import DesignPlan


@pytest.fixture
def calls(
    monkeypatch: pytest.MonkeyPatch, small_search: DesignPlan
) -> tuple[list[Any], list[dict[str, Any]]]:
    """Scenarios and options that were asked for; each call gets the small plan."""
    scenarios: list[Any] = []
    options: list[dict[str, Any]] = []

    def answer(scenario: Any, **given: Any) -> DesignPlan:
        scenarios.append(scenario)
        options.append(given)
        return small_search

    monkeypatch.setattr("smetric_model.designing.plan", answer)
    return scenarios, options


@pytest.fixture
def asked(calls: tuple[list[Any], list[dict[str, Any]]]) -> list[Any]:
    """Scenarios that were asked for."""
    return calls[0]


@pytest.fixture
def options(calls: tuple[list[Any], list[dict[str, Any]]]) -> list[dict[str, Any]]:
    """Options that were asked for."""
    return calls[1]


def run(monkeypatch: pytest.MonkeyPatch, capfd: Any, *arguments: str) -> tuple[int, str, str]:
    monkeypatch.setattr(sys, "argv", ["smetric-model", "plan", *arguments])
    with pytest.raises(SystemExit) as end:
        main()
    out, err = capfd.readouterr()
    return int(end.value.code or 0), out, err


def test_two_pools_are_planned_without_perfect_placement(
    monkeypatch: pytest.MonkeyPatch, capfd: Any, search_scenario: Scenario, tmp_path: Path
) -> None:
    file = tmp_path / "pools.toml"
    pools = {"cluster.serving": "disaggregated", "cluster.instances": None}
    pools |= {"cluster.prefill_instances": 4, "cluster.decode_instances": 2}
    # a fifth of the prompts is longer
    left_out = {"client.timeout_s": 3600.0}
    asked = search_scenario.replace(**pools, **left_out, **{"engine.max_context_tokens": 60_000})
    file.write_text(asked.to_toml())
    out_dir = tmp_path / "out"
    fast = f"cluster.nic_bytes_per_s={2 * asked.cluster.nic_bytes_per_s}"
    code, out, _ = run(
        monkeypatch,
        capfd,
        *(str(file), "--no-simulation", "--vary", fast, "--out", str(out_dir)),
    )
    assert code == 0
    assert " prefill, " in out.splitlines()[0] + out.splitlines()[1]
    assert "How many H20 for 0.8 requests/s?" in out
    assert "What would move the answer?" in out
    said = " ".join(out.split())
    assert "note: two pools (cluster.serving = 'disaggregated'): what reuse is worth" in said
    assert "note: not in these figures: client.timeout_s" in said
    assert "What reuse is worth:" not in out
    assert "KV tiers and links:" not in out
    written = json.loads((out_dir / "plan.json").read_text())
    assert written["designs"][0]["error"] == ""
    assert written["designs"][0]["instances"] >= 2
    assert (written["ends"], written["steps"]) == ({}, [])
    assert (written["tiers"], written["fetch"]) == (None, None)
    assert written["workload"]["unservable_ratio"] > 0
    page = (out_dir / "plan.html").read_text()
    assert 'id="designs"' in page
    assert "Two pools (cluster.serving" in page
    for part in ("capacity", "plots", "tiers", "fetch", "steps"):
        assert f'id="{part}"' not in page
    # what was kept is found again, and reads back as it was
    code, again, _ = run(
        monkeypatch,
        capfd,
        *(str(file), "--no-simulation", "--vary", fast, "--out", str(out_dir)),
    )
    assert (code, again) == (0, out)


@pytest.mark.parametrize("columns", [80, 120])
def test_the_table_fits_the_terminal(
    monkeypatch: pytest.MonkeyPatch, capfd: Any, asked: list[Any], columns: int
) -> None:
    monkeypatch.setenv("COLUMNS", str(columns))
    code, out, _ = run(monkeypatch, capfd)
    assert code == 0
    lines = out.splitlines()
    assert lines[0].startswith("recommended: ")
    assert lines[1].startswith("unservable: 0 of 4,179 requests (0.0%)")
    assert max(len(line) for line in lines) <= columns
    # each row of a table stands on one line, with its unit
    rows = [line for line in lines if line.startswith("│")]
    labels = [row.strip("│").split("│")[0].strip() for row in rows]
    assert "" not in labels
    assert "saturates at [requests/s]" in labels
    assert "most within SLO [tokens/s]" in labels
    assert "as given" in labels
    assert "…" not in out
    # the answer stands first, with its source
    question = lines.index("How many H20 for 0.8 requests/s?")
    assert lines[question + 1].split()[1] == "H20"
    assert any(line.startswith("[simulated, 3 seeds") for line in lines[question:])
    assert "not possible: L40S" in out


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
    monkeypatch: pytest.MonkeyPatch, capfd: Any, small_search: DesignPlan
) -> None:
    from dataclasses import replace

    work = small_search.placement.workload | {"source": "a[/red][bold]b.jsonl"}
    odd = replace(small_search, placement=replace(small_search.placement, workload=work))
    monkeypatch.setattr("smetric_model.designing.plan", lambda *_a, **_k: odd)
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
    # it was made for 40,960 tokens, the scenario's model for 262,144
    assert [s.engine.max_context_tokens for s in asked] == [40_960, 40_960, 262_144]


@pytest.mark.parametrize(
    ("arguments", "told"),
    [
        (["--weight-dtype", "fp5"], "fp5"),
        (["--instances", "0"], "--instances"),
        (["--trace", "no-such-file"], "no-such-file"),
        (["--vary", "engine.gpus=H20"], "did you mean engine.gpu"),
        (["--vary", "engine.gpu"], "--vary 'engine.gpu': KEY=VALUES"),
        (["--vary", "engine.tp=1", "--vary", "engine.tp=2"], "--vary engine.tp is given twice"),
        (["--vary", "engine.gpu=H20,H2000"], "GPU 'H2000' is not known"),
        (["--space", "no-such-file"], "no-such-file"),
        (["--prices", "no-such-file"], "no-such-file"),
        (["--seeds", "2"], "--seeds"),
        (["--check", "-1"], "--check"),
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


def test_the_search_is_as_asked(
    monkeypatch: pytest.MonkeyPatch, capfd: Any, options: list[Any], tmp_path: Path
) -> None:
    space, prices = tmp_path / "space.toml", tmp_path / "prices.toml"
    space.write_text('[space]\n"engine.tp" = [1, 2]\n"engine.gpu" = ["H20"]\n')
    prices.write_text("[prices.gpu_hour]\nH20 = 2.0\n")
    run(
        monkeypatch,
        capfd,
        *("--space", str(space), "--vary", "engine.tp=2,4", "--prices", str(prices)),
        *("--check", "1", "--seeds", "7", "--jobs", "2", "--capacity", "--budget", "60"),
    )
    run(monkeypatch, capfd, "--no-simulation")
    first, second = options
    assert first["space"].axes == {"engine.tp": (2, 4), "engine.gpu": ("H20",)}
    assert first["prices"].gpu_hour == {"H20": 2.0}
    assert (first["check"], first["seeds"], first["jobs"]) == (1, 7, 2)
    assert (first["capacity"], first["budget_s"]) == (True, 60)
    assert (second["check"], second["space"], second["prices"]) == (-1, None, None)


def test_operational_questions_on_demand(
    monkeypatch: pytest.MonkeyPatch, capfd: Any, options: list[Any]
) -> None:

    out = run(monkeypatch, capfd, "--operations")[1]
    run(monkeypatch, capfd, "--operations", "--no-simulation")
    run(monkeypatch, capfd)
    assert [given["operations"] for given in options] == [2, 0, None]
    assert "In operation" not in out


def test_findings_are_shown_with_the_cluster_they_are_about(
    monkeypatch: pytest.MonkeyPatch, capfd: Any, small_search: DesignPlan
) -> None:
    from smetric_model.operations import Figure, Finding

    figure = Figure("lost_instances", "instances of a node", 8, "", "given")
    found = Finding("node-loss", "A node is lost", (figure,), ("It is borne.",), ("steady",))
    more = small_search.with_findings([found])
    monkeypatch.setattr("smetric_model.designing.plan", lambda *_a, **_k: more)
    lines = run(monkeypatch, capfd, "--operations")[1].splitlines()
    about = next(line for line in lines if line.startswith("In operation: "))
    assert f"{small_search.advised.gpus} H20" in about
    assert lines.index("A node is lost") > lines.index(about)
    assert "It is borne." in lines
    content = json.loads(run(monkeypatch, capfd, "--operations", "--json")[1])
    assert content["findings"][0]["figures"][0]["source"] == "given"


def test_the_designs_are_a_tidy_file(
    monkeypatch: pytest.MonkeyPatch, capfd: Any, options: list[Any], tmp_path: Path
) -> None:
    import pandas as pd

    run(monkeypatch, capfd, "--out", str(tmp_path))
    frame = pd.read_csv(tmp_path / "designs.csv")
    assert frame["design"].iloc[0] == "as given"
    assert frame["design"].is_unique
    assert {"instances", "cost_per_hour", "simulated_within_slo_ratio"} <= set(frame)


def test_an_interrupt_says_where_it_goes_on(
    monkeypatch: pytest.MonkeyPatch, capfd: Any, tmp_path: Path
) -> None:
    def interrupted(*_arguments: Any, **_options: Any) -> None:
        raise KeyboardInterrupt

    monkeypatch.setattr("smetric_model.designing.plan", interrupted)
    code, out, err = run(monkeypatch, capfd, "--out", str(tmp_path))
    assert (code, out) == (130, "")
    assert f"nothing was finished yet: the same command begins anew in {tmp_path}" in err

    def later(*_arguments: Any, **_options: Any) -> None:
        for name in ("ab", "ac"):
            (tmp_path / "points" / name).mkdir(parents=True)
            (tmp_path / "points" / name / f"{name}.json").write_text("{}")
        raise KeyboardInterrupt

    monkeypatch.setattr("smetric_model.designing.plan", later)
    err = run(monkeypatch, capfd, "--out", str(tmp_path))[2]
    assert f"2 finished answers are kept in {tmp_path} (2 of this call)" in err
    assert "the same command goes on" in err
    monkeypatch.setattr("smetric_model.designing.plan", interrupted)
    assert "(0 of this call)" in run(monkeypatch, capfd, "--out", str(tmp_path))[2]
    assert "nothing is kept: with --out FOLDER" in run(monkeypatch, capfd)[2]


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


PRESET = "bailian-trace-1-short"


@pytest.mark.parametrize(
    ("arguments", "told"),
    [
        ([PRESET], f"is a preset, not a scenario. Try: smetric-model plan --preset {PRESET}"),
        (
            ["--trace", PRESET],
            f"is a preset, not a trace. Try: smetric-model plan --preset {PRESET}",
        ),
        (["PRESETS"], f"not a scenario. Try: smetric-model plan --preset {PRESET}"),
        (["--trace", "PRESETS"], f"not a trace. Try: smetric-model plan --preset {PRESET}"),
        (["--trace", "SCENARIO"], "If it is a scenario, try: smetric-model plan"),
        (
            ["JSONL"],
            "is no TOML, as a scenario is. If it is a trace, try: smetric-model plan --trace",
        ),
        (["PARQUET"], "If it is a trace, try: smetric-model plan --trace"),
        (["OWN"], "`smetric-model synthesise"),
        (["--trace", "OWN"], "Then: smetric-model plan --trace trace.parquet"),
        (["--preset", PRESET, "--trace", "JSONL"], "exclude each other"),
    ],
)
def test_what_was_meant_is_told(
    monkeypatch: pytest.MonkeyPatch,
    capfd: Any,
    asked: list[Any],
    small_trace: Path,
    tmp_path: Path,
    arguments: list[str],
    told: str,
) -> None:
    data = data_dir()
    own = tmp_path / "own.toml"
    own.write_text('name = "mine"\n[arrivals]\nkind = "poisson"\n')
    files = {
        "PRESETS": data / "presets" / f"{PRESET}.toml",
        "SCENARIO": data / "scenarios" / "agents-small.toml",
        "JSONL": small_trace,
        "PARQUET": data / "traces" / "agents-small.parquet",
        "OWN": own,
    }
    code, out, err = run(monkeypatch, capfd, *(str(files.get(text, text)) for text in arguments))
    assert (code, out, asked) == (2, "", [])
    # click frames nothing here, but terminals may break lines
    assert told in " ".join(err.split())


def test_slo_and_policy_by_option(
    monkeypatch: pytest.MonkeyPatch, capfd: Any, asked: list[Any]
) -> None:
    options = ("--slo-ttft", "3", "--slo-ttft-per-token", "0.25", "--slo-tpot", "50")
    code, _, _ = run(monkeypatch, capfd, *options, "--slo-share", "99", "--policy", "bailian")
    assert code == 0
    (scenario,) = asked
    slo = scenario.slo
    assert (slo.ttft_base_s, slo.ttft_per_prompt_token_s) == (3.0, 0.25e-3)
    assert (slo.tpot_s, slo.attainment) == (pytest.approx(0.05), pytest.approx(0.99))
    assert scenario.router.policy == "bailian"
    code, _, err = run(monkeypatch, capfd, "--slo-share", "101")
    assert code == 2
    assert "--slo-share" in err


def test_a_preset_is_planned_for_at_its_own_rate(
    monkeypatch: pytest.MonkeyPatch, capfd: Any, asked: list[Any]
) -> None:
    run(monkeypatch, capfd, "--preset", PRESET)
    run(monkeypatch, capfd, "--preset", PRESET, "--rate", "2")
    assert [(s.workload.preset, s.workload.trace, s.workload.rate_rps) for s in asked] == [
        (PRESET, None, "trace"),
        (PRESET, None, 2),
    ]


def test_a_folder_is_a_trace(tmp_path: Path) -> None:
    """As for the other commands that read one."""
    scenario = Scenario().replace(**{"workload.trace": str(tmp_path)})
    assert scenario.trace_path() == tmp_path
