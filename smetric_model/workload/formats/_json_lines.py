"""Driver of the formats that are JSON: one object a line, or one document a file."""

from __future__ import annotations

import itertools
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import TYPE_CHECKING, Any

import orjson

from smetric_model.errors import TraceError
from smetric_model.workload.formats import _mooncake, _weka
from smetric_model.workload.formats._collect import Collector
from smetric_model.workload.formats._lines import MAX_LINE_BYTES, open_trace_file, read_lines
from smetric_model.workload.formats._record import BadLineError, Record
from smetric_model.workload.trace import LoadReport, Trace

if TYPE_CHECKING:
    from smetric_model.workload.formats import Options

__all__ = ["first_object", "read"]

Parser = Callable[[dict[str, Any], int], list[Record]]


def _loads(line: bytes) -> dict[str, Any]:
    try:
        row = orjson.loads(line)
    except orjson.JSONDecodeError as error:
        raise BadLineError(f"not valid JSON: {error.msg} at character {error.pos}") from None
    if not isinstance(row, dict):
        raise BadLineError(f"a JSON {type(row).__name__}; an object is needed")
    return row


def _objects(path: Path) -> Iterator[tuple[int, bytes]]:
    """One JSON text at a time: each line, or the whole file where the first line opens one.

    A pretty-printed document begins with a line of nothing but ``{``.
    """
    lines = read_lines(path)
    try:
        first = next(lines)
    except StopIteration:
        return
    if first[1] in (b"{", b"["):
        with open_trace_file(path) as file:
            whole = file.read(MAX_LINE_BYTES + 1)
        if len(whole) > MAX_LINE_BYTES:
            raise TraceError(
                f"one JSON document of more than {MAX_LINE_BYTES:,} bytes; use JSON lines", path, 1
            )
        yield first[0], whole
        return
    yield from itertools.chain([first], lines)


def first_object(path: Path) -> tuple[int, dict[str, Any]]:
    """First object of a file and its line.

    Raises
    ------
    TraceError
        If the file holds none.
    """
    for number, line in _objects(path):
        try:
            return number, _loads(line)
        except BadLineError as error:
            raise TraceError(str(error), path, number) from None
    raise TraceError("no requests in this file: only blank lines", path)


def read(files: list[Path], source: Path, name: str, options: Options) -> Trace:
    """Read the files of one trace in the named format."""
    report = LoadReport()
    parse: Parser
    if name == "weka":
        weka = _weka.WekaReader(report, options.duplicates == "drop")
        parse = weka.parse
        collector = Collector(
            source,
            name,
            unit="s",
            session_clock="per-session",
            report=report,
            time_unit=options.time_unit,
        )
    else:
        parse = _mooncake.parse
        collector = Collector(
            source,
            name,
            unit="ms",
            session_clock="shared",
            report=report,
            time_unit=options.time_unit,
        )
        collector.block_tokens = _mooncake.BLOCK_TOKENS
    for path in files:
        for number, line in _objects(path):
            try:
                records = parse(_loads(line), number)
            except BadLineError as error:
                if options.on_error == "raise":
                    raise TraceError(str(error), path, number) from None
                report.add("dropped", "a line that cannot be read", number)
                continue
            if name == "weka":
                collector.block_tokens = weka.block_tokens
            collector.extend(records)
    return collector.build()
