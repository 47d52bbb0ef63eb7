"""README and docs/live.md state of the recorded validation what lies in data/live/recorded."""

from __future__ import annotations

import json
import math
import re
from pathlib import Path

import pandas as pd
import pytest

ROOT = Path(__file__).resolve().parents[2]
REPORT = json.loads((ROOT / "data" / "live" / "recorded" / "report.json").read_text())
TABLE = pd.DataFrame(REPORT["comparison"])
ROWS = {policy: part.set_index("quantity") for policy, part in TABLE.groupby("policy")}
PAGE = (ROOT / "docs" / "live.md").read_text()


def largest(*quantities: str) -> int:
    """Largest error of the simulation, rounded up to a per cent."""
    errors = TABLE.loc[TABLE["quantity"].isin(quantities), "simulated_error"].abs()
    return math.ceil(100 * errors.max())


def test_readme():
    text = " ".join((ROOT / "README.md").read_text().split())
    said = re.search(
        r"simulated tokens/s are within (\d+) % of measured ones,"
        r" median TTFT and TPOT within (\d+) %",
        text,
    )
    assert said
    assert int(said[1]) == largest("total_tps", "output_tps")
    assert int(said[2]) == largest("ttft_p50_s", "tpot_p50_s")


@pytest.mark.parametrize("policy", ROWS)
def test_table_of_the_page(policy):
    part = "| TTFT" + PAGE.partition(f"| {policy}: TTFT")[2].partition("| return to first")[0]
    lines = {line.split("|")[1].strip(): line for line in part.strip().splitlines()}
    names = {"TTFT": "ttft_p50_s", "TPOT": "tpot_p50_s", "tokens/s": "total_tps"}
    assert set(names) <= set(lines)
    for name, quantity in names.items():
        one = ROWS[policy].loc[quantity]
        time = quantity.endswith("_s")
        measured = f"{1e3 * one['measured']:.1f} ms" if time else f"{one['measured']:,.0f}"
        assert measured in lines[name]
        for verb in ("simulated", "predicted"):
            answer = f"{1e3 * one[verb]:.1f}" if time else f"{one[verb]:,.0f}"
            assert answer in lines[name]


def test_verdicts():
    text = " ".join(PAGE.split())
    counts = {
        verb: TABLE[f"{verb}_verdict"].value_counts().to_dict()
        for verb in ("simulated", "predicted")
    }
    simulated, predicted = counts["simulated"], counts["predicted"]
    judged = simulated["within"] + simulated["outside"]
    assert f"{simulated['within']} of {judged} judged simulated quantities" in text
    assert predicted.get("outside", 0) == 0
    assert f"all {predicted['within']} of the closed form's" in text
