from __future__ import annotations

from html.parser import HTMLParser

import pandas as pd
import pytest
from click.testing import CliRunner

from smetric_model import Outcome, compare
from smetric_model.cli.compare import command
from smetric_model.comparison.report import comparison_page
from smetric_model.errors import SpecError
from smetric_model.reproduction.claims import load_claims
from smetric_model.reproduction.estimates import LEVELS


def rows(**more) -> list[Outcome]:
    return [
        Outcome(
            {
                "verb": "simulate",
                "policy": policy,
                "seed": seed,
                "arrival_rate_rps": 5.0,
                "total_within_slo_tps": tps + seed,
                "within_slo_ratio": 0.9 + 0.01 * seed,
                "local_ratio": 0.6,
                **more,
            }
        )
        for policy, tps in (("bailian", 1000.0), ("smetric", 1100.0))
        for seed in range(4)
    ]


class Page(HTMLParser):
    def __init__(self, text: str):
        super().__init__()
        self.open: list[str] = []
        self.links: list[str] = []
        self.cells = 0
        self.feed(text)

    def handle_starttag(self, tag, attrs):
        self.links += [v or "" for k, v in attrs if k in ("src", "href", "xlink:href")]
        if tag not in ("meta", "link", "br", "use", "path"):
            self.open.append(tag)
        self.cells += tag == "td"

    def handle_endtag(self, tag):
        if tag in ("use", "path"):
            return
        assert self.open.pop() == tag


def test_the_page_needs_nothing_else_and_says_the_answer():
    found = compare(rows(), baseline="bailian", paper="colocated-30b")
    text = comparison_page(found)
    page = Page(text)
    assert not page.open
    assert all(link.startswith(("#", "data:,")) for link in page.links)
    assert "<script" not in text
    assert "Tokens within SLO against bailian: smetric +10.0%" in text.replace("\n", " ")
    # a cell a quantity and name, two a claim
    assert found.paper is not None
    assert page.cells == len(found.table) + 2 * len(found.paper)


def test_what_comes_from_files_is_escaped():
    found = compare({"<b>one</b>": rows()[0], "two": rows()[4]}, by="source")
    text = comparison_page(found)
    assert "<b>" not in text
    assert "&lt;b&gt;one" in text


def test_a_sweep_that_cannot_be_drawn_has_a_page_all_the_same():
    frame = pd.DataFrame([dict(row) for row in rows()])
    frame["cluster.instances"] = [8, 16] * 4
    frame["router.tie_break"] = ["first", "first", "least-loaded", "least-loaded"] * 2
    text = comparison_page(compare(frame, by="policy"))
    assert "None: compare: a figure needs rows" in text


@pytest.mark.parametrize("value", [0.61, 0.2])
def test_the_papers_figures_stand_beside(value):
    found = compare(rows(local_ratio=value), paper="colocated-30b")
    assert found.paper is not None
    by_claim = found.paper.set_index("claim")
    claims = {claim.id: claim for claim in load_claims()}
    expected = {
        claim
        for claim, level in LEVELS.items()
        if level.setup == "colocated-30b"
        and level.column == "local_ratio"
        and level.policy in ("bailian", "smetric")
    }
    assert set(by_claim.index) == expected == {"C15", "C34", "C35"}
    for claim, row in by_claim.iterrows():
        assert row["paper"] == claims[claim].text
        assert row["mean"] == pytest.approx(value)
        assert row["policy"] == LEVELS[claim].policy
        near = abs(value - claims[claim].value.low) <= 0.05 + 1e-9
        assert row["agrees"] == ("yes" if near else "no")


def test_wrong_paper_and_none_of_its_figures(tmp_path):
    with pytest.raises(SpecError, match="paper = 'x': one of colocated-235b, colocated-30b"):
        compare(rows(), paper="x")
    with pytest.raises(SpecError, match="have no such column"):
        compare(pd.DataFrame({"total_tps": [1.0, 2.0], "seed": [0, 1]}), paper="colocated-30b")
    other = compare(rows(policy="random"), by="seed", paper="colocated-30b")
    assert "The paper has no figure" in comparison_page(other)


def test_the_command_writes_the_page(tmp_path):
    frame = pd.DataFrame([dict(row) for row in rows()])
    frame.to_csv(tmp_path / "rows.csv", index=False)
    out = tmp_path / "out"
    asked = [str(tmp_path / "rows.csv"), "--paper", "colocated-30b", "--out", str(out)]
    result = CliRunner().invoke(command, asked, catch_exceptions=False)
    assert "Beside the paper" in result.stdout
    assert "C34 Fig16b" in " ".join(result.stdout.split())
    assert (out / "compare.html").read_text().startswith("<!DOCTYPE html>")
    assert len(pd.read_csv(out / "compare.csv")) > 5
