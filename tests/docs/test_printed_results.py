"""Figures that README states after a command line are those that the command prints."""

from __future__ import annotations

import json
import re
import shlex
from pathlib import Path

from click.testing import CliRunner

from smetric_model.catalog.gpu import get_gpu
from smetric_model.cli import _root
from smetric_model.units import MIB

README = (Path(__file__).resolve().parents[2] / "README.md").read_text()
SECTION = README.partition("## A result to check by hand")[2].partition("\n## ")[0]


def printed(command: str) -> dict[str, float]:
    """Answer of the line of the section that begins with a command."""
    joined = SECTION.replace("\\\n", " ")
    line = next(
        words for words in joined.splitlines() if words.startswith(f"$ smetric-model {command}")
    )
    run = CliRunner().invoke(_root, [*shlex.split(line)[2:], "--json"], catch_exceptions=False)
    assert run.exit_code == 0
    return json.loads(run.stdout)


def test_memory():
    answer = printed("kv")
    for figure in (
        f"{answer['kv_bytes_per_token']:,.0f} bytes",
        f"{answer['weight_bytes_per_gpu'] / 1e9:.1f} GB",
        f"about {answer['local_tier_bytes'] / 1e9:.0f} GB",
        f"{answer['local_tier_tokens']:,} tokens",
        f"{get_gpu('H20').memory_bytes / MIB:,.0f} MiB",
        f"{answer['memory_utilisation']:.0%}".replace("%", " %"),
    ):
        assert figure in re.sub(r"\s+", " ", SECTION)


def test_latency():
    assert f"{printed('latency')['ttft_s']:.1f} s for a cold 64k prompt" in SECTION
