"""The report page: complete, self-contained, escaped."""

from __future__ import annotations

import json
import math
import re
import subprocess
import sys
from dataclasses import replace
from html.parser import HTMLParser
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest

from smetric_model.planning import words
from smetric_model.report import plan_page, write_plan_report

if TYPE_CHECKING:
    from smetric_model.designing import DesignPlan
    from smetric_model.planning import Plan

VOID = {"meta", "link", "br", "path", "use", "rect", "circle"}
HOSTILE = "<script>alert('x')</script>&\"{{ 7 * 7 }}[/bold]$x$"


class Page(HTMLParser):
    """Tags in order, attributes, text; checks that tags close in order."""

    def __init__(self, text: str):
        super().__init__()
        self.tags: list[str] = []
        self.attributes: list[tuple[str, str, str]] = []
        self.text = ""
        self._open: list[str] = []
        self.feed(text)
        self.close()
        assert self._open == []

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.tags.append(tag)
        self.attributes += [(tag, name, value or "") for name, value in attrs]
        if tag not in VOID:
            self._open.append(tag)

    def handle_startendtag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.tags.append(tag)
        self.attributes += [(tag, name, value or "") for name, value in attrs]

    def handle_endtag(self, tag: str) -> None:
        if tag not in VOID:
            assert self._open.pop() == tag

    def handle_data(self, data: str) -> None:
        self.text += data


@pytest.fixture(scope="module")
def page(small_plan: Plan) -> str:
    return plan_page(small_plan)


@pytest.fixture(scope="module")
def search_page(small_search: DesignPlan) -> str:
    return plan_page(small_search)


def squeezed(text: str) -> str:
    return re.sub(r"\s+", " ", text)


def test_the_page_loads_and_runs_nothing(page: str) -> None:
    parsed = Page(page)
    assert "script" not in parsed.tags
    for tag, name, value in parsed.attributes:
        assert not name.startswith("on")
        if name in ("src", "href", "data", "srcset", "action"):
            assert value == "plan.json" or value.startswith(("#", "data:")), (tag, name, value)
    assert "@import" not in page
    assert set(re.findall(r"url\(([^)])", page)) == {"#"}
    assert "http:" not in page
    assert "https:" not in page


def test_the_page_of_a_search_loads_nothing_either(search_page: str) -> None:
    parsed = Page(search_page)
    assert "script" not in parsed.tags
    for _tag, name, value in parsed.attributes:
        if name in ("src", "href", "data", "srcset", "action"):
            assert value in ("plan.json", "designs.csv") or value.startswith(("#", "data:"))
    ids = [value for _, name, value in parsed.attributes if name == "id"]
    assert len(ids) == len(set(ids))


def test_answers_come_first_with_their_sources(search_page: str, small_search: DesignPlan) -> None:
    text = squeezed(Page(search_page).text)
    places = [text.index(squeezed(answer.question)) for answer in small_search.answers]
    assert places == sorted(places)
    assert places[-1] < text.index("Designs compared")
    for answer in small_search.answers:
        assert squeezed(answer.text) in text
        assert f"Source: {answer.source}." in text


def test_every_design_is_on_the_page(search_page: str, small_search: DesignPlan) -> None:
    text = squeezed(Page(search_page).text)
    for design in small_search.designs:
        assert design.name in text
    assert "does not fit" in text
    assert "nan" not in text
    assert "What was simulated" in text


def test_findings_have_their_place(small_search: DesignPlan) -> None:
    class Found:
        title = "What if <a node> is lost?"
        words = ("Two instances more.",)
        notes = ("an assumption",)

        def to_dict(self) -> dict[str, object]:
            return {}

    text = squeezed(Page(plan_page(small_search.with_findings([Found()]))).text)
    assert "What if <a node> is lost?" in text
    assert "Two instances more." in text
    assert "An assumption." in text


def test_unservable_requests_come_first(page: str, small_plan: Plan) -> None:
    text = squeezed(Page(page).text)
    order = [
        text.index(part)
        for part in (
            words.unservable(small_plan),
            words.answer(small_plan),
            "Capacity of the cluster",
            "Tokens/s within SLO against load",
            "How large the global tier has to be",
            "Load or recompute",
            "Where a step's time goes",
            "KV tiers and links",
            "Assumptions and notes",
        )
    ]
    assert order == sorted(order)


def test_every_table_is_on_the_page(page: str, small_plan: Plan) -> None:
    text = squeezed(Page(page).text)
    rows = [*words.capacity_rows(small_plan), *words.tier_rows(small_plan)]
    for row in rows:
        assert squeezed(row.title + "".join(row.cells)) in text
    for note in small_plan.notes:
        assert note[1:] in text
    for step in small_plan.steps:
        assert words.duration(step.step_time_s) in text


def test_every_key_of_the_scenario_is_on_the_page(page: str, small_plan: Plan) -> None:
    codes = re.findall(r"<code>(.*?)</code>", page)
    content = small_plan.scenario.model_dump()  # keys without a value included
    keys = [
        f"{name}.{key}" if key else name
        for name, value in content.items()
        for key in (value if isinstance(value, dict) else [""])
        if value != ()  # no groups, no failures: nothing to show
    ]
    assert len(keys) > 50
    assert not {"groups", "failures"} & set(codes)
    assert set(keys) <= set(codes)
    assert small_plan.scenario.scenario_id in codes
    assert "25e9" in codes


def test_every_plot_has_its_sentence(page: str) -> None:
    assert page.count("<svg ") == 4
    captions = re.findall(r"<figcaption>(.*?)</figcaption>", page, re.DOTALL)
    assert len(captions) == 4
    assert all(len(caption) > 60 for caption in captions)


def test_every_colour_has_two_sides(page: str) -> None:
    style = page[page.index("<style>") : page.index("</style>")]
    light, dark = style.split("@media (prefers-color-scheme: dark)", 1)
    used = set(re.findall(r"var\(--(\w+)\)", page))
    for part in (light, dark.split("* {")[0]):
        assert used <= set(re.findall(r"--(\w+):", part))


def test_wide_tables_scroll_in_their_own_box(page: str) -> None:
    assert page.count('<div class="scroll"') == page.count("<table")
    assert 'name="viewport"' in page


def test_what_comes_from_files_is_escaped(small_plan: Plan) -> None:
    work = small_plan.workload | {"source": HOSTILE, "unservable": {HOSTILE: 1}}
    plan = replace(
        small_plan,
        scenario=small_plan.scenario.replace(name=HOSTILE, **{"workload.trace": HOSTILE}),
        workload=work,
        instance=small_plan.instance | {"llm": HOSTILE},
        notes=(f"a {HOSTILE}",),
    )
    text = plan_page(plan)
    assert "<script" not in text
    parsed = Page(text)
    assert "script" not in parsed.tags
    # name twice (title, heading) and as a key; source; reason; LLM; note; trace
    assert parsed.text.count(HOSTILE) == 8


def test_without_reuse_the_page_says_so(small_plan: Plan) -> None:
    tiers = replace(small_plan.tiers, curve_bytes=(), curve_ratio=())
    text = plan_page(replace(small_plan, tiers=tiers, fetch=None, rate_rps=None))
    assert text.count("<svg ") == 2
    assert text.count("Nothing in this workload is reusable") == 2
    assert "nan" not in Page(text).text.lower().split()


def test_files_are_written(small_plan: Plan, tmp_path: Path) -> None:
    ends = dict(small_plan.ends)
    ends["none"] = replace(ends["none"], tpot_ceiling_rps=math.nan, max_batch=math.inf)
    odd = replace(small_plan, ends=ends)
    path = write_plan_report(odd, tmp_path / "a" / "b")
    assert path == tmp_path / "a" / "b" / "plan.html"
    assert path.read_text(encoding="utf-8").startswith("<!DOCTYPE html>")

    def refuse(constant: str) -> Any:
        raise AssertionError(constant)

    content = json.loads((path.parent / "plan.json").read_text(), parse_constant=refuse)
    assert content["ends"]["none"]["tpot_ceiling_rps"] is None
    assert content["ends"]["none"]["max_batch"] is None
    assert content["scenario"]["client"]["timeout_s"] is None
    assert content["ends"]["ideal"]["peak_rps"] == small_plan.ends["ideal"].peak_rps
    assert sorted(content) == sorted(small_plan.to_dict())
    assert {file.name for file in path.parent.iterdir()} == {"plan.html", "plan.json"}


def test_a_file_in_the_way_is_an_error(small_plan: Plan, tmp_path: Path) -> None:
    (tmp_path / "taken").write_text("")
    with pytest.raises(OSError, match="taken"):
        write_plan_report(small_plan, tmp_path / "taken")


def test_drawing_is_loaded_only_for_a_report() -> None:
    code = (
        "import sys, smetric_model.planning, smetric_model.report, smetric_model.cli.plan;"
        "assert 'matplotlib' not in sys.modules and 'jinja2' not in sys.modules"
    )
    subprocess.run([sys.executable, "-c", code], check=True)
