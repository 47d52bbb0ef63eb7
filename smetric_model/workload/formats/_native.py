"""The schema of this package: Parquet, or JSON lines with a header line.

Blocks are stored as runs of chained ids (``block_first``, ``block_count``), numbered so that each
segment of the radix tree is one stretch of ids: a prompt of thousands of blocks is a few numbers.
"""

from __future__ import annotations

import math
from collections.abc import Iterator
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
import orjson

from smetric_model.errors import TraceError
from smetric_model.workload.columns import SCHEMA_VERSION
from smetric_model.workload.formats._collect import Collector
from smetric_model.workload.formats._lines import read_lines, read_start
from smetric_model.workload.formats._parquet import MAGIC, metadata_value, parquet_batches
from smetric_model.workload.formats._record import (
    BadLineError,
    Record,
    block_array,
    optional_seconds,
    require,
    seconds,
    text,
    tokens,
)
from smetric_model.workload.trace import LoadReport, Trace

if TYPE_CHECKING:
    from smetric_model.workload.formats import Options

__all__ = ["read", "write"]

_ROWS = 65_536
_BELOW_0_UNKNOWN = ("turn", "parent", "source_line")
_META_KEY = b"smetric_trace"


def _header(value: Any) -> dict[str, Any]:
    if not isinstance(value, dict):
        raise BadLineError("the header is not an object")
    version = require(value, "smetric_trace")
    if version != SCHEMA_VERSION:
        raise BadLineError(f"smetric_trace is {version!r}; this version reads {SCHEMA_VERSION}")
    block_tokens = value.get("block_tokens")
    if block_tokens is not None and tokens(block_tokens, "block_tokens") == 0:
        raise BadLineError("block_tokens is 0; at least 1 is needed")
    if value.get("session_clock", "shared") not in ("shared", "per-session"):
        raise BadLineError(
            f"session_clock is {value['session_clock']!r}; 'shared' or 'per-session' is needed"
        )
    return value


def _record(row: dict[str, Any], line: int) -> Record:
    ids = counts = None
    if row.get("block_first") is not None:
        ids = block_array(row["block_first"], "block_first")
        counts = block_array(require(row, "block_count"), "block_count")
        if ids.size != counts.size:
            raise BadLineError("block_first and block_count differ in length")
        if counts.size and not (counts >= 1).all():
            raise BadLineError("block_count holds a number below 1")
        if float(counts.sum(dtype=np.float64)) > 1e9:
            raise BadLineError("block_count sums to more than 1,000,000,000")
    elif row.get("block_ids") is not None:
        ids = block_array(row["block_ids"], "block_ids")
    session = row.get("session_id")
    if session is not None and not isinstance(session, str | int):
        raise BadLineError("session_id is neither a string nor an integer")
    turn = row.get("turn")
    parent = row.get("parent")
    for name, value in (("parent", parent), ("request_id", row.get("request_id"))):
        if value is not None and (isinstance(value, bool) or not isinstance(value, int)):
            raise BadLineError(f"{name} is not an integer")
    return Record(
        line=line,
        arrival=seconds(require(row, "arrival_s"), "arrival_s"),
        prompt_tokens=tokens(require(row, "prompt_tokens"), "prompt_tokens"),
        output_tokens=tokens(require(row, "output_tokens"), "output_tokens"),
        ids=ids,
        counts=counts,
        session=None if session is None else str(session),
        turn=-1 if turn is None else tokens(turn, "turn"),
        namespace=row.get("model"),
        key=row.get("request_id"),
        parent=None if parent is None or parent < 0 else parent,
        think_time_s=optional_seconds(row.get("think_time_s"), "think_time_s"),
        e2e_s=optional_seconds(row.get("e2e_s"), "e2e_s"),
        trigger=None if row.get("trigger") is None else text(row["trigger"], "trigger"),
        model=None if row.get("model") is None else text(row["model"], "model"),
    )


def read(files: list[Path], source: Path, options: Options) -> Trace:
    """Read one file of the schema."""
    if len(files) > 1:
        raise TraceError("a trace of this schema is one file, this is a directory", source)
    path = files[0]
    report = LoadReport()
    parquet = read_start(path, 4) == MAGIC
    rows = _parquet_rows(path) if parquet else _json_rows(path)
    try:
        _, first = next(rows)
        header = _header(first)
    except StopIteration:
        raise TraceError("no requests in this file", path) from None
    except BadLineError as error:
        raise TraceError(str(error), path, 1) from None
    collector = Collector(
        source,
        "smetric",
        unit="s",
        session_clock=header.get("session_clock", "shared"),
        report=report,
        time_unit="s" if options.time_unit == "auto" else options.time_unit,
        keep_origin=True,
    )
    collector.block_tokens = header.get("block_tokens")
    for line, row in _unpack(rows, collector):
        try:
            if isinstance(row, BadLineError):
                raise row
            record = _record(row, line)
            if record.ids is not None and collector.block_tokens is None:
                raise BadLineError("block ids, but the header names no block_tokens")
        except BadLineError as error:
            if options.on_error == "raise":
                raise TraceError(str(error), path, line) from None
            report.add("dropped", "a line that cannot be read", line)
            continue
        collector.extend([record])
    return collector.build()


def _unpack(rows: Iterator[tuple[int, Any]], collector: Collector) -> Iterator[tuple[int, Any]]:
    """Hand sound Parquet batches to the collector whole; give the rows of the others, and lines."""
    from smetric_model.workload.formats._native_columns import take_batch

    for line, row in rows:
        if isinstance(row, dict | BadLineError):
            yield line, row
        elif not take_batch(row, line, collector):
            yield from enumerate(row.to_pylist(), line)


def _json_rows(path: Path) -> Iterator[tuple[int, Any]]:
    for number, line in read_lines(path):
        try:
            row = orjson.loads(line)
            if not isinstance(row, dict):
                row = BadLineError("not a JSON object")
        except orjson.JSONDecodeError as error:
            row = BadLineError(f"not valid JSON: {error.msg} at character {error.pos}")
        yield number, row


def _parquet_rows(path: Path) -> Iterator[tuple[int, Any]]:
    header = metadata_value(path)
    if header is None:
        raise TraceError(
            "a Parquet file without the metadata key smetric_trace "
            "(see `smetric-model trace schema`)",
            path,
        )
    try:
        yield 0, orjson.loads(header)
    except orjson.JSONDecodeError as error:
        raise TraceError(f"the metadata key smetric_trace is not JSON: {error.msg}", path) from None
    yield from parquet_batches(path, _ROWS)


def write(trace: Trace, path: Path) -> None:
    """Write a trace in this schema: Parquet for ``.parquet``, else JSON lines.

    Parameters
    ----------
    trace : Trace
        Any trace.
    path : Path
        ``.parquet``, ``.jsonl``, ``.jsonl.gz`` or ``.jsonl.zst``.

    Raises
    ------
    TraceError
        For any other ending.
    """
    header = {
        "smetric_trace": SCHEMA_VERSION,
        "block_tokens": trace.block_tokens,
        "session_clock": trace.session_clock,
        "format": trace.format,
        "source": trace.source,
    }
    suffixes = "".join(path.suffixes[-2:])
    if path.suffix == ".parquet":
        _write_parquet(trace, path, header)
    elif path.suffix == ".jsonl" or suffixes in (".jsonl.gz", ".jsonl.zst"):
        _write_json_lines(trace, path, header)
    else:
        raise TraceError(
            f"ending {path.suffix!r} is not known; "
            ".parquet, .jsonl, .jsonl.gz or .jsonl.zst is allowed",
            path,
        )


def _session_labels(trace: Trace) -> list[str | None]:
    codes = trace.column("session_id").tolist()
    names = trace.session_names
    if names is not None:
        return [names[code] for code in codes]
    return [None if code < 0 else str(code) for code in codes]


def _write_json_lines(trace: Trace, path: Path, header: dict[str, Any]) -> None:
    import contextlib
    import gzip
    import io

    import zstandard

    columns: dict[str, list[Any]] = {
        str(name): trace.requests[name].tolist() for name in trace.requests.columns
    }
    sessions = _session_labels(trace)
    with contextlib.ExitStack() as stack:
        raw = stack.enter_context(path.open("wb"))
        out: Any = raw
        if path.suffix == ".gz":
            # no name and time in the header: equal traces give equal files
            out = stack.enter_context(gzip.GzipFile("", "wb", 6, raw, mtime=0))
        elif path.suffix == ".zst":
            out = stack.enter_context(zstandard.ZstdCompressor().stream_writer(raw, closefd=False))
        out = stack.enter_context(io.BufferedWriter(out)) if path.suffix != ".zst" else out
        out.write(orjson.dumps(header, option=orjson.OPT_APPEND_NEWLINE))
        runs = None if trace.tree is None else trace.tree.runs()
        for index in range(len(trace)):
            row: dict[str, Any] = {}
            for name, values in columns.items():
                value: Any = sessions[index] if name == "session_id" else values[index]
                missing = value is None or (isinstance(value, float) and math.isnan(value))
                if not missing and not (name in _BELOW_0_UNKNOWN and value < 0):
                    row[name] = value
            if runs is not None:
                part = slice(runs[0][index], runs[0][index + 1])
                row["block_first"] = runs[1][part].tolist()
                row["block_count"] = runs[2][part].tolist()
            out.write(orjson.dumps(row, option=orjson.OPT_APPEND_NEWLINE))


def _write_parquet(trace: Trace, path: Path, header: dict[str, Any]) -> None:
    import pyarrow as pa
    import pyarrow.parquet as pq

    frame = trace.requests
    arrays: dict[str, Any] = {}
    for name in frame.columns:
        if name == "session_id":
            arrays[name] = pa.array(_session_labels(trace), pa.string())
        elif name in ("trigger", "model"):
            arrays[name] = pa.array(
                frame[name].astype(object).tolist(), pa.string(), from_pandas=True
            )
        else:
            values = frame[name].to_numpy()
            unknown = values < 0 if name in _BELOW_0_UNKNOWN else np.isnan(values)
            arrays[name] = pa.array(values, mask=unknown)
    if trace.tree is not None:
        offsets, first, count = trace.tree.runs()
        arrays["block_first"] = pa.LargeListArray.from_arrays(offsets, first)
        arrays["block_count"] = pa.LargeListArray.from_arrays(offsets, count)
    table = pa.table(arrays).replace_schema_metadata({_META_KEY: orjson.dumps(header)})
    pq.write_table(table, path, compression="zstd", compression_level=9)
