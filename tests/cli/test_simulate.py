from __future__ import annotations

import json
import subprocess
import sys

import pytest

MAIN = "from smetric_model.cli import main; main()"
FIXED = [
    *("--instances", "2", "--policy", "round-robin", "--global-tier-gb-per-node", "0"),
    *("--prompt-tokens", "5000", "--output-tokens", "1000", "--requests", "100", "--rate", "10"),
]


def run(*arguments: str) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        [
            sys.executable,
            "-c",
            "from smetric_model.cli import main; main()",
            "simulate",
            *arguments,
        ],
        capture_output=True,
        text=True,
        check=False,
    )


def test_fixed_load_is_the_same_in_every_process() -> None:
    one, two = run(*FIXED, "--json"), run(*FIXED, "--json")
    assert one.returncode == 0, one.stderr
    assert one.stdout == two.stdout
    outcome = json.loads(one.stdout)
    assert outcome["requests"] == 100
    assert outcome["recomputed_ratio"] == 1.0


def test_tables_for_people_and_files(tmp_path) -> None:
    import pandas as pd

    done = run(*FIXED, "--out", str(tmp_path / "out"), "--check")
    assert done.returncode == 0, done.stderr
    assert "Tokens/s of the cluster" in done.stdout
    assert len(pd.read_parquet(tmp_path / "out" / "requests.parquet")) == 100
    assert len(pd.read_parquet(tmp_path / "out" / "instances.parquet")) == 2
    series = pd.read_parquet(tmp_path / "out" / "series.parquet")
    assert set(series["instance"]) == {0, 1}


def test_clients_that_give_up() -> None:
    done = run(*FIXED, "--timeout", "20", "--retries", "1", "--backoff", "0.1", "--check", "--json")
    assert done.returncode == 0, done.stderr
    outcome = json.loads(done.stdout)
    assert outcome["retries"] > 0
    assert outcome["timed_out_ratio"] > 0


def test_failures() -> None:
    fails = ["--fail-instance", "1", "3", "inf", "--detection", "1", "--retries", "2"]
    done = run(*FIXED, *fails, "--backoff", "2", "--check", "--json")
    assert done.returncode == 0, done.stderr
    assert json.loads(done.stdout)["retries"] > 0
    done = run(*FIXED, "--fail-instance", "2", "3", "inf")
    assert done.returncode != 0
    assert "failures[0].instance = 2: the cluster has 2" in done.stderr


def test_scenario_file_with_options(tmp_path, small_trace) -> None:
    path = tmp_path / "scenario.toml"
    path.write_text(
        f'[workload]\ntrace = "{small_trace}"\nrate_rps = "trace"\nwindow_s = 100.0\n'
        "warmup_s = 10.0\n[cluster]\ninstances = 2\n"
    )
    done = run(str(path), "--policy", "lmetric", "--seed", "3", "--json")
    assert done.returncode == 0, done.stderr
    outcome = json.loads(done.stdout)
    assert (outcome["policy"], outcome["seed"], outcome["verb"]) == ("lmetric", 3, "simulate")


def test_two_pools_by_flags() -> None:
    pools = ("--prefill-instances", "2", "--decode-instances", "1", *FIXED[2:])
    done = run(*pools, "--check", "--json")
    assert done.returncode == 0, done.stderr
    outcome = json.loads(done.stdout)
    assert outcome["transfer_mean_s"] > 0
    assert outcome["decode_kv_utilisation_ratio"] > 0
    done = run(*pools)
    assert "TRANSFER WAIT" in done.stdout
    assert "used by decode" in done.stdout


@pytest.mark.parametrize(
    ("arguments", "words"),
    [
        (("--policy", "best"), "router.policy"),
        (("--prompt-tokens", "5"), "--rate"),
        (("--prefill-instances", "5"), "decode_instances"),
        (("--tp", "3"), "tp = 3"),
        (("--window", "1e8"), "workload.window_s"),
        (("--retries", "1001"), "client.retries"),
        (
            ("--prompt-tokens=5", "--output-tokens=5", "--requests=5", "--rate=1", "--window=9"),
            "--window",
        ),
        (("missing.toml",), "missing.toml"),
        (("--preset", "nonsense"), "nonsense"),
    ],
)
def test_mistakes_are_one_line(arguments, words) -> None:
    done = run(*arguments)
    assert done.returncode != 0
    assert words in done.stderr
    assert "Traceback" not in done.stderr


def test_a_mistyped_command_is_guessed() -> None:
    done = subprocess.run(
        [sys.executable, "-c", MAIN, "simulat"], capture_output=True, text=True, check=False
    )
    assert done.returncode == 2
    assert "Did you mean 'simulate'?" in done.stderr


def test_options_of_the_tiers() -> None:
    options = ("--local-eviction", "clairvoyant", "--global-eviction", "dead-first")
    tiers = ("--global-write", "back", "--peer-fetch", "--global-tier-gb-per-node", "10")
    done = run(*FIXED, *tiers, *options, "--check", "--json")
    assert done.returncode == 0, done.stderr
    assert json.loads(done.stdout)["peer_ratio"] == 0.0  # the requests share nothing
    wrong = run(*FIXED, "--local-eviction", "fifo")
    assert wrong.returncode != 0
    assert "'lru', 'dead-first', 'clairvoyant'" in wrong.stderr
