from __future__ import annotations

import dataclasses
import itertools
import re
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from smetric_model.datafiles import load_toml
from smetric_model.errors import SpecError
from smetric_model.schema import (
    TABLES,
    VERBS,
    imbalance_column,
    imbalance_schema_column,
    load_schema,
    parse_imbalance_column,
    schema_markdown,
)

ROOT = Path(__file__).resolve().parents[1]
QUANTITIES = ("processed_tokens", "inflight_tokens", "unprefilled_tokens", "requests")
STATISTICS = ("mean", "median", "p75", "p90", "p99", "max")
UNITS = {"_tps": "tokens/s", "_rps": "requests/s", "_ratio": "ratio", "_tokens": "tokens"}


def families() -> list[str]:
    tokens = ("prompt", "computed_prompt", "reused_prompt", "output", "total")
    names = [f"{t}{within}_tps" for t in tokens for within in ("", "_within_slo")]
    quantities = ("ttft", "tpot", "e2e", "queue", "fetch")
    names += [f"{q}_{s}_s" for q in quantities for s in ("mean", "p50", "p90", "p95", "p99")]
    names += [f"{s}_ratio" for s in ("local", "global", "peer", "recomputed")]
    names += [f"{s}_reuse_ratio" for s in ("intra", "system", "other")]
    names += [f"migrated_{cause}_ratio" for cause in ("overload", "evicted", "other")]
    names += [
        f"imbalance_{q}_{w}_{s}"
        for q, w, s in itertools.product(QUANTITIES, ("30s", "60s"), STATISTICS)
    ]
    return names


@pytest.mark.parametrize(
    "name",
    [
        *("scenario_id", "verb", "policy", "seed", "arrival_rate_rps", "warmup_s", "window_s"),
        *("requests", "unservable_ratio", "within_slo_ratio", "timed_out_ratio"),
        *("return_to_first_ratio", "return_to_previous_ratio"),
        *("binding_resource", "valid", "note"),
        *families(),
    ],
)
def test_every_name_that_others_rely_on_is_there(name: str) -> None:
    assert load_schema()[name].name == name


def test_the_unit_is_the_one_the_name_says() -> None:
    for table in TABLES:
        for name, column in load_schema(table).items():
            for suffix, unit in UNITS.items():
                if name.endswith(suffix):
                    assert column.unit == unit, name
            if re.search(r"[a-z0-9]_s$", name):
                assert column.unit == "s", name
            if column.kind != "number":
                assert column.unit == "", name


def test_every_column_is_described_and_every_verb_fills_its_identity() -> None:
    for table in TABLES:
        for column in load_schema(table).values():
            assert column.description, column.name
            assert "{" not in column.name + column.description
            assert column.minimum < column.maximum
    for column in load_schema().values():
        assert column.verbs, column.name
        if column.group == "identity":
            assert column.verbs == VERBS
        assert set(column.verbs) <= set(VERBS)


def test_groups_are_contiguous() -> None:
    groups = [group for group, _ in itertools.groupby(load_schema().values(), lambda c: c.group)]
    assert len(groups) == len(set(groups))


def test_the_schema_cannot_be_changed() -> None:
    schema = load_schema()
    with pytest.raises(TypeError):
        schema["x"] = schema["verb"]  # type: ignore[index]
    with pytest.raises(dataclasses.FrozenInstanceError):
        schema["verb"].unit = "s"  # type: ignore[misc]


def test_an_unknown_table_is_refused() -> None:
    with pytest.raises(SpecError, match=r"'sessions'.*outcome, requests, instances"):
        load_schema("sessions")


@given(
    st.sampled_from(QUANTITIES),
    st.one_of(st.integers(1, 10**6), st.integers(1, 10**7).map(lambda n: n / 1000)),
    st.sampled_from(STATISTICS),
)
def test_imbalance_names_round_trip(quantity: str, window_s: float, statistic: str) -> None:
    name = imbalance_column(quantity, window_s, statistic)
    assert parse_imbalance_column(name) == (quantity, window_s, statistic)
    assert imbalance_schema_column(name).name == name


def test_imbalance_columns_of_the_schema_are_those_that_the_rule_names() -> None:
    listed = [name for name in load_schema() if name.startswith("imbalance_")]
    for name in listed:
        assert imbalance_schema_column(name) == load_schema()[name]
    assert imbalance_column("processed_tokens", 60, "mean") in listed


@pytest.mark.parametrize(
    "name",
    [
        "imbalance_tokens_60s_mean",
        "imbalance_requests_60_mean",
        "imbalance_requests_060s_mean",
        "imbalance_requests_60.0s_mean",
        "imbalance_requests_0s_mean",
        "imbalance_requests_1.2.3s_mean",
        "imbalance_requests_60s_p42",
        "ttft_p50_s",
    ],
)
def test_other_imbalance_names_are_refused(name: str) -> None:
    with pytest.raises(SpecError, match=re.escape(repr(name))):
        parse_imbalance_column(name)


@pytest.mark.parametrize("window_s", [0, -1, float("inf"), float("nan"), 1e-15])
def test_impossible_windows_are_refused(window_s: float) -> None:
    with pytest.raises(SpecError, match="window_s"):
        imbalance_column("requests", window_s, "mean")


def test_unknown_quantity_and_statistic_are_refused() -> None:
    with pytest.raises(SpecError, match=r"quantity 'load'.*processed_tokens"):
        imbalance_column("load", 60, "mean")
    with pytest.raises(SpecError, match=r"statistic 'p42'.*median"):
        imbalance_column("requests", 60, "p42")


def test_the_file_uses_known_keys_only() -> None:
    known = {"table", "name", "kind", "unit", "minimum", "maximum", "group", "verbs"}
    for entry in load_toml("schema.toml")["column"]:
        assert set(entry) <= {*known, "description", "axes", "missing"}


def test_the_committed_page_is_up_to_date() -> None:
    assert (ROOT / "docs" / "schema.md").read_text() == schema_markdown()
