"""Efficiencies fitted to requests that somebody timed on engines of their own."""

from __future__ import annotations

import tomllib
from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace

import numpy as np
import pandas as pd
import pytest
from click.testing import CliRunner

from smetric_model.analytic.calibration import (
    engine_rows,
    fit_requests,
    hardly_told,
    is_requests,
    predict_engine_row,
    read_measurements,
    read_requests,
)
from smetric_model.analytic.efficiencies import get_efficiencies
from smetric_model.catalog.gpu import get_gpu
from smetric_model.cli.calibrate import command
from smetric_model.errors import SpecError

H20 = get_gpu("H20")
STORED = get_efficiencies("H20", "vllm")
#: engines that are slower than those of the catalog, in some ways
SLOWER = replace(
    STORED,
    dense_compute={**STORED.dense_compute, "bf16": 0.6},
    attention_compute=0.5,
    attention_bandwidth={**STORED.attention_bandwidth, "bf16": 0.5},
    request_host_s=0.03,
)
SET_UPS = [
    (prompt, *work)
    for prompt in (512, 2048, 8192, 32_768)
    for work in ((1, 1, "ttft_s"), (128, 1, "tpot_s"), (128, 32, "tpot_s"))
    if prompt <= 2048 or work[1] == 1
]


def row(prompt: int, output: int, concurrency: int, quantity: str) -> SimpleNamespace:
    return SimpleNamespace(
        engine="vllm",
        llm="Qwen3-8B",
        weight_dtype="bf16",
        tp=1,
        mode="graph",
        prompt_tokens=prompt,
        hit_tokens=0,
        hit_tier="local",
        output_tokens=output,
        concurrency=concurrency,
        quantity=quantity,
    )


def write(path: Path, noise: float, repeats: int = 2, seed: int = 1) -> Path:
    random = np.random.default_rng(seed)
    names = ("llm", "prompt_tokens", "output_tokens", "concurrency", "quantity")
    lines = [",".join((*names, "value_s"))]
    for set_up in SET_UPS:
        each = row(*set_up)
        time_s = predict_engine_row(each, H20, SLOWER)
        for _ in range(repeats):
            value = time_s * np.exp(noise * random.standard_normal())
            lines.append(",".join(str(getattr(each, name)) for name in names) + f",{float(value)}")
    path.write_text("\n".join(lines) + "\n")
    return path


def test_slower_engines_are_found_within_what_the_fit_says_of_itself(tmp_path: Path) -> None:
    table = read_requests(write(tmp_path / "own.csv", noise=0.02))
    found = fit_requests(table, H20, leave_out=False)["vllm"]
    for parameter in found.parameters:
        spread = found.spread_ratio[parameter.name]
        off = np.log(parameter.get(found.efficiencies) / parameter.get(SLOWER))
        assert abs(off) < 2.5 * spread + 1e-3, parameter.name
    assert found.spread_ratio["dense_compute.bf16"] < 0.1
    # of no other concurrency than 1 and 32, nor of such prompts
    for unseen in ((16_384, 1, 1, "ttft_s"), (1024, 128, 8, "tpot_s"), (4096, 64, 16, "e2e_s")):
        each = row(*unseen)
        predicted = predict_engine_row(each, H20, found.efficiencies)
        assert predicted == pytest.approx(predict_engine_row(each, H20, SLOWER), rel=0.06)
        if unseen[3] != "tpot_s":
            assert abs(predict_engine_row(each, H20, STORED) / predicted - 1) > 0.2


def test_what_the_rows_do_not_tell_stays_and_says_so(tmp_path: Path) -> None:
    table = read_requests(write(tmp_path / "own.csv", noise=0.02))
    found = fit_requests(table, H20, leave_out=False)["vllm"]
    assert hardly_told(found.spread_ratio["request_host_s_per_token"])
    told = found.efficiencies.provenance
    assert "hardly told by the 20 requests" in told["request_host_s_per_token"]
    assert told["dense_compute.bf16"].startswith("fitted on 20 requests of 10 set-ups")
    # of FP8, experts and other nodes no row says anything
    assert found.efficiencies.dense_compute["fp8"] == STORED.dense_compute["fp8"]
    assert found.efficiencies.expert_compute == STORED.expert_compute
    assert found.efficiencies.rdma_fetch_s == STORED.rdma_fetch_s
    assert told["dense_compute.fp8"].startswith("as H20/vllm: ")
    assert not {"dense_compute.fp8", "rdma_fetch_s"} & set(found.spread_ratio)


def test_engines_like_the_catalogs_leave_it_as_it_is(tmp_path: Path) -> None:
    path = tmp_path / "same.csv"
    rows = [row(*set_up) for set_up in SET_UPS]
    pd.DataFrame([{**vars(r), "value_s": predict_engine_row(r, H20, STORED)} for r in rows]).to_csv(
        path, index=False
    )
    found = fit_requests(read_requests(path), H20, leave_out=False)["vllm"]
    for parameter in found.parameters:
        assert parameter.get(found.efficiencies) == pytest.approx(
            parameter.get(STORED), rel=1e-3, abs=1e-7
        )
    assert found.quality["largest_error_ratio"] < 1e-3


def test_repeats_together_weigh_as_one_row(tmp_path: Path) -> None:
    once = read_requests(write(tmp_path / "once.csv", noise=0.0, repeats=1))
    twice = read_requests(write(tmp_path / "twice.csv", noise=0.0, repeats=2))
    assert once["group"].nunique() == twice["group"].nunique() == len(SET_UPS)
    assert once["weight"].tolist() == [1.0] * len(SET_UPS)
    assert (twice["weight"] ** 2).sum() == pytest.approx(len(SET_UPS))
    first, second = (
        fit_requests(table, H20, leave_out=False)["vllm"].efficiencies for table in (once, twice)
    )
    assert first.dense_compute["bf16"] == pytest.approx(second.dense_compute["bf16"], rel=1e-3)


@pytest.mark.shared
def test_published_requests_are_fitted_as_somebodys_own(shared_dir: Path, tmp_path: Path) -> None:
    rows = engine_rows(read_measurements(shared_dir / "measurements" / "h20.csv"))
    path = tmp_path / "published.csv"
    rows[rows["engine"] == "vllm"].drop(columns="id").to_csv(path, index=False)
    found = fit_requests(read_requests(path), H20, leave_out=False)["vllm"]
    assert len(found.rows) == 19
    # the catalog was fitted to them
    assert found.quality["median_error_ratio"] < 0.03
    assert found.efficiencies.attention_compute == pytest.approx(STORED.attention_compute, rel=0.1)


def test_the_command_writes_a_gpu_file(tmp_path: Path) -> None:
    path = write(tmp_path / "own.csv", noise=0.02, repeats=1)
    file = tmp_path / "own-gpu.toml"
    done = CliRunner().invoke(command, [str(path), "--no-leave-out", "--write", str(file)])
    assert done.exit_code == 0, done.output
    assert "not told" in done.output
    assert get_gpu(str(file)).flops == H20.flops
    mine = get_efficiencies(str(file), "vllm")
    assert not mine.carried_over
    assert mine.dense_compute["bf16"] == pytest.approx(0.6, rel=0.15)
    assert tomllib.loads(file.read_text())["efficiencies"]["vllm"]["fit"]["rows"] == len(SET_UPS)


HEAD = "llm,prompt_tokens,output_tokens,hit_tokens,quantity,value_s,mode\n"


@pytest.mark.parametrize(
    ("text", "told"),
    [
        ("prompt_tokens,quantity,value_s\n1,ttft_s,1\n", "missing columns llm"),
        (HEAD, "no row under the header"),
        (HEAD + "Qwen3-8B,1024,1,0,ttft,0.1,graph\n", ":2: quantity = 'ttft': one of ttft_s"),
        (HEAD + "Qwen3-8B,1.5,1,0,ttft_s,0.1,graph\n", ":2: prompt_tokens = '1.5': a whole"),
        (HEAD + "Qwen3-8B,1024,1,0,ttft_s,-1,graph\n", ":2: value_s = '-1': a time in seconds"),
        (HEAD + "Qwen3-8B,1024,1,0,ttft_s,fast,\n", ":2: value_s = 'fast': a time in seconds"),
        (HEAD + "Qwen3-8B,1024,1,2048,ttft_s,1,\n", ":2: hit_tokens = 2048: no more than"),
        (HEAD + "Qwen3-8B,1024,1,0,tpot_s,1,\n", ":2: output_tokens = 1: tpot_s needs"),
        (HEAD + "Qwen3-8B,1,1,0,ttft_s,1,\nQwen3-8B,1,1,0,ttft_s,1,jit\n", ":3: mode = 'jit'"),
        (HEAD + "Qwen3-8B,1,1,0,ttft_s,1,graph,2,3,4\n" * 2, "no CSV of requests|mode = "),
    ],
)
def test_wrong_requests_say_where(tmp_path: Path, text: str, told: str) -> None:
    path = tmp_path / "own.csv"
    path.write_text(text)
    assert is_requests(path)
    with pytest.raises(SpecError, match=told):
        read_requests(path)


def test_an_unknown_llm_is_named(tmp_path: Path) -> None:
    path = tmp_path / "own.csv"
    path.write_text(HEAD + "Qwen9-8B,1024,1,0,ttft_s,0.1,graph\n")
    with pytest.raises(SpecError, match="Qwen9-8B"):
        fit_requests(read_requests(path), H20)
