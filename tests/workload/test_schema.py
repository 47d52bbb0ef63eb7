"""The documented schema: what is written is what is read."""

from __future__ import annotations

import json

import numpy as np
import pandas as pd
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from trace_strategies import block_paths, trace_of

from smetric_model.errors import TraceError
from smetric_model.workload import load_trace, write_trace
from smetric_model.workload.columns import BLOCK_COLUMNS, REQUEST_COLUMNS
from smetric_model.workload.reuse import ideal_reuse

ENDINGS = ["parquet", "jsonl", "jsonl.gz", "jsonl.zst"]


def same(one, two):
    pd.testing.assert_frame_equal(one.requests, two.requests, check_categorical=False)
    assert one.session_names == two.session_names
    assert one.block_tokens == two.block_tokens
    assert one.session_clock == two.session_clock
    if one.tree is None:
        assert two.tree is None
        return
    forward: dict[int, int] = {}
    backward: dict[int, int] = {}
    for row in range(len(one)):
        for a, b in zip(one.tree.block_ids(row), two.tree.block_ids(row), strict=True):
            assert forward.setdefault(a, b) == b
            assert backward.setdefault(b, a) == a


@settings(suppress_health_check=[HealthCheck.function_scoped_fixture], max_examples=30)
@given(block_paths(max_requests=12), st.data())
@pytest.mark.parametrize("ending", ENDINGS)
def test_round_trip(tmp_path, ending, paths, data) -> None:
    codes: dict[int, int] = {}
    sessions = None
    if data.draw(st.booleans()):
        sessions = [codes.setdefault(data.draw(st.integers(0, 3)), len(codes)) for _ in paths]
    trace = trace_of(paths, block_tokens=4, sessions=sessions)
    write_trace(trace, tmp_path / f"t.{ending}")
    loaded = load_trace(tmp_path / f"t.{ending}")
    loaded.requests["source_line"] = trace.requests["source_line"]
    if sessions is not None:
        # a session without a name is named by its number
        assert loaded.session_names == tuple(map(str, range(trace.sessions)))
        trace = type(trace)(**{**vars(trace), "session_names": loaded.session_names})
    if not any(paths):
        assert loaded.tree is not None  # a tree of empty paths stays one
    same(trace, loaded)


def test_round_trip_of_every_column(tmp_path) -> None:
    requests = [
        {"t": 0.25, "model": "a", "in": 130, "out": 5, "hash_ids": [1, 2], "api_time": 1.5},
        {"t": 9, "model": "b", "in": 130, "out": 0, "hash_ids": [1, 2], "input_types": ["text"]},
        {"t": 10, "model": "a", "in": 200, "out": 5, "hash_ids": [1, 2, 3], "think_time": 0.1},
    ]
    source = tmp_path / "weka.json"
    source.write_text(json.dumps({"id": "s", "block_size": 64, "requests": requests}))
    trace = load_trace(source)
    for ending in ENDINGS:
        write_trace(trace, tmp_path / f"t.{ending}")
        loaded = load_trace(tmp_path / f"t.{ending}")
        loaded.requests["source_line"] = trace.requests["source_line"]
        # the think time that loading derives is there already
        same(trace, loaded)
        np.testing.assert_array_equal(ideal_reuse(trace), ideal_reuse(loaded))
        assert list(loaded.requests.columns) == [column.name for column in REQUEST_COLUMNS]


def test_equal_traces_give_equal_files(tmp_path) -> None:
    trace = trace_of([[1, 2], [1, 3]])
    for ending in ENDINGS:
        write_trace(trace, tmp_path / f"a.{ending}")
        write_trace(trace, tmp_path / f"b.{ending}")
        assert (tmp_path / f"a.{ending}").read_bytes() == (tmp_path / f"b.{ending}").read_bytes()


def test_a_file_written_by_hand(tmp_path) -> None:
    rows = [
        {"smetric_trace": 1, "block_tokens": 16},
        {"arrival_s": 7.5, "prompt_tokens": 40, "output_tokens": 1, "block_ids": [5, 6, 9]},
        {"arrival_s": 7.0, "prompt_tokens": 40, "output_tokens": 1, "block_first": [5, 8],
         "block_count": [2, 1], "more": "is ignored"},
        {"arrival_s": 8.0, "prompt_tokens": 40, "output_tokens": 1},
    ]  # fmt: skip
    path = tmp_path / "t.jsonl"
    path.write_text("\n".join(map(json.dumps, rows)))
    trace = load_trace(path)
    assert ideal_reuse(trace).tolist() == [0, 32, 0]
    assert trace.column("arrival_s").tolist() == [7.0, 7.5, 8.0]
    assert trace.sessions is None


@pytest.mark.parametrize(
    ("rows", "match"),
    [
        ([{"smetric_trace": 2}], "smetric_trace is 2; this version reads 1"),
        ([{"smetric_trace": 1, "block_tokens": 0}], "block_tokens is 0"),
        ([{"smetric_trace": 1, "session_clock": "x"}], "session_clock is 'x'"),
        ([{"smetric_trace": 1}], "no requests"),
        ([{"smetric_trace": 1}, {"arrival_s": 1, "prompt_tokens": 1}], ":2: key 'output_tokens'"),
        ([{"smetric_trace": 1}, {"block_ids": [1]}], ":2: key 'arrival_s' is missing"),
        ([{"smetric_trace": 1}, "x"], ":2: not a JSON object"),
        ([{"smetric_trace": 1}, {"session_id": [1]}], "session_id is neither"),
        ([{"smetric_trace": 1}, {"parent": 1.5}], "parent is not an integer"),
        ([{"smetric_trace": 1}, {"block_first": [1], "block_count": [0]}], "below 1"),
        ([{"smetric_trace": 1}, {"block_first": [1], "block_count": [1, 2]}], "differ in length"),
        ([{"smetric_trace": 1}, {"block_first": [1], "block_count": [10**12]}], "sums to more"),
    ],
)
def test_wrong_files(tmp_path, rows, match) -> None:
    path = tmp_path / "t.jsonl"
    path.write_text("\n".join(map(json.dumps, rows)))
    with pytest.raises(TraceError, match=match):
        load_trace(path)


def test_blocks_need_a_block_size(tmp_path) -> None:
    row = {"arrival_s": 1, "prompt_tokens": 1, "output_tokens": 1, "block_ids": [1]}
    (tmp_path / "t.jsonl").write_text('{"smetric_trace": 1}\n' + json.dumps(row))
    with pytest.raises(TraceError, match="names no block_tokens"):
        load_trace(tmp_path / "t.jsonl")


def test_endings(tmp_path) -> None:
    with pytest.raises(TraceError, match=r"ending '\.csv' is not known"):
        write_trace(trace_of([[1]]), tmp_path / "t.csv")


def test_every_column_is_documented_once() -> None:
    names = [column.name for column in (*REQUEST_COLUMNS, *BLOCK_COLUMNS)]
    assert len(set(names)) == len(names)
    assert all(column.meaning.endswith(".") for column in (*REQUEST_COLUMNS, *BLOCK_COLUMNS))


def test_columns_and_rows_are_read_alike(tmp_path, monkeypatch) -> None:
    """Sound Parquet batches are taken as columns; row by row they must give the same trace."""
    from smetric_model.datafiles import data_dir
    from smetric_model.workload.formats import _native_columns

    taken = []
    original = _native_columns.take_batch

    def count(*arguments):
        taken.append(original(*arguments))
        return taken[-1]

    monkeypatch.setattr(_native_columns, "take_batch", count)
    path = data_dir() / "traces" / "agents-small.parquet"
    fast = load_trace(path)
    assert taken == [True]
    monkeypatch.setattr(_native_columns, "take_batch", lambda *_: False)
    slow = load_trace(path)
    assert fast.requests["model"].isna().all()
    same(fast, slow)
    assert [vars(e) for e in fast.report] == [vars(e) for e in slow.report]


@pytest.mark.parametrize(
    ("name", "value", "match"),
    [
        ("prompt_tokens", -7, ":3: prompt_tokens is -7"),
        ("prompt_tokens", None, ":3: prompt_tokens is None"),
        ("output_tokens", 2**40, ":3: output_tokens is 1099511627776"),
        ("arrival_s", -1.0, ":3: arrival_s is -1.0"),
        ("think_time_s", -2.0, ":3: think_time_s is -2.0"),
        ("turn", -3, ":3: turn is -3"),
        ("block_count", [0], ":3: block_count holds a number below 1"),
        ("block_count", [1, 2], ":3: block_first and block_count differ"),
    ],
)
def test_wrong_values_in_parquet_name_the_row(tmp_path, name, value, match) -> None:
    import pyarrow as pa
    import pyarrow.parquet as pq

    row = {
        "request_id": 0,
        "arrival_s": 1.0,
        "prompt_tokens": 4,
        "output_tokens": 1,
        "think_time_s": 1.0,
        "turn": 0,
        "block_first": [1],
        "block_count": [1],
    }
    rows = [row, row, row | {name: value}, row]
    table = pa.Table.from_pylist(rows).replace_schema_metadata(
        {"smetric_trace": '{"smetric_trace": 1, "block_tokens": 4}'}
    )
    pq.write_table(table, tmp_path / "t.parquet")
    with pytest.raises(TraceError, match=match) as caught:
        load_trace(tmp_path / "t.parquet")
    assert caught.value.line == 3
    assert len(load_trace(tmp_path / "t.parquet", on_error="skip")) == 3
