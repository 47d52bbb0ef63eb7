"""The scripts of Figures 5 to 9 draw any trace."""

from __future__ import annotations

import runpy
import sys
from pathlib import Path

import pytest

from smetric_model.datafiles import data_dir

SCRIPTS = Path(__file__).parents[2] / "paper_figures"


@pytest.mark.parametrize("number", range(5, 10))
def test_figure(number, tmp_path, monkeypatch) -> None:
    import json

    mooncake = tmp_path / "mooncake.jsonl"
    paths = [[0, 1, 2], [0, 3, 4], [0, 1, 2, 5], [0, 3, 4, 6]] * 20
    mooncake.write_text(
        "\n".join(
            json.dumps(
                {
                    "timestamp": 9000 * k,
                    "input_length": 512 * len(path),
                    "output_length": 90,
                    "hash_ids": path,
                }
            )
            for k, path in enumerate(paths)
        )
    )
    weka = tmp_path / "weka.json"
    asks = [{"t": 30 * k, "in": 200, "out": 5, "hash_ids": [1, 2, 3]} for k in range(9)]
    weka.write_text(
        "\n".join(json.dumps({"id": str(k), "block_size": 64, "requests": asks}) for k in range(5))
    )
    azure = tmp_path / "azure.csv"
    azure.write_text("TIMESTAMP,ContextTokens,GeneratedTokens\n2023-11-16 18:17:03.9799600,4808,10")
    traces = [data_dir() / "traces" / "agents-small.parquet", mooncake, weka]
    out = tmp_path / "figure.png"
    monkeypatch.syspath_prepend(SCRIPTS)
    monkeypatch.setattr(sys, "argv", ["figure", *map(str, traces), "--out", str(out)])
    runpy.run_path(str(SCRIPTS / f"figure{number}.py"), run_name="__main__")
    assert out.read_bytes()[:8] == b"\x89PNG\r\n\x1a\n"
    assert out.stat().st_size > 10_000

    if number != 9:  # without block ids and sessions only the balance can be drawn
        monkeypatch.setattr(sys, "argv", ["figure", str(azure), "--out", str(out)])
        with pytest.raises(SystemExit, match="carries no block ids"):
            runpy.run_path(str(SCRIPTS / f"figure{number}.py"), run_name="__main__")
