"""Formats that name sessions or parents, Bailian and Weka, on small files written here."""

from __future__ import annotations

import json
import math

import numpy as np
import pytest
from trace_files import ROWS, notes, write

from smetric_model.errors import TraceError
from smetric_model.workload import load_trace
from smetric_model.workload.reuse import ideal_reuse

# -- Bailian -------------------------------------------------------------------------------------


def bailian(chat, parent, stamp, ids, turn=1, tail=0):
    return {
        "chat_id": chat,
        "parent_chat_id": parent,
        "timestamp": stamp,
        "input_length": 16 * len(ids) - tail,
        "output_length": 132,
        "type": "text",
        "turn": turn,
        "hash_ids": ids,
    }


def test_bailian_sessions_follow_the_parents(tmp_path) -> None:
    rows = [
        bailian(159, 55, 61.114, [1, 2, 3], 2),  # parent before the trace began
        bailian(160, -1, 61.2, [1, 9]),
        bailian(161, 160, 65.0, [1, 9, 4], 2),
        bailian(162, 160, 66.0, [1, 9, 5], 2),  # a branch
        bailian(163, 55, 66.0, [1, 2, 4], 2),  # of the same unseen parent
        bailian(164, -1, 67.0, [7]),
    ]
    trace = load_trace(write(tmp_path / "t", rows))
    assert (trace.format, trace.block_tokens) == ("bailian", 16)
    assert trace.column("session_id").tolist() == [0, 1, 1, 1, 0, 2]
    assert trace.column("turn").tolist() == [1, 0, 1, 1, 1, 0]
    assert trace.column("parent").tolist() == [-1, -1, 1, 1, -1, -1]
    assert notes(trace, "noted") == {"parent not in the trace": 2}
    np.testing.assert_allclose(trace.column("arrival_s")[:2], [0, 0.086])


def test_bailian_content_ids_are_chained(tmp_path) -> None:
    """The same content at another place is no hit; a padded tail is clipped."""
    rows = [
        bailian(1, -1, 0.0, [10, 11, 12]),
        bailian(2, -1, 1.0, [11, 12]),
        bailian(3, -1, 2.0, [10, 12, 11]),
        bailian(4, 1, 3.0, [10, 11, 12], 2, tail=9),
    ]
    trace = load_trace(write(tmp_path / "t", rows))
    assert ideal_reuse(trace).tolist() == [0, 0, 16, 39]


def test_bailian_cycles_and_time_travel(tmp_path) -> None:
    rows = [
        bailian(1, 2, 5.0, [1], 2),
        bailian(2, 1, 6.0, [1], 3),
        bailian(3, 3, 7.0, [2], 2),
        bailian(4, 5, 8.0, [3], 2),
        bailian(5, -1, 9.0, [3]),
        bailian(5, -1, 9.5, [3]),
    ]
    trace = load_trace(write(tmp_path / "t", rows))
    assert trace.column("parent").tolist() == [-1, 0, -1, -1, -1, -1]
    assert notes(trace, "repaired") == {
        "parent arrives no earlier than its child; link left off": 3
    }
    assert notes(trace, "noted") == {"a request id used more than once": 1}


def test_equal_stamps_are_ordered_by_turn(tmp_path) -> None:
    rows = [bailian(2, 1, 5.0, [1, 2], 2), bailian(1, -1, 5.0, [1])]
    trace = load_trace(write(tmp_path / "t", rows))
    assert trace.column("turn").tolist() == [0, 1]
    assert trace.column("parent").tolist() == [-1, 0]


# -- Weka ----------------------------------------------------------------------------------------


def ask(t, blocks, prompt=None, kind="n", model="opus", **more):
    return {
        "t": t,
        "type": kind,
        "model": model,
        "in": 64 * len(blocks) + 10 if prompt is None else prompt,
        "out": 5,
        "hash_ids": blocks,
    } | more


def document(name, requests, **more):
    head = {"id": name, "models": ["opus"], "block_size": 64, "hash_id_scope": "local"}
    return head | {"tool_tokens": 1, "requests": requests} | more


def subagent(t, requests, **more):
    return {"t": t, "type": "subagent", "agent_id": "agent_001", "requests": requests} | more


def test_weka_scopes_models_and_floor_tails(tmp_path) -> None:
    one = [ask(0, [1, 2]), ask(5, [1, 2, 3]), ask(9, [1, 2], model="haiku")]
    rows = [document("a", one), document("b", [ask(0, [1, 2])], unknown_key=1)]
    trace = load_trace(write(tmp_path / "t", rows))
    assert (trace.format, trace.session_clock) == ("weka", "per-session")
    reused = dict(zip(trace.column("prompt_tokens"), ideal_reuse(trace), strict=True))
    assert ideal_reuse(trace).sum() == 128
    assert reused[64 * 3 + 10] == 128
    shared = [document("a", one, hash_id_scope="global"), document("b", [ask(0, [1, 2])])]
    shared[1]["hash_id_scope"] = "global"
    assert ideal_reuse(load_trace(write(tmp_path / "u", shared))).sum() == 256


def test_weka_relative_and_absolute_subagent_clocks(tmp_path) -> None:
    relative = [ask(0, [1]), subagent(100.5, [ask(0, [7]), ask(20, [7, 8])], duration_ms=30000)]
    absolute = [ask(0, [1]), subagent(100.5, [ask(101, [7]), ask(121, [7, 8])], duration_ms=None)]
    for requests, expected in ((relative, [0, 100.5, 120.5]), (absolute, [0, 101, 121])):
        trace = load_trace(write(tmp_path / "t", [document("a", requests)]))
        assert trace.column("arrival_s").tolist() == expected
        assert trace.sessions == 2
        assert trace.session_names == ("a", "a/agent_001#1")
        assert trace.column("turn").tolist() == [0, 0, 1]
        assert trace.column("parent").tolist() == [-1, 0, 1]
    assert notes(trace, "noted")["subagent times count from the session's start"] == 1
    assert notes(trace, "noted")["a subagent launched and never joined"] == 1


def test_weka_think_times_and_triggers(tmp_path) -> None:
    requests = [
        ask(0, [1], api_time=4.0, think_time=0.0, input_types=["text"]),
        ask(10, [1, 2], api_time=2.0, think_time=5.5, input_types=["tool_result"]),
        ask(20, [1, 2, 3], kind="s"),
        ask(21, [1, 2, 3], api_time=9.0, input_types=["text", "tool_result"]),
        ask(25, [1, 2, 3, 4]),
    ]
    trace = load_trace(write(tmp_path / "t", [document("a", requests)]))
    np.testing.assert_allclose(trace.column("think_time_s"), [math.nan, 5.5, 8, math.nan, 0])
    np.testing.assert_allclose(trace.column("e2e_s"), [4, 2, math.nan, 9, math.nan])
    assert trace.requests["trigger"].astype(object).fillna("").tolist() == [
        "user",
        "agent",
        "",
        "agent",
        "",
    ]
    assert notes(trace, "repaired") == {
        "think time missing; arrival less the previous completion": 2
    }
    assert notes(trace, "noted") == {
        "arrival before the previous turn's completion; think time 0": 1
    }


def test_weka_duplicates(tmp_path) -> None:
    twice = [ask(0, [1, 2]), ask(4, [1, 2, 3])]
    rows = [document("a", twice), document("b", twice), document("b", [ask(1, [1])])]
    path = write(tmp_path / "t", rows)
    kept, dropped = load_trace(path), load_trace(path, duplicates="drop")
    assert (len(kept), kept.sessions, len(dropped), dropped.sessions) == (5, 3, 3, 2)
    assert notes(kept, "noted") == {"a session that repeats an earlier one exactly": 1}
    assert notes(dropped, "dropped") == {"a session that repeats an earlier one exactly": 1}
    assert notes(kept, "repaired") == {"two sessions of one name; the later renamed": 1}


def test_weka_directory_of_pretty_printed_documents(tmp_path) -> None:
    for name in ("a", "b"):
        text = json.dumps(document(name, [ask(0, [1, 2])]), indent=1)
        (tmp_path / f"{name}.json").write_text(text)
    (tmp_path / "c.json").touch()
    trace = load_trace(tmp_path)
    assert notes(trace, "dropped") == {"an empty file": 1}
    assert (len(trace), trace.sessions) == (2, 2)


@pytest.mark.parametrize(
    ("row", "match"),
    [
        (document("a", []), "a document without requests"),
        (document("a", "x"), "requests is not a list"),
        (document("a", [3]), "an entry of requests is not an object"),
        (document("a", [ask(0, [1])], block_size=0), "block_size is 0"),
        (document("a", [ask(0, [1])], hash_id_scope=5), "hash_id_scope is 5"),
        (document("a", [ask(0, [1]) | {"model": 3}]), "model is 3"),
        (document("a", [{"t": 0, "type": "n", "out": 1}]), "key 'in' is missing"),
    ],
)
def test_wrong_weka_documents(tmp_path, row, match) -> None:
    with pytest.raises(TraceError, match=match):
        load_trace(write(tmp_path / "t", [row]))


def test_weka_block_sizes_must_agree(tmp_path) -> None:
    rows = [document("a", [ask(0, [1])]), document("b", [ask(0, [1])], block_size=16)]
    with pytest.raises(TraceError, match="t:2: block_size is 16; earlier documents have 64"):
        load_trace(write(tmp_path / "t", rows))


def test_weka_requests_without_block_ids(tmp_path) -> None:
    requests = [ask(0, [1, 2]), ask(1, [1, 2]) | {"hash_ids": None}, ask(2, [1, 2])]
    trace = load_trace(write(tmp_path / "t", [document("a", requests, hash_id_scope="other")]))
    assert ideal_reuse(trace).tolist() == [0, 0, 128]
    assert notes(trace, "noted") == {
        "a request without block ids; all of it is new": 1,
        "an unknown hash_id_scope, taken as local": 1,
    }


def test_other_formats_in_parquet(tmp_path) -> None:
    """Published data sets often come as Parquet; absent keys are then null."""
    import pyarrow as pa
    import pyarrow.parquet as pq

    inner = [ask(0, [7]), ask(20, [7, 8])]
    requests = [ask(0, [1]), subagent(100.5, inner), ask(200, [1, 2])]
    pq.write_table(pa.Table.from_pylist([document("a", requests)]), tmp_path / "weka.parquet")
    trace = load_trace(tmp_path / "weka.parquet")
    assert (trace.format, trace.sessions, len(trace)) == ("weka", 2, 4)
    assert ideal_reuse(trace).sum() == 128
    pq.write_table(pa.Table.from_pylist(ROWS), tmp_path / "mooncake.parquet")
    assert ideal_reuse(load_trace(tmp_path / "mooncake.parquet")).tolist() == [0, 1024]
    pq.write_table(pa.table({"a": [1]}), tmp_path / "other.parquet")
    with pytest.raises(TraceError, match="not a known trace format: keys a;"):
        load_trace(tmp_path / "other.parquet")
