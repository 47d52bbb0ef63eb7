"""Values and tolerances of claims."""

from __future__ import annotations

import math

import pytest
from hypothesis import given
from hypothesis import strategies as st

from smetric_model.errors import SpecError
from smetric_model.reproduction import load_claims
from smetric_model.reproduction.tolerance import parse_tolerance, parse_value

finite = st.floats(-100, 100).filter(lambda x: abs(x) > 1e-6)


@pytest.mark.parametrize(
    ("text", "low", "high"),
    [
        ("0.80", 0.8, 0.8),
        ("-0.07", -0.07, -0.07),
        ("32", 32, 32),
        ("0.73-0.75", 0.73, 0.75),
        ("0.10–0.16", 0.10, 0.16),
        ("within 0.01", -0.01, 0.01),
    ],
)
def test_values(text, low, high):
    value = parse_value(text)
    assert (value.low, value.high) == (low, high)


@pytest.mark.parametrize("text", ["ordering", "lower beyond P75", ""])
def test_words_are_no_number(text):
    assert math.isnan(parse_value(text).low)


@pytest.mark.parametrize(
    ("tolerance", "claimed", "value", "agrees"),
    [
        (".03 absolute", "0.80", 0.83, True),
        (".03 absolute", "0.80", 0.831, False),
        (".03 absolute", "0.73-0.75", 0.70, True),
        (".03 absolute", "0.73-0.75", 0.79, False),
        ("20 % relative", "2.0", 1.6, True),
        ("20 % relative", "2.0", 1.59, False),
        ("exact", "32", 32.0, True),
        ("exact", "32", 32.001, False),
        ("exact ordering", "lower", 1.0, True),
        ("exact ordering", "lower", 0.0, False),
        ("magnitude <= .10", "within 0.01", -0.1, True),
        ("magnitude <= .10", "within 0.01", 0.11, False),
        ("magnitude <= value + .10", "-0.07", -0.17, True),
        ("magnitude <= value + .10", "-0.07", 0.18, False),
        ("same sign and within .10 absolute (a range: overlaps it)", "0.15", 0.25, True),
        ("same sign and within .10 absolute (a range: overlaps it)", "0.15", 0.26, False),
        ("same sign and within .10 absolute (a range: overlaps it)", "0.04", -0.01, False),
        ("same sign and within .10 absolute (a range: overlaps it)", "-0.10", -0.01, True),
    ],
)
def test_agreement(tolerance, claimed, value, agrees):
    assert parse_tolerance(tolerance).agrees(parse_value(claimed), value) is agrees


def test_a_claimed_range_is_overlapped():
    rule = parse_tolerance("same sign and within .10 absolute (a range: overlaps it)")
    claimed = parse_value("0.10-0.16")
    assert rule.agrees(claimed, -0.05, 0.11) is True
    assert rule.agrees(claimed, -0.05, 0.09) is False
    assert rule.agrees(claimed, 0.17, 0.30) is False


def test_without_value_or_tolerance_nothing_is_said():
    claimed = parse_value("1.0")
    assert parse_tolerance("20 % relative").agrees(claimed, math.nan) is None
    assert parse_tolerance("").agrees(claimed, 1.0) is None


@given(finite, finite, st.floats(0.001, 0.5))
def test_wider_tolerances_agree_with_more(claimed, value, amount):
    number = parse_value(f"{claimed:.6f}")
    for unit in ("{:.6f} absolute", "magnitude <= {:.6f}", "magnitude <= value + {:.6f}"):
        narrow, wide = (parse_tolerance(unit.format(a)) for a in (amount, 2 * amount))
        assert not narrow.agrees(number, value) or wide.agrees(number, value)


@given(finite)
def test_every_claim_agrees_with_itself(value):
    number = parse_value(f"{value:.6f}")
    for text in ("0 absolute", "0 % relative", "exact", "same sign and within 0 absolute"):
        assert parse_tolerance(text).agrees(number, number.low) is True


def test_anything_else_is_refused():
    with pytest.raises(SpecError, match=r"tolerance = 'about right'"):
        parse_tolerance("about right")


def test_shipped_claims_are_all_read():
    claims = load_claims()
    assert [claim.id for claim in claims] == [f"C{n:02d}" for n in range(1, 71)]
    for claim in claims:
        # a claim that is compared has a tolerance, and a value unless it is an ordering
        assert (claim.use == "context") == (claim.tolerance.kind == "none")
        assert math.isnan(claim.value.low) == (claim.tolerance.kind == "ordering")


def test_a_wrong_line_is_named(tmp_path):
    from smetric_model.datafiles import data_dir

    text = (data_dir() / "claims.csv").read_text()
    (tmp_path / "a.csv").write_text(text.replace("C12,background", "C12,x").replace("exact", "E"))
    with pytest.raises(SpecError, match=r"a\.csv: C12: tolerance = 'E'"):
        load_claims(tmp_path / "a.csv")
    (tmp_path / "b.csv").write_text(text.replace("predict,20 %", "tune,20 %"))
    with pytest.raises(SpecError, match="C09: use = 'tune'"):
        load_claims(tmp_path / "b.csv")
    (tmp_path / "c.csv").write_text("id,what\n")
    with pytest.raises(SpecError, match="columns id, figure"):
        load_claims(tmp_path / "c.csv")


@pytest.mark.shared
def test_facts_are_those_of_the_collection(shared_dir):
    import csv

    with (shared_dir / "paper" / "claims.csv").open() as file:
        theirs = {row["id"]: row for row in csv.DictReader(file)}
    for claim in load_claims():
        row = theirs[claim.id]
        assert claim.text == row["value"]
        assert claim.use == row["use"]
        assert claim.tolerance_text == row["tolerance"]
        assert claim.policy == row["policy"]
        assert claim.figure == row["figure"]
