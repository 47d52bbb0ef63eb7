import importlib
import re
import sys
from pathlib import Path

import pytest

from smetric_model.errors import SpecError
from smetric_model.reproduction.profiles import read_profiles, write_profiles
from smetric_model.reproduction.table import write_results

ROOT = Path(__file__).resolve().parents[2]
NUMBERS = (11, 12, 14, 15, 16, 17, 18, 19, 20, 21, 22, 23, 24, 25)


@pytest.fixture(scope="module", autouse=True)
def paths():
    added = [str(ROOT / "paper_figures"), str(Path(__file__).parent)]
    sys.path[:0] = added
    yield
    for path in added:
        sys.path.remove(path)


@pytest.fixture(scope="module")
def tables(tmp_path_factory):
    fixture = importlib.import_module("fixture_tables")
    folder = tmp_path_factory.mktemp("tables")
    write_results(fixture.results(), folder / "results.parquet", "fixture")
    write_profiles(fixture.profiles(), folder / "profiles.parquet")
    return folder


def made(number, tables, **changed):
    given = {"results": tables / "results.parquet", "profiles": tables / "profiles.parquet"}
    results = importlib.import_module("results")
    source = results.Source(f"figure{number}", "medium", **(given | changed))
    return importlib.import_module(f"figure{number}").make(source)


@pytest.mark.parametrize("number", NUMBERS)
def test_every_axis_has_a_label_with_its_unit(number, tables):
    figure = made(number, tables)
    axes = [axis for axis in figure.axes if axis.get_label() != "<colorbar>"]
    assert axes
    labels = {text for axis in axes for text in (axis.get_xlabel(), axis.get_ylabel()) if text}
    quantities = ("tokens/s", "[%]", "[s]", "[ms]", "÷", "share", "multiple", "minute", "instance")
    plain = {"OVERLOAD", "HIT_RATIO"}
    for text in labels - plain:
        assert any(q in text for q in quantities), text
    importlib.import_module("matplotlib.pyplot").close("all")


def test_figures_without_rows_say_what_is_missing(tables, tmp_path):
    fixture = importlib.import_module("fixture_tables")
    table = fixture.results()
    fewer = table[~((table["policy"] == "lmetric") & (table["setup"] == "colocated-30b"))]
    write_results(fewer, tmp_path / "fewer.parquet", "fixture")
    with pytest.raises(SpecError, match=r"figure15.*colocated-30b.*lmetric"):
        made(15, tables, results=tmp_path / "fewer.parquet")
    profiles = read_profiles(tables / "profiles.parquet")
    write_profiles(
        profiles[profiles["quantity"] != "ttft_s"].astype({"setup": str}), tmp_path / "p.parquet"
    )
    with pytest.raises(SpecError, match=r"figure17.*ttft_s.*smetric"):
        made(17, tables, profiles=tmp_path / "p.parquet")


def test_sweep_shows_the_mean_of_the_seeds(tables):
    figure = made(24, tables)
    fixture = importlib.import_module("fixture_tables")
    table = fixture.results()
    rows = table[(table["setup"] == "colocated-30b") & (table["tier"] == "full")]
    rows = rows[(rows["policy"] == "smetric") & (rows["study"] == "sweep")]
    expected = rows.groupby("load")["goodput_tps"].mean() / 1e3
    line = figure.axes[0].lines[0]
    assert list(line.get_xdata()) == list(expected.index)
    assert line.get_ydata() == pytest.approx(expected.to_numpy(), rel=1e-5)


def test_router_sweep_is_held_against_the_default_at_the_same_load(tables):
    # the table's made-up rows differ by load and seed alone, not by the router's keys
    figure = made(25, tables)
    points = [line for line in figure.axes[0].lines if line.get_marker() == "o"]
    assert len(points) == 7
    assert all(abs(float(line.get_ydata()[0])) < 1e-3 for line in points)


def test_page_holds_every_figure_and_needs_nothing_else(tables, tmp_path):
    gallery = importlib.import_module("gallery")
    arguments = ["--results", str(tables / "results.parquet"), "--presets", "medium"]
    arguments += ["--profiles", str(tables / "profiles.parquet"), "--out", str(tmp_path)]
    assert gallery.main([*arguments, "--only", "5", "12", "17"]) == 0
    page = (tmp_path / "index.html").read_text(encoding="utf-8")
    assert re.findall(r"<h2>Figure (\d+)", page) == ["5", "12", "17"]
    assert page.count("data:image/png;base64,") == 3
    assert not re.search(r'(src|href)="(?!data:|#)', page)
    assert 'name="viewport"' in page


def test_page_names_figures_that_cannot_be_drawn(tables, tmp_path):
    gallery = importlib.import_module("gallery")
    arguments = ["--results", str(tables / "results.parquet"), "--presets", "long"]
    arguments += ["--profiles", str(tables / "profiles.parquet"), "--out", str(tmp_path)]
    assert gallery.main([*arguments, "--only", "12"]) == 1
    page = (tmp_path / "index.html").read_text(encoding="utf-8")
    assert "no rows of set-up colocated-30b" in page


def test_colours_and_markers_tell_policies_apart():
    common = importlib.import_module("common")
    looks = list(common.POLICIES.values())
    for part in ("name", "color", "marker"):
        assert len({getattr(look, part) for look in looks}) == len(looks)


def test_captions_are_words_not_markup():
    gallery = importlib.import_module("gallery")
    entries = [gallery.Entry(n, gallery.caption(n)) for n in (5, 7, 15)]
    page = gallery.page(entries, None)
    assert "<code>agent</code>" in page
    assert "<em>reuse</em>" in page
    assert "``" not in page.partition("</style>")[2]
    assert "How much of the prompts' KV" in page.replace("&#39;", "'")
    assert "TPS within SLO over load" in page
