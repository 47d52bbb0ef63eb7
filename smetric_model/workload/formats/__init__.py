"""Readers of public trace formats, chosen by content.

Each format is one module that turns a line into :class:`~._record.Record` objects; what all share
(units, order, sessions, parents, repairs, the radix tree) lives in ``_collect``.
"""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal

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
    "azure": "CSV with the header TIMESTAMP,ContextTokens,GeneratedTokens",
    "servegen": "a client's chunk-N-trace.csv beside its chunk-N-dataset.json",
}


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
    files = _files(path)
    name = format_name or sniff(files[0])
    if name == "smetric":
        from smetric_model.workload.formats import _native

        return _native.read(files, path, options)
    if name in ("azure", "servegen"):
        from smetric_model.workload.formats import _csv

        reader = _csv.read_azure if name == "azure" else _csv.read_servegen
        return reader(files, path, options)
    from smetric_model.workload.formats import _json_lines

    return _json_lines.read(files, path, name, options)


def _files(path: Path) -> list[Path]:
    if not path.is_dir():
        return [path]
    files = sorted(p for p in path.iterdir() if p.is_file() and not p.name.startswith("."))
    if not files:
        raise TraceError("the directory holds no files", path)
    return files


def sniff(path: Path) -> str:
    """Name of a file's format, from its first bytes.

    Raises
    ------
    TraceError
        If it is none of :data:`FORMATS`.
    """
    if read_start(path, 4) == b"PAR1":
        return "smetric"
    from smetric_model.workload.formats import _csv, _json_lines

    for _, line in read_lines(path):
        csv = None if line[:1] in (b"{", b"[") else _csv.sniff_line(line)
        if csv is not None:
            return csv
        break
    number, row = _json_lines.first_object(path)
    name = _by_keys(row)
    if name is None:
        raise TraceError(
            f"not a known trace format: keys {', '.join(map(str, list(row)[:8]))}; known are "
            + "; ".join(f"{key} ({what})" for key, what in FORMATS.items()),
            path,
            number,
        )
    return name


def _by_keys(row: dict[str, Any]) -> str | None:
    keys = row.keys()
    if "smetric_trace" in keys:
        return "smetric"
    if "requests" in keys and ("block_size" in keys or "hash_id_scope" in keys):
        return "weka"
    if {"chat_id", "input_length", "hash_ids"} <= keys:
        return "bailian"
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
