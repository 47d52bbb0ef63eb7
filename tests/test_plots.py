"""Figures show the plan's own numbers, name their units, and stand alone inside a page."""

from __future__ import annotations

import re
import subprocess
import sys
from dataclasses import replace
from typing import TYPE_CHECKING, Any
from xml.etree import ElementTree

import matplotlib as mpl
import numpy as np
import pytest

from smetric_model import plots

if TYPE_CHECKING:
    from collections.abc import Callable

    from matplotlib.figure import Figure

    from smetric_model.planning import Plan

FIGURES: dict[str, Callable[[Any], Figure]] = {
    "capacity": plots.capacity_figure,
    "tiers": plots.tier_size_figure,
    "fetch": plots.fetch_figure,
    "steps": plots.step_figure,
}


def lines(axes: Any) -> list[tuple[np.ndarray, np.ndarray]]:
    return [(np.asarray(x, float), np.asarray(y, float)) for x, y in (a.get_data() for a in axes)]


def has(axes: Any, x: Any, y: Any) -> bool:
    """Whether a line of the axes starts with these points."""
    x, y = np.atleast_1d(x), np.atleast_1d(y)
    return any(
        a.size >= x.size and np.allclose(a[: x.size], x) and np.allclose(b[: y.size], y)
        for a, b in lines(axes.lines)
    )


@pytest.mark.parametrize("name", FIGURES)
def test_every_axis_has_a_unit(small_plan: Plan, name: str) -> None:
    figure = FIGURES[name](small_plan)
    for index, axes in enumerate(figure.axes):
        if name != "steps":  # its bars are named
            assert re.search(r"\[.+\]$", axes.get_ylabel())
        shared = name == "capacity" and index == 0  # the panel below has the label
        assert shared or re.search(r"\[.+\]$", axes.get_xlabel())


def test_capacity_shows_curves_peaks_and_attainment(small_plan: Plan) -> None:
    upper, lower = plots.capacity_figure(small_plan).axes
    for end in small_plan.ends.values():
        assert has(upper, end.rates_rps, end.within_slo_tps)
        assert has(lower, end.rates_rps, end.within_slo_ratio)
        assert has(upper, end.peak_rps, end.peak_within_slo_tps)
        assert has(lower, end.attainment_rps, small_plan.scenario.slo.attainment)
    rate = small_plan.rate_rps * (1 - small_plan.workload["unservable_ratio"])
    assert has(upper, [rate, rate], [0, 1])


def test_ends_without_attainment_have_no_mark(small_plan: Plan) -> None:
    ends = {n: replace(e, attainment_rps=None) for n, e in small_plan.ends.items()}
    _, marked = plots.capacity_figure(small_plan).axes
    _, bare = plots.capacity_figure(replace(small_plan, ends=ends)).axes
    assert len(marked.lines) - len(bare.lines) == 3


def test_tier_sizes_and_what_is_provisioned_are_marked(small_plan: Plan) -> None:
    tiers = small_plan.tiers
    (axes,) = plots.tier_size_figure(small_plan).axes
    size, ratio = np.array(tiers.curve_bytes) / 1e9, tiers.curve_ratio
    assert has(axes, [size[0], *size], [0, *ratio])
    provisioned = tiers.provisioned_bytes / 1e9
    assert has(axes, [provisioned, provisioned], [0, 1])
    assert axes.get_xlim()[1] >= provisioned
    none = replace(small_plan, tiers=replace(tiers, provisioned_bytes=0.0))
    (axes,) = plots.tier_size_figure(none).axes
    assert not has(axes, [provisioned, provisioned], [0, 1])


@pytest.mark.parametrize("size", [0.0, 5e9])
def test_reuse_of_one_age_is_a_step(small_plan: Plan, size: float) -> None:
    tiers = replace(
        small_plan.tiers,
        curve_bytes=(size,),
        curve_ratio=(1.0,),
        provisioned_bytes=0.0,
        pinned_bytes=small_plan.tiers.local_bytes,
        global_bytes=dict.fromkeys(small_plan.tiers.global_bytes, size),
    )
    figure = plots.tier_size_figure(replace(small_plan, tiers=tiers))
    (axes,) = figure.axes
    x, y = lines(axes.lines)[0]
    assert list(y) == [0, 1]
    assert x[0] == x[1] > 0
    assert plots.svg(figure, "tiers", "tiers")


def test_break_even_is_marked_where_the_curves_cross(small_plan: Plan) -> None:
    fetch = small_plan.fetch
    tokens = np.array(fetch.curve_tokens)
    recompute = np.array(fetch.curve_recompute_s)
    one, other = tokens.size // 3, 2 * tokens.size // 3
    ends = float(tokens[0]), float(tokens[one]), float(tokens[other]), float(tokens[-1])
    between = (tokens > ends[1]) & (tokens < ends[2])
    rdma = recompute * np.where(between, 2.0, 0.5)
    rdma[[one, other]] = recompute[[one, other]]
    odd = replace(
        fetch, curve_rdma_s=tuple(rdma), rdma_pays_tokens=((ends[0], ends[1]), (ends[2], ends[3]))
    )
    (axes,) = plots.fetch_figure(replace(small_plan, fetch=odd)).axes
    assert has(axes, tokens, rdma)
    # the ends of the curve are no crossings
    assert (tokens[[one, other]].tolist(), pytest.approx(recompute[[one, other]].tolist())) in [
        (x.tolist(), y.tolist()) for x, y in lines(axes.lines)
    ]


def test_bars_fill_the_whole_step(small_plan: Plan) -> None:
    (axes,) = plots.step_figure(small_plan).axes
    ends: dict[float, float] = {}
    for bar in axes.patches:
        row = round(bar.get_y(), 6)
        ends[row] = max(ends.get(row, 0.0), bar.get_x() + bar.get_width())
    assert len(ends) == len(small_plan.steps)
    assert list(ends.values()) == pytest.approx([1.0] * len(ends))


def test_without_reuse_there_is_nothing_to_draw(small_plan: Plan) -> None:
    bare = replace(small_plan.tiers, curve_bytes=(), curve_ratio=())
    with pytest.raises(ValueError, match="reusable"):
        plots.tier_size_figure(replace(small_plan, tiers=bare))
    with pytest.raises(ValueError, match="reusable"):
        plots.fetch_figure(replace(small_plan, fetch=None))


def test_svgs_share_a_page(small_plan: Plan) -> None:
    seen: set[str] = set()
    for name, draw in FIGURES.items():
        text = plots.svg(draw(small_plan), name, "what it <shows>")
        root = ElementTree.fromstring(text)
        ids = [e.attrib["id"] for e in root.iter() if "id" in e.attrib]
        assert len(ids) == len(set(ids))
        assert seen.isdisjoint(ids)
        seen.update(ids)
        used = re.findall(r"url\(#([^)]+)\)", text) + re.findall(r'href="#([^"]+)"', text)
        assert used
        assert set(used) <= set(ids)
        tags = {element.tag for element in root.iter()}
        assert tags.isdisjoint({"style", "script", "metadata", "image"})
        assert "http" not in text
        assert root.find("title").text == "what it <shows>"


def test_colours_follow_the_page(small_plan: Plan) -> None:
    for name, draw in FIGURES.items():
        text = plots.svg(draw(small_plan), name, name).lower()
        for role, (light, _dark) in plots.COLOURS.items():
            assert light not in text, (name, role)
        assert set(re.findall(r"var\(--(\w+)\)", text)) <= set(plots.COLOURS)
        # whatever has a fixed colour is a bar or the text on it
        fixed = set(re.findall(r"#[0-9a-f]{6}\b", text))
        assert fixed <= {c.lower() for c in plots.GROUP_COLOURS.values()} | {plots._ON_GROUP}


def test_text_is_never_taken_for_a_colour(small_plan: Plan) -> None:
    figure = plots.step_figure(small_plan)
    light = plots.COLOURS["ink"][0]
    figure.axes[0].set_xlabel(f"{light} url(#x) & <b>")
    root = ElementTree.fromstring(plots.svg(figure, "steps", "steps"))
    assert f"{light} url(#x) & <b>" in [e.text for e in root.iter("text")]


def test_the_same_plan_gives_the_same_picture(small_plan: Plan) -> None:
    one, other = (plots.svg(plots.capacity_figure(small_plan), "a", "b") for _ in range(2))
    assert one == other


def test_nothing_global_is_touched(small_plan: Plan) -> None:
    before = dict(mpl.rcParams)
    for name, draw in FIGURES.items():
        plots.svg(draw(small_plan), name, name)
    assert dict(mpl.rcParams) == before
    code = "import sys, smetric_model.plots; assert 'matplotlib.pyplot' not in sys.modules"
    subprocess.run([sys.executable, "-c", code], check=True)
