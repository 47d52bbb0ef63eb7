"""Readers of public trace formats, chosen by content.

Each format is one module that turns a line into :class:`~._record.Record` objects; what all share
(units, order, sessions, parents, repairs, the radix tree) lives in ``_collect``.
"""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import Literal

from smetric_model.errors import TraceError
from smetric_model.workload.formats._lines import read_lines, read_start
from smetric_model.workload.trace import Trace

__all__ = ["FORMATS", "read"]

#: name -> what its files look like, for messages and documentation
FORMATS: dict[str, str] = {
    "smetric": "this package's own schema: Parquet, or JSON lines with a header",
    "mooncake": "JSON lines with timestamp, input_length, output_length, hash_ids",
    "weka": "JSON documents with block_size and requests (t, in, out, hash_ids)",
    "bailian": "JSON lines with chat_id, parent_chat_id, timestamp, input_length, hash_ids",
    "tair": "JSON lines with timestamp, input_length, output_length, block_ids",
    "lmcache": "JSON lines with timestamp, input, output (texts), session_id",
    "tracelab": "JSON lines with session_id, round_index, input_tokens_total, timing_events",
    "azure": "CSV with the header TIMESTAMP,ContextTokens,GeneratedTokens",
    "servegen": "a client's chunk-N-trace.csv beside its chunk-N-dataset.json",
}

_SERVEGEN = "-trace.csv"


@dataclass(frozen=True)
class Options:
    """How to read; see :func:`smetric_model.workload.load_trace`."""

    on_error: Literal["raise", "skip"]
    time_unit: str
    duplicates: Literal["keep", "drop"]
    block_tokens: int | None = None
    seed: int = 0


def read(
    path: Path,
    *,
    on_error: Literal["raise", "skip"],
    time_unit: str,
    duplicates: Literal["keep", "drop"],
    format_name: str | None,
    block_tokens: int | None = None,
    seed: int = 0,
) -> Trace:
    """Load a trace; see :func:`smetric_model.workload.load_trace`."""
    if format_name is not None and format_name not in FORMATS:
        raise TraceError(f"format {format_name!r} is not known; one of {', '.join(FORMATS)}", path)
    if block_tokens is not None and block_tokens < 1:
        raise TraceError(f"block_tokens is {block_tokens}; at least 1 is needed", path)
    options = Options(on_error, time_unit, duplicates, block_tokens, seed)
    files, empty = _files(path)
    name = format_name or sniff(next((f for f in files if f.name.endswith(_SERVEGEN)), files[0]))
    trace = _read(files, path, name, options)
    if empty:
        trace.report.add("dropped", "an empty file", count=empty)
    return trace


def _read(files: list[Path], path: Path, name: str, options: Options) -> Trace:
    if name == "smetric":
        from smetric_model.workload.formats import _native

        return _native.read(files, path, options)
    if name in ("azure", "servegen"):
        from smetric_model.workload.formats import _csv

        reader = _csv.read_azure if name == "azure" else _csv.read_servegen
        return reader(files, path, options)
    from smetric_model.workload.formats import _json_lines

    return _json_lines.read(files, path, name, options)


def _files(path: Path) -> tuple[list[Path], int]:
    """Files of a trace, and how many more are empty (in a directory; a lone one is an error)."""
    if not path.is_dir():
        return [path], 0
    found = sorted(p for p in path.iterdir() if p.is_file() and not p.name.startswith("."))
    files = [p for p in found if p.stat().st_size]
    if not files:
        raise TraceError("the directory holds no files with content", path)
    return files, len(found) - len(files)


def sniff(path: Path) -> str:
    """Name of a file's format, from its first bytes.

    Raises
    ------
    TraceError
        If it is none of :data:`FORMATS`.
    """
    from smetric_model.workload.formats import _csv, _json_lines
    from smetric_model.workload.formats._parquet import MAGIC, metadata_value, parquet_columns

    if read_start(path, 4) == MAGIC:
        if metadata_value(path) is not None:
            return "smetric"
        return _known(parquet_columns(path), path, None)
    for number, line in read_lines(path):
        if line.lstrip()[:1] in (b"{", b"["):
            break
        csv = _csv.sniff_line(line)
        if csv is not None:
            return csv
        start = line[:80].decode("utf-8", "replace")
        told = _json_lines.if_toml(path) or _unknown(f"it begins with {start!r}")
        raise TraceError(told, path, number)
    number, row = _json_lines.first_object(path)
    return _known(list(row), path, number)


def _known(keys: list[str], path: Path, line: int | None) -> str:
    name = _by_keys(set(keys))
    if name is None:
        raise TraceError(_unknown(f"keys {', '.join(keys[:8])[:200]}"), path, line)
    return name


def _unknown(found: str) -> str:
    known = "; ".join(f"{key} ({what})" for key, what in FORMATS.items())
    return f"not a known trace format: {found}; known are {known} (docs/traces.md)"


def _by_keys(keys: set[str]) -> str | None:
    if "smetric_trace" in keys:
        return "smetric"
    if "requests" in keys and ("block_size" in keys or "hash_id_scope" in keys):
        return "weka"
    if {"chat_id", "input_length", "hash_ids"} <= keys:
        return "bailian"
    if {"input_tokens_total", "round_index", "timing_events"} <= keys:
        return "tracelab"
    if {"timestamp", "input", "output"} <= keys:
        return "lmcache"
    if (
        "timestamp" in keys
        and "input_length" in keys
        and ("block_ids" in keys or "device_cache_hit_length" in keys)
    ):
        return "tair"
    if {"timestamp", "input_length", "hash_ids"} <= keys:
        return "mooncake"
    return None
