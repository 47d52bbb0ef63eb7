"""A folder in which the pages' examples find what they name: scenarios, traces, outcomes."""

from __future__ import annotations

import gzip
import json
import os
from pathlib import Path

import pytest

from smetric_model import Scenario, predict

ROOT = Path(__file__).resolve().parents[2]
PAGES = [ROOT / "README.md", *sorted((ROOT / "docs").rglob("*.md"))]


@pytest.fixture(scope="session")
def workplace(tmp_path_factory: pytest.TempPathFactory, small_trace: Path) -> Path:
    """Folder with ``data/``, scenarios, a trace and outcomes under the names that pages use."""
    folder = tmp_path_factory.mktemp("examples")
    (folder / "data").symlink_to(ROOT / "data")
    quick = Scenario.from_toml(ROOT / "data/scenarios/agents-small.toml").replace(
        **{
            "cluster.instances": 8,
            "workload.trace": str(ROOT / "data/traces/agents-small.parquet"),
            "workload.rate_rps": 1.0,
            "workload.warmup_s": 60.0,
            "workload.window_s": 60.0,
        }
    )
    for name in ("scenario.toml", "my-scenario.toml", "my.toml"):
        (folder / name).write_text(quick.to_toml())
    with gzip.open(folder / "conversation_trace.jsonl.gz", "wt") as file:
        file.write(small_trace.read_text())
    for name in ("my-trace.jsonl.gz", "trace.jsonl.gz"):
        (folder / name).symlink_to("conversation_trace.jsonl.gz")
    row = json.dumps(predict(quick).to_dict())
    for name in ("predicted.json", "simulated.json", "out/smetric.json", "out/bailian.json"):
        (folder / name).parent.mkdir(exist_ok=True)
        (folder / name).write_text(row)
    (folder / "router.toml").write_text("")
    (folder / "decisions.jsonl").write_text("")
    (folder / "mine.toml").write_text("")
    (folder / "my-requests.csv").write_text(
        "llm,prompt_tokens,quantity,value_s\nQwen3-8B,512,ttft_s,.1\n"
    )
    (folder / "prices.toml").write_text("[prices.gpu_hour]\nH20 = 1.0\n")
    for name in ("out/smetric", "out/bailian", "out/sweep"):
        (folder / name).mkdir()
    return folder


@pytest.fixture
def at_workplace(workplace: Path) -> object:
    """Work in that folder."""
    before = Path.cwd()
    os.chdir(workplace)
    yield workplace
    os.chdir(before)
