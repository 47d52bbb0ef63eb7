from __future__ import annotations

import json
import math
import pickle
from typing import Any

import numpy as np
import pandas as pd
import pytest
from hypothesis import given
from hypothesis import strategies as st

from smetric_model.errors import SpecError
from smetric_model.outcome import Outcome, check_identities, outcomes_frame
from smetric_model.schema import VERBS, load_schema


def _values(name: str) -> st.SearchStrategy[Any]:
    column = load_schema()[name]
    if name == "verb":
        return st.sampled_from(VERBS)
    if column.kind == "text":
        return st.text()
    if column.kind == "boolean":
        return st.booleans() | st.none()
    return st.floats() | st.integers(-(2**53), 2**53)


@st.composite
def rows(draw: st.DrawFn) -> dict[str, Any]:
    names = draw(st.sets(st.sampled_from(list(load_schema())), max_size=12))
    row = {name: draw(_values(name)) for name in sorted(names)}
    if draw(st.booleans()):
        row["imbalance_requests_7.5s_max"] = draw(st.floats(1, 100))
    return row


@given(rows())
def test_json_and_pickle_round_trip(row: dict[str, Any]) -> None:
    outcome = Outcome(row)
    assert Outcome.from_json(outcome.to_json()) == outcome
    assert Outcome(outcome.to_dict()) == outcome
    assert Outcome(outcome) == outcome
    assert pickle.loads(pickle.dumps(outcome)) == outcome


@given(rows())
def test_every_column_is_there_in_order_and_those_not_given_are_missing(
    row: dict[str, Any],
) -> None:
    outcome = Outcome(row)
    assert list(outcome)[: len(load_schema())] == list(load_schema())
    for name, column in load_schema().items():
        if name not in row:
            missing = {"text": "", "boolean": None}
            if column.kind == "number":
                assert math.isnan(outcome.number(name))
            else:
                assert outcome[name] == missing[column.kind]


@given(st.lists(rows(), max_size=4))
def test_a_frame_has_a_row_for_each_outcome(some: list[dict[str, Any]]) -> None:
    outcomes = [Outcome(row) for row in some]
    frame = outcomes_frame(outcomes)
    assert len(frame) == len(outcomes)
    for name, column in load_schema().items():
        for outcome, value in zip(outcomes, frame[name], strict=True):
            if column.kind == "number":
                np.testing.assert_equal(value, float(outcome.number(name)))
            else:
                assert value == outcome[name]


def test_json_is_standard_json() -> None:
    outcome = Outcome({"verb": "predict", "ttft_mean_s": math.inf, "valid": False})
    plain = json.loads(outcome.to_json(), parse_constant=lambda text: pytest.fail(text))
    assert plain["ttft_mean_s"] == "inf"
    assert plain["ttft_p50_s"] is None
    assert plain["valid"] is False


def test_numpy_scalars_become_plain_numbers() -> None:
    outcome = Outcome(
        {"total_tps": np.float32(1.5), "requests": np.int64(7), "valid": np.bool_(True)}
    )
    assert [type(outcome[k]) for k in ("total_tps", "requests", "valid")] == [float, int, bool]


def test_unknown_keys_are_refused_with_a_hint() -> None:
    with pytest.raises(SpecError, match=r"'total_tp'.*did you mean 'total_tps'"):
        Outcome({"total_tp": 1.0})
    with pytest.raises(SpecError, match="is not an imbalance column"):
        Outcome({"imbalance_requests_60s_p42": 1.0})
    with pytest.raises(KeyError, match="did you mean 'total_tps'"):
        Outcome({})["totl_tps"]


@pytest.mark.parametrize(
    ("key", "value"),
    [
        ("total_tps", "many"),
        ("total_tps", True),
        ("total_tps", [1.0]),
        ("note", 3),
        ("valid", 1),
        ("verb", "guess"),
    ],
)
def test_values_of_another_kind_are_refused(key: str, value: Any) -> None:
    with pytest.raises(SpecError, match=key):
        Outcome({key: value})


def test_an_outcome_does_not_change() -> None:
    table = pd.DataFrame({"ttft_s": [1.0, 2.0]})
    outcome = Outcome({"total_tps": 1.0}, requests=table)
    with pytest.raises(AttributeError):
        outcome.note = "x"  # type: ignore[attr-defined]
    with pytest.raises(AttributeError):
        outcome._values = {}
    with pytest.raises(TypeError):
        outcome["total_tps"] = 2.0  # type: ignore[index]
    table.loc[0, "ttft_s"] = 9.0
    mine = outcome.requests
    mine.loc[1, "ttft_s"] = 9.0  # type: ignore[union-attr]
    assert list(outcome.requests["ttft_s"]) == [1.0, 2.0]  # type: ignore[index]
    assert outcome.instances is None


def test_replace_keeps_the_rest() -> None:
    table = pd.DataFrame({"instance": [0]})
    outcome = Outcome({"total_tps": 1.0, "note": "a"}, instances=table)
    other = outcome.replace(note="b")
    assert (other["note"], other["total_tps"], outcome["note"]) == ("b", 1.0, "a")
    assert other.instances is not None


def test_series_has_every_column() -> None:
    outcome = Outcome({"scenario_id": "ab", "total_tps": 2.0})
    series = outcome.to_series()
    assert list(series.index) == list(load_schema())
    assert series["total_tps"] == 2.0
    assert series.name == "ab"


def test_number_refuses_texts() -> None:
    with pytest.raises(SpecError, match="note"):
        Outcome({}).number("note")


@pytest.mark.parametrize("text", ["[1]", "{", "3"])
def test_other_json_is_refused(text: str) -> None:
    with pytest.raises(SpecError, match="JSON"):
        Outcome.from_json(text)


@st.composite
def consistent(draw: st.DrawFn) -> dict[str, Any]:
    """Rows whose columns are computed from the same made-up quantities."""
    rate_rps, window_s = draw(st.floats(0.01, 1e3)), draw(st.floats(1e3, 1e5))
    prompt_tokens, output_tokens = draw(st.floats(1, 1e6)), draw(st.floats(1, 1e5))
    tiers = np.array(draw(st.lists(st.floats(0.01, 1), min_size=4, max_size=4)))
    tiers /= tiers.sum()
    origins = np.array(draw(st.lists(st.floats(0.01, 1), min_size=3, max_size=3)))
    origins /= origins.sum()
    moves = np.array(draw(st.lists(st.floats(0.01, 1), min_size=4, max_size=4)))
    moves /= moves.sum()
    within, unservable = draw(st.floats(0, 1)), draw(st.floats(0, 0.5))
    row: dict[str, Any] = {"verb": draw(st.sampled_from(VERBS)), "valid": True}
    row |= {"arrival_rate_rps": rate_rps, "window_s": window_s, "requests": rate_rps * window_s}
    row |= {"unservable_ratio": unservable, "within_slo_ratio": within, "timed_out_ratio": 0.0}
    names = ("local_ratio", "global_ratio", "peer_ratio", "recomputed_ratio")
    row |= dict(zip(names, tiers, strict=True))
    names = ("intra_reuse_ratio", "system_reuse_ratio", "other_reuse_ratio")
    row |= dict(zip(names, origins, strict=True))
    causes = [f"migrated_{cause}_ratio" for cause in ("overload", "evicted", "other")]
    row |= dict(zip(["return_to_previous_ratio", *causes], moves, strict=True))
    for suffix, share in (("tps", 1.0), ("within_slo_tps", within)):
        prompt, output = prompt_tokens * rate_rps * share, output_tokens * rate_rps * share
        row[f"prompt_{suffix}"], row[f"output_{suffix}"] = prompt, output
        row[f"computed_prompt_{suffix}"] = prompt * tiers[3]
        row[f"reused_prompt_{suffix}"] = prompt * (1 - tiers[3])
        row[f"total_{suffix}"] = prompt + output
    e2e_s = draw(st.floats(0.1, 100))
    row["e2e_mean_s"] = e2e_s
    row["inflight_requests_mean"] = rate_rps * (1 - unservable) * e2e_s
    times = sorted(draw(st.lists(st.floats(0.1, 100), min_size=4, max_size=4)))
    for quantile, time_s in zip(("p50", "p90", "p95", "p99"), times, strict=True):
        row[f"e2e_{quantile}_s"] = time_s
        row[f"ttft_{quantile}_s"] = time_s / 2
        row[f"queue_{quantile}_s"] = row[f"fetch_{quantile}_s"] = time_s / 4
    row["imbalance_requests_45s_mean"] = 1.5
    return row


@given(consistent())
def test_a_consistent_outcome_violates_nothing(row: dict[str, Any]) -> None:
    assert check_identities(Outcome(row)) == ()


@pytest.mark.parametrize("verb", VERBS)
def test_an_empty_outcome_violates_nothing(verb: str) -> None:
    assert check_identities(Outcome({"verb": verb})) == ()


BREAKS = [
    ("local_ratio", lambda r: r["local_ratio"] + 0.01, "recomputed_ratio = 1"),
    ("intra_reuse_ratio", lambda r: r["intra_reuse_ratio"] / 2, "other_reuse_ratio = 1"),
    ("migrated_other_ratio", lambda r: r["migrated_other_ratio"] / 2, "migrated_other_ratio = 1"),
    ("total_tps", lambda r: r["total_tps"] * 1.01, "= total_tps"),
    ("output_within_slo_tps", lambda r: r["output_tps"] * 3 + 1, "= total_within_slo_tps"),
    ("computed_prompt_tps", lambda r: r["computed_prompt_tps"] * 1.01, "= prompt_tps"),
    ("reused_prompt_tps", lambda r: r["prompt_tps"] * 1.01, "reused_prompt_tps <= prompt_tps"),
    (
        "total_within_slo_tps",
        lambda r: r["total_tps"] * (1.03 + r["e2e_p99_s"] / r["window_s"]),
        "total_within_slo_tps <= total_tps",
    ),
    ("requests", lambda r: r["requests"] * 1.01, "requests = arrival_rate_rps * window_s"),
    (
        "inflight_requests_mean",
        lambda r: r["inflight_requests_mean"] * (1.05 + 2 * r["e2e_p99_s"] / r["window_s"]),
        "Little",
    ),
    ("ttft_p99_s", lambda r: r["e2e_p99_s"] * 1.01, "ttft_p99_s <= e2e_p99_s"),
    ("queue_p50_s", lambda r: r["ttft_p50_s"] * 1.01, "queue_p50_s <= ttft_p50_s"),
    ("e2e_p90_s", lambda r: r["e2e_p95_s"] * 1.01, "e2e_p90_s <= e2e_p95_s"),
    ("within_slo_ratio", lambda r: 1.001, "within_slo_ratio <= 1"),
    ("tpot_mean_s", lambda r: -1e-3, "tpot_mean_s >= 0"),
    ("imbalance_requests_45s_mean", lambda r: 0.9, "imbalance_requests_45s_mean >= 1"),
    ("kv_utilisation_ratio", lambda r: 1.01, "kv_utilisation_ratio <= 1"),
]


@pytest.mark.parametrize(("key", "change", "identity"), BREAKS, ids=[b[0] for b in BREAKS])
@given(row=consistent())
def test_each_broken_identity_is_found(key: str, change: Any, identity: str, row: Any) -> None:
    broken = Outcome(row).replace(**{key: float(change(row))})
    found = [str(violation) for violation in check_identities(broken)]
    assert any(identity in text for text in found), found


def test_littles_law_of_a_window_allows_for_the_requests_its_edges_cut() -> None:
    row = {
        "arrival_rate_rps": 1.0,
        "window_s": 100.0,
        "e2e_mean_s": 10.0,
        "inflight_requests_mean": 9.0,
    }
    assert check_identities(Outcome({"verb": "simulate", **row})) == ()
    (violation,) = check_identities(Outcome({"verb": "predict", **row}))
    assert "Little" in violation.identity
    assert "9, not 10" in violation.detail
    # Requests that time out are in flight without an end-to-end time.
    assert check_identities(Outcome({"verb": "predict", "timed_out_ratio": 0.1, **row})) == ()
    assert check_identities(Outcome({"verb": "predict", "valid": False, **row})) == ()


def test_shares_of_reuse_are_not_asked_for_where_nothing_is_reused() -> None:
    row = {"intra_reuse_ratio": 0.0, "system_reuse_ratio": 0.0, "other_reuse_ratio": 0.0}
    assert check_identities(Outcome({"reused_prompt_tps": 0.0, **row})) == ()
    assert len(check_identities(Outcome({"reused_prompt_tps": 1.0, **row}))) == 1


def _requests(**changes: list[Any]) -> pd.DataFrame:
    columns: dict[str, list[Any]] = {
        "status": ["served", "served", "unservable"],
        "prompt_tokens": [100, 50, 10**6],
        "local_tokens": [64, 0, 0],
        "global_tokens": [16, 0, 0],
        "peer_tokens": [0, 0, 0],
        "recomputed_tokens": [20, 50, 0],
        "output_tokens": [11, 1, 5],
        "ttft_s": [1.0, 0.5, math.nan],
        "tpot_s": [0.1, math.nan, math.nan],
        "e2e_s": [2.0, 0.5, math.nan],
    }
    return pd.DataFrame(columns | changes)


def test_consistent_requests_violate_nothing() -> None:
    assert check_identities(Outcome({}, requests=_requests())) == ()


@pytest.mark.parametrize(
    ("changes", "identity"),
    [
        ({"local_tokens": [65, 0, 0]}, "= prompt_tokens"),
        ({"tpot_s": [0.2, math.nan, math.nan]}, "= e2e_s"),
        ({"e2e_s": [2.0, 0.6, math.nan]}, "= e2e_s"),
        ({"peer_tokens": [-1, 0, 0], "local_tokens": [65, 0, 0]}, "peer_tokens >= 0"),
    ],
)
def test_each_broken_line_is_found(changes: dict[str, list[Any]], identity: str) -> None:
    (violation,) = check_identities(Outcome({}, requests=_requests(**changes)))
    assert identity in violation.identity
    assert "1 lines" in violation.detail
