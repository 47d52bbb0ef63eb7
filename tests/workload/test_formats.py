"""Containers, units, Mooncake and Tair: every oddity, on small files written here."""

from __future__ import annotations

import gzip
import json

import numpy as np
import pytest
import zstandard
from trace_files import ROWS, mooncake, notes, write

from smetric_model.datafiles import data_dir
from smetric_model.errors import TraceError
from smetric_model.workload import load_trace
from smetric_model.workload.reuse import ideal_reuse
from smetric_model.workload.synthesis import preset_names

# -- containers ----------------------------------------------------------------------------------

TEXT = "\n".join(map(json.dumps, ROWS)).encode()


@pytest.mark.parametrize(
    "content",
    [
        TEXT,
        TEXT + b"\n",
        b"\xef\xbb\xbf" + TEXT,
        TEXT.replace(b"\n", b"\r\n\r\n \r\n"),
        gzip.compress(TEXT, mtime=0),
        gzip.compress(TEXT[:200]) + gzip.compress(TEXT[200:]),
        gzip.compress(TEXT, mtime=0) + bytes(512),
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
        (gzip.compress(TEXT, mtime=0)[:-20], "damaged compressed data"),
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
