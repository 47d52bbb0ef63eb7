"""Driver of the formats that are JSON: one object a line, or one document a file."""

from __future__ import annotations

import itertools
import tomllib
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import TYPE_CHECKING, Any

import orjson

from smetric_model.errors import TraceError
from smetric_model.workload.formats import _bailian, _lmcache, _mooncake, _tracelab, _weka
from smetric_model.workload.formats._collect import Collector
from smetric_model.workload.formats._lines import MAX_LINE_BYTES, read_lines, read_start
from smetric_model.workload.formats._parquet import MAGIC, parquet_rows
from smetric_model.workload.formats._record import BadLineError, Record
from smetric_model.workload.trace import LoadReport, SessionClock, Trace

if TYPE_CHECKING:
    from smetric_model.workload.formats import Options

__all__ = ["first_object", "read"]

Parser = Callable[[dict[str, Any], int], list[Record]]

#: Lines whose lengths are compared with the block size.
_PROBE_LINES = 256
_BLOCK_SIZES = (16, 32, 64, 128, 256, 512, 1024)
_TAIR_BLOCK_TOKENS = 256
#: A row can be a whole session.
_PARQUET_ROWS = 16
#: More than any scenario or preset has.
_TOML_BYTES = 1 << 20
#: Tables of a synthetic workload's parameters that no scenario has.
_SYNTHETIC = {"frameworks", "history", "sessions", "think"}


def _loads(line: bytes | dict[str, Any]) -> dict[str, Any]:
    if isinstance(line, dict):  # a row of Parquet
        return line
    try:
        row = orjson.loads(line)
    except orjson.JSONDecodeError as error:
        raise BadLineError(f"not valid JSON: {error.msg} at character {error.pos}") from None
    if not isinstance(row, dict):
        raise BadLineError(f"a JSON {type(row).__name__}; an object is needed")
    return row


def _objects(path: Path) -> Iterator[tuple[int, bytes | dict[str, Any]]]:
    """One JSON text at a time: each line, or the whole file where the first line opens one.

    Parquet files give their rows.

    A pretty-printed document begins with a line of nothing but ``{``.
    """
    if read_start(path, 4) == MAGIC:
        yield from parquet_rows(path, _PARQUET_ROWS)
        return
    lines = read_lines(path)
    try:
        first = next(lines)
    except StopIteration:
        return
    if first[1] == b"{":
        whole = read_start(path, MAX_LINE_BYTES + 1)
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
            raise TraceError(if_toml(path) or str(error), path, number) from None
    raise TraceError("no requests in this file: only blank lines", path)


def if_toml(path: Path) -> str | None:
    """Where a TOML file belongs that was given as a trace; None if it is none."""
    try:
        content = tomllib.loads(read_start(path, _TOML_BYTES).decode())
    except (UnicodeDecodeError, tomllib.TOMLDecodeError):
        return None
    if _SYNTHETIC & content.keys():
        return (
            "parameters of a synthetic workload, not a trace: a preset goes by its name into "
            f"workload.preset of a scenario (here {content.get('name', path.stem)!r}); "
            "parameters of your own become a trace by "
            "`smetric-model synthesise FILE.toml --out FILE`"
        )
    return "a TOML file, not a trace; a scenario is given as SCENARIO, and names its trace"


def read(files: list[Path], source: Path, name: str, options: Options) -> Trace:
    """Read the files of one trace in the named format."""
    report = LoadReport()
    weka = _weka.WekaReader(report, options.duplicates == "drop")
    # parser, unit of time, clock, usual tokens of a block
    table: dict[str, tuple[Parser, str, SessionClock, int | None]] = {
        "weka": (weka.parse, "s", "per-session", None),
        "mooncake": (
            _mooncake.MooncakeReader(report).parse,
            "ms",
            "shared",
            _mooncake.BLOCK_TOKENS,
        ),
        "tair": (_mooncake.parse_tair, "ms", "shared", _TAIR_BLOCK_TOKENS),
        "bailian": (_bailian.parse, "s", "shared", _bailian.BLOCK_TOKENS),
        "tracelab": (_tracelab.TracelabReader(report).parse, "s", "shared", 1),
        "lmcache": (_lmcache.LmcacheReader(report).parse, "us", "shared", _lmcache.BLOCK_TOKENS),
    }
    parse, unit, clock, usual = table[name]
    collector = Collector(
        source,
        name,
        unit=unit,
        session_clock=clock,
        report=report,
        time_unit=options.time_unit,
        sessions_from_parents=name == "bailian",
    )
    if usual is None:  # each document names its block size
        for records in _records(files, parse, options, report):
            collector.block_tokens = weka.block_tokens
            collector.extend(records)
        return collector.build()
    stream = itertools.chain.from_iterable(_records(files, parse, options, report))
    probe = list(itertools.islice(stream, _PROBE_LINES))
    collector.block_tokens = options.block_tokens or _block_tokens(probe, usual, report)
    collector.extend(probe)
    collector.extend(stream)
    return collector.build()


def _records(
    files: list[Path], parse: Parser, options: Options, report: LoadReport
) -> Iterator[list[Record]]:
    for path in files:
        for number, line in _objects(path):
            try:
                records = parse(_loads(line), number)
            except BadLineError as error:
                if options.on_error == "raise":
                    raise TraceError(str(error), path, number) from None
                report.add("dropped", "a line that cannot be read", number)
                continue
            yield records


def _block_tokens(probe: list[Record], usual: int, report: LoadReport) -> int:
    """Check the format's block size against the first lines' lengths; find the right one."""
    pairs = [(r.prompt_tokens, r.ids.size) for r in probe if r.ids is not None and r.prompt_tokens]

    def fit(size: int) -> float:
        return sum(prompt // size <= blocks <= -(-prompt // size) for prompt, blocks in pairs)

    if not pairs or fit(usual) >= 0.9 * len(pairs):
        return usual
    best = max(_BLOCK_SIZES, key=fit)
    if fit(best) < 0.99 * len(pairs):
        return usual
    report.add(
        "repaired",
        f"blocks of {best} tokens by the prompts' lengths (usual: {usual})",
        probe[0].line,
    )
    return best
