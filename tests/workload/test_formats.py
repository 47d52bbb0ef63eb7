"""Every format and every oddity, on small files written here."""

from __future__ import annotations

import gzip
import json
import math

import numpy as np
import pytest
import zstandard

from smetric_model.datafiles import data_dir
from smetric_model.errors import TraceError
from smetric_model.workload import load_trace
from smetric_model.workload.reuse import ideal_reuse
from smetric_model.workload.synthesis import preset_names


def write(path, rows, end="\n"):
    path.write_bytes(end.join(r if isinstance(r, str) else json.dumps(r) for r in rows).encode())
    return path


def notes(trace, action):
    return {entry.kind: entry.count for entry in trace.report if entry.action == action}


def mooncake(stamp, blocks, prompt=None, **more):
    prompt = 512 * len(blocks) if prompt is None else prompt
    row = {"timestamp": stamp, "input_length": prompt, "output_length": 5, "hash_ids": blocks}
    return row | more


# -- containers ----------------------------------------------------------------------------------

ROWS = [mooncake(0, [0, 1, 2]), mooncake(3000, [0, 1, 3])]
TEXT = "\n".join(map(json.dumps, ROWS)).encode()


@pytest.mark.parametrize(
    "content",
    [
        TEXT,
        TEXT + b"\n",
        b"\xef\xbb\xbf" + TEXT,
        TEXT.replace(b"\n", b"\r\n\r\n \r\n"),
        gzip.compress(TEXT),
        gzip.compress(TEXT[:200]) + gzip.compress(TEXT[200:]),
        gzip.compress(TEXT) + bytes(512),
        zstandard.compress(TEXT),
        zstandard.compress(TEXT[:200]) + zstandard.compress(TEXT[200:]),
    ],
    ids=["plain", "newline", "bom", "crlf-blank", "gz", "gz2", "gz-padded", "zst", "zst2"],
)
def test_containers_are_found_by_content(tmp_path, content) -> None:
    (tmp_path / "trace.data").write_bytes(content)
    trace = load_trace(tmp_path / "trace.data")
    assert trace.format == "mooncake"
    assert trace.column("arrival_s").tolist() == [0.0, 3.0]
    assert ideal_reuse(trace).tolist() == [0, 1024]


@pytest.mark.parametrize(
    ("content", "match"),
    [
        (b"", "empty"),
        (b"\n \n", "no requests"),
        (b"version https://git-lfs.github.com/spec/v1\noid sha256:0\nsize 1\n", "Git LFS pointer"),
        (gzip.compress(TEXT)[:-20], "damaged compressed data"),
        (zstandard.compress(TEXT)[:-8], "damaged compressed data"),
        (b'{"a": 1}', "not a known trace format: keys a; known are"),
        (b"hello", ":1: not a known trace format: it begins with 'hello'; known are smetric"),
        (b"TIMESTAMP,ContextTokens\n1,2\n", "begins with 'TIMESTAMP,ContextTokens'; .* azure"),
        (b"[1, 2]", ":1: a JSON list; an object is needed"),
        (TEXT + b'\n{"timestamp": 1', ":3: not valid JSON"),
        (b'name = "x"\n[workload]\nrate_rps = 1.0\n', ":1: a TOML file, .* as SCENARIO"),
        (b"PAR1" + TEXT, "not readable as Parquet"),
    ],
)
def test_what_is_no_trace_says_why(tmp_path, content, match) -> None:
    path = tmp_path / "trace.jsonl"
    path.write_bytes(content)
    with pytest.raises(TraceError, match=match) as caught:
        load_trace(path)
    assert str(path) in str(caught.value)


@pytest.mark.parametrize("name", preset_names())
def test_a_preset_given_as_a_trace_is_told_where_it_belongs(name) -> None:
    path = data_dir() / "presets" / f"{name}.toml"
    with pytest.raises(TraceError, match=rf"workload\.preset of a scenario \(here '{name}'\)"):
        load_trace(path)


def test_a_zip_bomb_is_refused(tmp_path, monkeypatch) -> None:
    from smetric_model.workload.formats import _lines

    monkeypatch.setattr(_lines, "MAX_LINE_BYTES", 100_000)
    (tmp_path / "bomb.gz").write_bytes(gzip.compress(b'{"timestamp": ' + b"0" * 10_000_000))
    with pytest.raises(TraceError, match="a line of more than 100,000 bytes"):
        load_trace(tmp_path / "bomb.gz")


def test_broken_lines_stop_or_are_counted(tmp_path) -> None:
    path = write(tmp_path / "t", [ROWS[0], "{oops", ROWS[1], {"timestamp": 1}])
    with pytest.raises(TraceError, match=r"t:2: not valid JSON") as caught:
        load_trace(path)
    assert caught.value.line == 2
    trace = load_trace(path, on_error="skip")
    assert len(trace) == 2
    assert trace.report.dropped == 2
    assert next(iter(trace.report)).lines == [2, 4]


@pytest.mark.parametrize(
    ("change", "match"),
    [
        ({"input_length": "7"}, "input_length is '7'; an integer is needed"),
        ({"input_length": 7.5}, "input_length is 7.5"),
        ({"input_length": True}, "input_length is True"),
        ({"input_length": -1}, "input_length is -1; 0 to 1,000,000,000"),
        ({"input_length": 10**30}, r"input_length is 1\d+"),
        ({"output_length": None}, "output_length is None"),
        ({"timestamp": "now"}, "timestamp is 'now'"),
        ({"timestamp": -5}, "timestamp is -5"),
        ({"timestamp": 1e300}, "timestamp is 1e"),
        ({"hash_ids": 5}, "hash_ids is 5; a list of integers"),
        ({"hash_ids": [1, "2", 3]}, "hash_ids holds '2'"),
        ({"hash_ids": [1, 2.5, 3]}, "hash_ids holds 2.5"),
        ({"hash_ids": [1, 2**70, 3]}, "hash_ids holds 1180591620717411303424|hash_ids holds 1.18"),
        ({"hash_ids": [[1], [2], [3]]}, r"hash_ids holds \[1\]"),
        ({"hash_ids": [1, None, 2]}, "hash_ids holds None"),
        ({"chat_id": 1, "parent_chat_id": -1}, "a Bailian line"),
    ],
)
def test_wrong_values_name_the_line(tmp_path, change, match) -> None:
    path = write(tmp_path / "t", [ROWS[0], ROWS[1] | change])
    with pytest.raises(TraceError, match=match) as caught:
        load_trace(path)
    assert caught.value.line == 2


# -- Mooncake ------------------------------------------------------------------------------------


def test_mooncake_ties_keep_file_order_and_disorder_is_reported(tmp_path) -> None:
    rows = [mooncake(3000, [0, 5]), mooncake(0, [0, 1]), mooncake(3000, [0, 6])]
    trace = load_trace(write(tmp_path / "t", rows))
    assert trace.column("source_line").tolist() == [2, 1, 3]
    assert notes(trace, "repaired") == {"time stamps out of order; sorted": 1}


def test_mooncake_tails(tmp_path) -> None:
    """Ceil tails are clipped; surplus ids are cut off, missing ones noted; empty prompts go."""
    rows = [
        mooncake(0, [0, 1], 700),
        mooncake(1, [0, 1], 700),
        mooncake(2, [0, 1, 2, 3], 700),
        mooncake(3, [0], 5000),
        mooncake(4, [], 0),
        mooncake(5, [0, 1], 700, output_length=0),
    ]
    trace = load_trace(write(tmp_path / "t", rows))
    assert ideal_reuse(trace).tolist() == [0, 700, 700, 512, 700]
    assert notes(trace, "repaired") == {
        "more block ids than the prompt fills; the rest left off": 1
    }
    assert notes(trace, "dropped") == {"a prompt of no tokens": 1}
    assert notes(trace, "noted") == {
        "fewer block ids than the prompt fills; the rest counts as new": 1,
        "an output of no tokens, kept": 1,
    }
    assert (trace.report.repaired, trace.report.dropped) == (1, 1)


def test_mooncake_dialect_with_sessions_and_delays(tmp_path) -> None:
    rows = [
        mooncake(0, [0, 1], session_id="a", text_input="ignored"),
        mooncake(1000, [0, 2], session_id="b"),
        {k: v for k, v in mooncake(0, [0, 1, 3], session_id="a").items() if k != "timestamp"}
        | {"delay": 4000},
    ]
    trace = load_trace(write(tmp_path / "t", rows))
    assert trace.sessions == 2
    assert trace.session_names == ("a", "b")
    assert trace.column("turn").tolist() == [0, 0, 1]
    assert trace.column("parent").tolist() == [-1, -1, 0]
    assert trace.column("arrival_s").tolist() == [0, 1, 4]
    assert trace.column("think_time_s")[2] == 4


def test_block_size_is_checked_against_the_lengths(tmp_path) -> None:
    rows = [mooncake(k, list(range(10 * k, 10 * k + 5)), 16 * 5 - k % 16) for k in range(50)]
    trace = load_trace(write(tmp_path / "t", rows))
    assert trace.block_tokens == 16
    assert "blocks of 16 tokens by the prompts' lengths (usual: 512)" in notes(trace, "repaired")
    assert load_trace(tmp_path / "t", block_tokens=128).block_tokens == 128


@pytest.mark.parametrize(
    ("stamps", "arrival_s"),
    [
        ([1_760_428_436_000, 1_760_428_437_500], [0, 1.5]),
        ([1_760_428_436_000_000, 1_760_428_437_500_000], [0, 1.5]),
        ([1_760_428_436_000_000_000, 1_760_428_437_500_000_000], [0, 1.5]),
        ([1_760_428_436, 1_760_428_437.5], [0, 1.5]),
        ([5000, 6500], [0, 1.5]),
    ],
    ids=["ms", "us", "ns", "s", "relative"],
)
def test_units_of_time(tmp_path, stamps, arrival_s) -> None:
    trace = load_trace(write(tmp_path / "t", [mooncake(s, [0, 1]) for s in stamps]))
    np.testing.assert_allclose(trace.column("arrival_s"), arrival_s, atol=1e-6)


def test_unit_of_time_by_option(tmp_path) -> None:
    path = write(tmp_path / "t", [mooncake(0, [0]), mooncake(2, [0])])
    assert load_trace(path, time_unit="s").column("arrival_s").tolist() == [0, 2]


# -- tair ----------------------------------------------------------------------------------------


def test_tair_keeps_63_bit_ids_apart(tmp_path) -> None:
    big = 2**62 + 1  # a double cannot tell it from its neighbours
    row = {"input_length": 768, "output_length": 1, "device_cache_hit_length": 0}
    rows = [
        row | {"timestamp": 1780722000040.479, "block_ids": [big, big + 1, big + 5]},
        row | {"timestamp": 1780722000079.114, "block_ids": [big + 1, big + 2, big + 5]},
        row | {"timestamp": 1780722000148.226, "block_ids": [big, big + 1, big + 6]},
        row | {"timestamp": 1780722000149.5, "block_ids": [big, 2**64 - 1, -1]},
    ]
    trace = load_trace(write(tmp_path / "t", rows))
    assert (trace.format, trace.block_tokens) == ("tair", 256)
    assert ideal_reuse(trace).tolist() == [0, 0, 512, 256]
    np.testing.assert_allclose(trace.column("arrival_s")[:3], [0, 0.038635, 0.107747], atol=1e-5)
    with pytest.raises(TraceError, match="key 'block_ids' is missing"):
        load_trace(
            write(
                tmp_path / "u", [rows[0], {"timestamp": 0, "input_length": 1, "output_length": 1}]
            )
        )


def test_tair_without_ids_has_no_blocks(tmp_path) -> None:
    row = {"timestamp": 1780722000040.479, "input_length": 586, "output_length": 1}
    trace = load_trace(write(tmp_path / "t", [row | {"device_cache_hit_length": 0}]))
    assert trace.tree is None
    with pytest.raises(TraceError, match="carries no block ids"):
        ideal_reuse(trace)


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


# -- TraceLab, LMCache, Azure, ServeGen ----------------------------------------------------------


def test_tracelab(tmp_path) -> None:
    def row(index, second, total, prefix, kind):
        stamp = f"2026-08-25T00:00:{second:02}"
        return {
            "session_id": "s",
            "provider": "codex",
            "round_index": index,
            "model": "m",
            "input_tokens_total": total,
            "prefix_tokens": prefix,
            "newly_append_tokens": total - prefix,
            "output_tokens": 9,
            "timing_events": [
                {"event_type": kind, "timestamp": stamp + "Z"},
                {"event_type": "text", "timestamp": stamp + ".500+00:00"},
            ],
        }

    rows = [
        row(0, 1, 9000, 0, "user_message"),
        row(1, 5, 9900, 3456, "tool_result"),
        row(2, 9, 9999, 5, "tool_result") | {"prefix_tokens": 6},
    ]
    trace = load_trace(write(tmp_path / "t", rows))
    assert (trace.format, trace.tree, trace.session_names) == ("tracelab", None, ("codex/s",))
    np.testing.assert_allclose(trace.column("arrival_s"), [0, 4, 8])
    np.testing.assert_allclose(trace.column("think_time_s"), [math.nan, 3.5, 3.5])
    assert trace.requests["trigger"].tolist() == ["user", "agent", "agent"]
    assert notes(trace, "noted") == {
        "prefix_tokens and newly_append_tokens do not sum to the input": 1
    }
    with pytest.raises(TraceError, match="holds no timestamp"):
        load_trace(write(tmp_path / "u", [rows[0] | {"timing_events": []}]))


def test_lmcache_texts(tmp_path) -> None:
    system = "You are an agent. " * 40
    rows = [
        {"timestamp": 1760428436442742, "input": system + "a" * 900, "output": "", "session_id": 1},
        {"timestamp": 1760428435442742, "input": system, "output": "x" * 9, "session_id": 2},
        {"timestamp": 1760428437442742, "input": "", "output": "x", "session_id": 2},
        {
            "timestamp": 1760428438442742,
            "input": system + "a" * 990,
            "output": "é",
            "session_id": 1,
        },
    ]
    trace = load_trace(write(tmp_path / "t", rows))
    assert trace.format == "lmcache"
    assert trace.column("arrival_s").tolist() == [0, 1, 3]
    assert trace.column("output_tokens").tolist() == [3, 0, 1]
    assert trace.column("prompt_tokens")[1] == math.ceil((len(system) + 900) / 4)
    assert trace.column("session_id").tolist() == [0, 1, 1]
    assert ideal_reuse(trace).tolist() == [0, len(system) // 256 * 64, 1620 // 256 * 64]
    assert notes(trace, "dropped") == {"a prompt of no tokens": 1}
    assert "time stamps out of order; sorted" in notes(trace, "repaired")
    assert notes(trace, "noted")["tokens estimated from text, 4 bytes each"] == 4


def test_azure(tmp_path) -> None:
    rows = [
        "TIMESTAMP,ContextTokens,GeneratedTokens",
        "2023-11-16 18:17:03.9799600,4808,10",
        "2023-11-16 18:17:04.0319600,3180,8",
        "2023-11-16 19:17:05.0319600+01:00,110,27",
    ]
    trace = load_trace(write(tmp_path / "t.csv", rows, end="\r\n"))
    assert (trace.format, trace.tree, trace.sessions) == ("azure", None, None)
    np.testing.assert_allclose(trace.column("arrival_s"), [0, 0.052, 1.052], atol=1e-6)
    assert trace.column("prompt_tokens").tolist() == [4808, 3180, 110]
    for bad, match in (
        ("2023-11-16 18:17:03.97,4808", "2 fields; 3 are needed"),
        ("2023-13-16 18:17:03.97,4808,1", "month must be"),
        ("yesterday,4808,1", "TIMESTAMP is 'yesterday'"),
        ("2023-11-16 18:17:03.97,-5,1", "ContextTokens is '-5'"),
        ("2023-11-16 18:17:03.97,1,99999999999", "GeneratedTokens is '99999999999'"),
    ):
        path = write(tmp_path / "u.csv", [*rows[:2], bad])
        with pytest.raises(TraceError, match=match) as caught:
            load_trace(path)
        assert caught.value.line == 3
        assert len(load_trace(path, on_error="skip")) == 1


def servegen(folder, windows, dataset=None, number=1):
    write(folder / f"chunk-{number}-trace.csv", windows)
    if dataset is None:
        dataset = {
            "0": {"input_tokens": "{224: 0.25, 1000: 0.75}", "output_tokens": "{10: 1.0}"},
            "1200": {"input_tokens": "{7: 1.0}", "output_tokens": "{9: 2}", "reason_ratio": "{}"},
        }
    (folder / f"chunk-{number}-dataset.json").write_text(json.dumps(dataset))
    return folder / f"chunk-{number}-trace.csv"


def test_servegen_draws_what_it_describes(tmp_path) -> None:
    windows = [
        "0,4.0,1.4,Gamma,0.5,0.5",
        "600,0,0,,0,0",
        "1200,2.0,1.0,Weibull,0.7,0.4",
        "1800,1.0,1.0,Exponential,0,0",
    ]
    path = servegen(tmp_path, windows)
    trace = load_trace(path, seed=1)
    assert trace.requests.equals(load_trace(path, seed=1).requests)
    assert not trace.requests.equals(load_trace(path, seed=2).requests)
    arrival_s, prompt = trace.column("arrival_s"), trace.column("prompt_tokens")
    counts = np.histogram(arrival_s, [0, 599, 1199, 1799, 2400])[0]
    np.testing.assert_allclose(counts, [2400, 0, 1200, 600], rtol=0.15, atol=3)
    first = arrival_s < 700
    assert np.mean(prompt[first] == 1000) == pytest.approx(0.75, abs=0.04)
    assert set(prompt[~first]) == {7}
    gaps = np.diff(arrival_s[first])
    assert gaps.std() / gaps.mean() == pytest.approx(math.sqrt(2), rel=0.1)  # 1/sqrt(shape)

    servegen(tmp_path, ["0,1.0,1.0,Exponential,0,0"], number=2)
    assert len(load_trace(tmp_path)) > len(trace)


@pytest.mark.parametrize(
    ("windows", "dataset", "match"),
    [
        (["0,1,1,Gamma,0.5,0.5", "600,1,1,Cauchy,1,1"], None, ":2: distribution 'Cauchy'"),
        (["0,1,1,Gamma,0.5,0.5", "600,1,1"], None, ":2: 3 fields; 6 are needed"),
        (["0,1,1,Gamma,0.5,0.5", "0,1,1,Gamma,1,1"], None, ":2: window start"),
        (["0,1,1,Gamma,0,0.5"], None, "a shape > 0"),
        (["0,1e5,1,Gamma,1,1"], None, "more than 5,000,000 requests"),
        (["0,1,1,Gamma,1e-9,1"], None, "too small or too large|no requests"),
        (["0,1,1,Gamma,1,1"], {}, "no token distributions"),
        (["0,1,1,Gamma,1,1"], {"0": {"input_tokens": "{"}}, "not a ServeGen dataset"),
        (
            ["0,1,1,Gamma,1,1"],
            {"0": {"input_tokens": "{-5: 1}", "output_tokens": "{1: 1}"}},
            "a token count out of range",
        ),
    ],
)
def test_wrong_servegen_files(tmp_path, windows, dataset, match) -> None:
    with pytest.raises(TraceError, match=match):
        load_trace(servegen(tmp_path, windows, dataset))


def test_servegen_needs_its_dataset(tmp_path) -> None:
    path = write(tmp_path / "chunk-1-trace.csv", ["0,1,1,Gamma,1,1"])
    with pytest.raises(TraceError, match=r"missing: chunk-1-dataset\.json"):
        load_trace(path)


def test_unknown_names_are_refused(tmp_path) -> None:
    path = write(tmp_path / "t", ROWS)
    with pytest.raises(TraceError, match="format 'x' is not known; one of smetric, mooncake"):
        load_trace(path, format="x")
    with pytest.raises(TraceError, match="block_tokens is 0"):
        load_trace(path, block_tokens=0)
    (tmp_path / "empty").mkdir()
    with pytest.raises(TraceError, match="holds no files"):
        load_trace(tmp_path / "empty")
    with pytest.raises(FileNotFoundError):
        load_trace(tmp_path / "nowhere")
