"""``smetric-model kv`` as its users call it."""

from __future__ import annotations

import json
import sys
from pathlib import Path
from typing import Any

import pytest

from smetric_model.cli import main

KEYS = {
    "kv_bytes_per_token",
    "kv_bytes_per_token_per_gpu",
    "fixed_state_bytes_per_request",
    "weight_bytes_per_gpu",
    "expert_weight_bytes_per_gpu",
    "local_tier_tokens",
    "local_tier_blocks",
    "local_tier_bytes",
    "fits",
    "missing_bytes",
    "min_tp",
}


class Kv:
    def __init__(self, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]):
        self.monkeypatch, self.capsys = monkeypatch, capsys

    def run(self, *arguments: str) -> tuple[int, str, str]:
        self.monkeypatch.setattr(sys, "argv", ["smetric-model", "kv", *arguments])
        with pytest.raises(SystemExit) as end:
            main()
        out, err = self.capsys.readouterr()
        return int(end.value.code or 0), out, err

    def json(self, *arguments: str) -> dict[str, Any]:
        code, out, err = self.run(*arguments, "--json")
        assert (code, err) == (0, "")
        result: dict[str, Any] = json.loads(out)
        return result

    def fail(self, *arguments: str) -> str:
        code, out, err = self.run(*arguments, "--json")
        assert code != 0
        assert out == ""
        assert "Traceback" not in err
        return err


@pytest.fixture
def kv(monkeypatch: pytest.MonkeyPatch, capsysbinary: Any) -> Kv:
    class Text:
        def readouterr(self) -> tuple[str, str]:
            out, err = capsysbinary.readouterr()
            return out.decode(), err.decode()

    return Kv(monkeypatch, Text())  # type: ignore[arg-type]


def test_promised_keys(kv: Kv) -> None:
    assert set(kv.json("--llm", "Qwen3-30B-A3B", "--gpu", "H20")) >= KEYS


def test_tensor_parallel_beyond_the_kv_heads(kv: Kv) -> None:
    result = kv.json("--llm", "Qwen3-30B-A3B", "--gpu", "H20", "--tp", "8")
    assert result["kv_bytes_per_token"] == 196_608
    assert result["kv_bytes_per_token_per_gpu"] == 24_576


def test_figures_of_an_engine_log(kv: Kv) -> None:
    log = ("--llm", "Qwen3-30B-A3B-FP8", "--gpu", "H20", "--kv-dtype", "fp8")
    per_token = 10.55 * 2**30 / 230_528
    assert round(per_token) == 49_139
    given = ("--kv-bytes", str(5.59 * 2**30), "--kv-bytes-per-token", "49139")
    result = kv.json(*log, *given, "--tokens", "221000")
    assert result["local_tier_tokens"] == pytest.approx(122_147, abs=1)
    assert result["local_tier_blocks"] == result["local_tier_tokens"] // 16
    assert result["kv_bytes_for_tokens"] / 2**30 == pytest.approx(10.11, abs=0.005)
    exact = kv.json(*log, "--kv-bytes", str(5.59 * 2**30))
    assert exact["local_tier_tokens"] == pytest.approx(122_115, abs=1)


def test_given_pool_in_place_of_the_computed_one(kv: Kv) -> None:
    fits = kv.json("--llm", "Qwen3-32B", "--gpu", "L40S", "--kv-bytes", "1e9")
    assert fits["fits"]
    assert fits["local_tier_bytes"] == 1e9
    tiny = kv.json("--llm", "Qwen3-32B", "--gpu", "H20", "--kv-bytes", "1000")
    assert not tiny["fits"]
    assert tiny["missing_bytes"] == 16 * 262_144 - 1000


def test_not_fitting_is_an_answer(kv: Kv) -> None:
    result = kv.json("--llm", "Qwen3-235B-A22B", "--gpu", "H20", "--tp", "4")
    assert result["fits"] is False
    assert result["missing_bytes"] > 0
    assert result["local_tier_tokens"] == 0
    assert result["min_tp"] == 8


def test_memory_adds_up(kv: Kv) -> None:
    result = kv.json("--llm", "Qwen3-Next-80B-A3B", "--gpu", "H20", "--tp", "2", "--ep", "2")
    taken = sum(
        result[f"{part}_bytes_per_gpu"]
        for part in ("weight", "activation_peak", "graph", "runtime")
    )
    left = result["usable_memory_bytes_per_gpu"] - taken
    assert result["local_tier_bytes"] == pytest.approx(2 * left)


def test_configuration_file(kv: Kv, tmp_path: Path) -> None:
    config = {
        "model_type": "llama",
        "hidden_size": 4096,
        "num_hidden_layers": 32,
        "num_attention_heads": 32,
        "num_key_value_heads": 8,
        "intermediate_size": 14336,
        "vocab_size": 128256,
        "max_position_embeddings": 8192,
    }
    file = tmp_path / "config.json"
    file.write_text(json.dumps(config))
    result = kv.json("--llm", str(file), "--gpu", "H100")
    assert result["params"] == 8_030_261_248
    assert result["kv_bytes_per_token"] == 131_072
    del config["vocab_size"]
    file.write_text(json.dumps(config))
    error = kv.fail("--llm", str(file), "--gpu", "H100")
    assert f"{file}: key 'vocab_size' is missing" in error


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (("--llm", "Qwen3-23B", "--gpu", "H20"), "Did you mean 'Qwen3-32B'"),
        (("--llm", "Qwen3-32B", "--gpu", "H21"), "Known: H20"),
        (("--llm", "./nowhere", "--gpu", "H20"), "no such file"),
        (("--llm", "Qwen3-32B", "--gpu", "H20", "--tp", "3"), "64 attention heads"),
        (("--llm", "Qwen3-30B-A3B", "--gpu", "H20", "--tp", "4", "--ep", "3"), "ep = 3"),
        (("--llm", "Qwen3-32B", "--gpu", "H20", "--kv-bytes", "-1"), "kv_bytes = -1.0"),
        (("--llm", "Qwen3-32B", "--gpu", "H20", "--tokens", "0"), "--tokens 0"),
        (("--llm", "Qwen3-32B", "--gpu", "H20", "--memory-utilisation", "2"), "(0, 1]"),
        (("--llm", "Qwen3-32B", "--gpu", "H20", "--engine", "vlm"), "Did you mean 'vllm'"),
    ],
)
def test_wrong_options_are_one_line(kv: Kv, arguments: tuple[str, ...], message: str) -> None:
    error = kv.fail(*arguments)
    assert message in error
    assert error.count("\n") == 1


def test_table(kv: Kv, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("COLUMNS", "120")
    code, out, err = kv.run("--llm", "Qwen3-235B-A22B-FP8", "--gpu", "H20", "--tp", "8")
    assert (code, err) == (0, "")
    assert "235,093,634,560" in out
    assert "note: experts are split to 192 rows" in out
    code, out, _ = kv.run("--llm", "Qwen3-235B-A22B", "--gpu", "H20")
    assert code == 0
    assert "does not fit" in out


def test_sizes_beyond_what_a_machine_word_holds(kv: Kv) -> None:
    """A silly size is a large number or an error, never a traceback."""
    instance = ("--llm", "Qwen3-30B-A3B", "--gpu", "H20")
    result = kv.json(*instance, "--kv-bytes", "1e30")
    assert result["local_tier_tokens"] == pytest.approx(1e30 / 98_304)
    assert not kv.json(*instance, "--block", str(10**25))["fits"]
    assert "kv_bytes_per_token = 1e-300" in kv.fail(*instance, "--kv-bytes-per-token", "1e-300")
