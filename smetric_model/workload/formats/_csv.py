"""Formats that are comma-separated: Azure's request logs and ServeGen's client descriptions."""

from __future__ import annotations

import ast
import datetime
import math
import re
from collections.abc import Iterator
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
import numpy.typing as npt
import orjson

from smetric_model.errors import TraceError
from smetric_model.workload.formats._collect import Collector
from smetric_model.workload.formats._lines import MAX_LINE_BYTES, read_lines, read_start
from smetric_model.workload.formats._record import MAX_TOKENS, BadLineError, Record
from smetric_model.workload.trace import LoadReport, Trace

if TYPE_CHECKING:
    from smetric_model.workload.formats import Options

__all__ = ["read_azure", "read_servegen", "sniff_line"]

_AZURE = ("TIMESTAMP", "ContextTokens", "GeneratedTokens")
_STAMP = re.compile(
    r"(\d{4})-(\d{2})-(\d{2})[ T](\d{2}):(\d{2}):(\d{2})(\.\d{1,12})?(Z|[+-]\d{2}:?\d{2})?"
)
_DISTRIBUTIONS = ("Gamma", "Weibull", "Exponential", "")
#: More requests than this in one ServeGen load are refused.
_MAX_SAMPLED = 5_000_000


def sniff_line(line: bytes) -> str | None:
    """Name of the format whose first line this is."""
    fields = line.decode("utf-8", "replace").split(",")
    if set(_AZURE) <= {field.strip().strip('"') for field in fields}:
        return "azure"
    if len(fields) == 6 and fields[3].strip() in _DISTRIBUTIONS:
        try:
            [float(fields[index]) for index in (0, 1, 2, 4, 5)]
        except ValueError:
            return None
        return "servegen"
    return None


# -- Azure ---------------------------------------------------------------------------------------


def read_azure(files: list[Path], source: Path, options: Options) -> Trace:
    """Azure LLM inference traces: ``TIMESTAMP,ContextTokens,GeneratedTokens``.

    Wall-clock times with seven digits of fraction, with or without a zone; no block ids and no
    sessions.  Source: https://github.com/Azure/AzurePublicDataset.
    """
    report = LoadReport()
    collector = Collector(source, "azure", unit="s", session_clock="shared", report=report)
    for path in files:
        columns: list[int] | None = None
        for number, line in read_lines(path):
            try:
                fields = line.decode().split(",")
            except UnicodeDecodeError:
                fields = []
            if columns is None:
                names = [field.strip().strip('"') for field in fields]
                missing = [name for name in _AZURE if name not in names]
                if missing:
                    raise TraceError(f"the header lacks {', '.join(missing)}", path, number)
                columns = [names.index(name) for name in _AZURE]
                continue
            try:
                if len(fields) <= max(columns):
                    raise BadLineError(f"{len(fields)} fields; {max(columns) + 1} are needed")
                stamp, prompt, output = (fields[index].strip().strip('"') for index in columns)
                record = Record(
                    line=number,
                    arrival=_wall_clock_s(stamp),
                    prompt_tokens=_count(prompt, "ContextTokens"),
                    output_tokens=_count(output, "GeneratedTokens"),
                )
            except BadLineError as error:
                if options.on_error == "raise":
                    raise TraceError(str(error), path, number) from None
                report.add("dropped", "a line that cannot be read", number)
                continue
            collector.extend([record])
    return collector.build()


def _count(text: str, name: str) -> int:
    if not (text.isascii() and text.isdigit() and len(text) <= 10 and int(text) <= MAX_TOKENS):
        raise BadLineError(f"{name} is {text[:40]!r}; an integer up to {MAX_TOKENS:,} is needed")
    return int(text)


def _wall_clock_s(text: str) -> float:
    """Seconds since 1970; ``%f`` of strptime takes six digits at most, these have seven."""
    match = _STAMP.fullmatch(text)
    if match is None:
        raise BadLineError(f"TIMESTAMP is {text[:40]!r}; YYYY-MM-DD hh:mm:ss.fffffff is needed")
    *calendar, fraction, zone = match.groups()
    try:
        year, month, day, hour, minute, second = map(int, calendar)
        moment = datetime.datetime(year, month, day, hour, minute, second, tzinfo=datetime.UTC)
    except ValueError as error:
        raise BadLineError(f"TIMESTAMP is {text!r}: {error}") from None
    offset_s = 0
    if zone not in (None, "Z"):
        hours, minutes = int(zone[1:3]), int(zone[-2:])
        offset_s = (3600 * hours + 60 * minutes) * (-1 if zone[0] == "-" else 1)
    result = moment.timestamp() - offset_s + float(fraction or 0)
    if result < 0:
        raise BadLineError(f"TIMESTAMP is {text!r}; a time after 1970 is needed")
    return result


# -- ServeGen ------------------------------------------------------------------------------------


def read_servegen(files: list[Path], source: Path, options: Options) -> Trace:
    """ServeGen: rates and length distributions of clients, from which requests are *drawn*.

    ``…-trace.csv`` has no header: window start [s], rate [1/s], cv, distribution of the gaps, its
    two parameters (shape and scale); a window without requests has an empty distribution.
    ``…-dataset.json`` beside it gives token-count distributions a (longer) window, as text of a
    Python dictionary.  Requests are drawn with ``seed``; there are no block ids and no sessions.
    Source: https://github.com/alibaba/ServeGen.
    """
    report = LoadReport()
    collector = Collector(source, "servegen", unit="s", session_clock="shared", report=report)
    seeds = np.random.SeedSequence(options.seed)
    traces = [path for path in files if path.name.endswith("-trace.csv")] or files
    drawn = 0
    for path, seed in zip(traces, seeds.spawn(len(traces)), strict=True):
        data = path.with_name(path.name.removesuffix("-trace.csv") + "-dataset.json")
        if data == path or not data.is_file():
            raise TraceError(
                f"the token distributions of this ServeGen client are missing: {data.name}", path
            )
        windows = list(_windows(path, options, report))
        lengths = _lengths(data)
        drawn += sum(math.ceil(rate * span) for _, span, rate, _, _ in windows)
        if drawn > _MAX_SAMPLED:
            raise TraceError(
                f"more than {_MAX_SAMPLED:,} requests would be drawn; take fewer clients", path
            )
        try:
            collector.extend(_draw(windows, lengths, np.random.default_rng(seed)))
        except BadLineError as error:
            raise TraceError(str(error), path) from None
    report.add("noted", "requests drawn at random from a client's rates and lengths")
    return collector.build()


Window = tuple[float, float, float, str, float]


def _windows(path: Path, options: Options, report: LoadReport) -> Iterator[Window]:
    """Start, length, rate, distribution and shape of each window; the last is as long as before."""
    rows: list[tuple[float, float, str, float]] = []
    for number, line in read_lines(path):
        try:
            fields = [field.strip() for field in line.decode("utf-8", "replace").split(",")]
            if len(fields) != 6:
                raise BadLineError(f"{len(fields)} fields; 6 are needed")
            try:
                start, rate, shape = float(fields[0]), float(fields[1]), float(fields[4])
            except ValueError:
                raise BadLineError("a field is not a number") from None
            if not (0 <= start <= 1e9 and 0 <= rate <= 1e6 and math.isfinite(shape)):
                raise BadLineError("window start, rate or shape out of range")
            if fields[3] not in _DISTRIBUTIONS:
                raise BadLineError(
                    f"distribution {fields[3]!r}; one of Gamma, Weibull, Exponential is needed"
                )
            if rate > 0 and (fields[3] == "" or (fields[3] != "Exponential" and shape <= 0)):
                raise BadLineError("a window with requests needs a distribution and a shape > 0")
            if rows and start <= rows[-1][0]:
                raise BadLineError(f"window start {start} does not follow {rows[-1][0]}")
        except BadLineError as error:
            if options.on_error == "raise":
                raise TraceError(str(error), path, number) from None
            report.add("dropped", "a line that cannot be read", number)
            continue
        rows.append((start, rate, fields[3], shape))
    for index, (start, rate, name, shape) in enumerate(rows):
        if index + 1 < len(rows):
            span = rows[index + 1][0] - start
        else:
            span = start - rows[index - 1][0] if index else 600.0
        if rate > 0:
            yield start, span, rate, name, shape


Distribution = tuple[npt.NDArray[np.int64], npt.NDArray[np.float64]]


def _lengths(path: Path) -> list[tuple[float, Distribution, Distribution]]:
    """Start of each window with its prompt and output length distributions."""
    whole = read_start(path, MAX_LINE_BYTES + 1)
    try:
        windows: Any = orjson.loads(whole)
        result = [
            (
                float(start),
                _distribution(fields["input_tokens"]),
                _distribution(fields["output_tokens"]),
            )
            for start, fields in windows.items()
            if fields
        ]
    except (ValueError, TypeError, KeyError, AttributeError, SyntaxError, RecursionError) as error:
        raise TraceError(f"not a ServeGen dataset: {error}", path, 1) from None
    if not result:
        raise TraceError("no token distributions in this file", path)
    return sorted(result, key=lambda window: window[0])


def _distribution(value: Any) -> Distribution:
    table = ast.literal_eval(value) if isinstance(value, str) else value
    if not isinstance(table, dict) or not table:
        raise BadLineError("a distribution is not a dictionary")
    values = np.array([int(float(key)) for key in table], dtype=np.int64)
    weights = np.array(list(table.values()), dtype=np.float64)
    if (values < 0).any() or (values > MAX_TOKENS).any():
        raise BadLineError("a token count out of range")
    if not np.isfinite(weights).all() or (weights < 0).any() or weights.sum() <= 0:
        raise BadLineError("weights of a distribution do not sum to something positive")
    return values, weights / weights.sum()


def _draw(
    windows: list[Window],
    lengths: list[tuple[float, Distribution, Distribution]],
    rng: np.random.Generator,
) -> Iterator[Record]:
    starts = np.array([start for start, _, _ in lengths])
    for start, span, rate, name, shape in windows:
        arrivals = start + _arrivals(span, rate, name, shape, rng)
        index = max(int(np.searchsorted(starts, start, side="right")) - 1, 0)
        _, prompts, outputs = lengths[index]
        prompt = rng.choice(prompts[0], arrivals.size, p=prompts[1])
        output = rng.choice(outputs[0], arrivals.size, p=outputs[1])
        for arrival, inputs, generated in zip(
            arrivals.tolist(), prompt.tolist(), output.tolist(), strict=True
        ):
            yield Record(-1, arrival, inputs, generated)


def _arrivals(
    span: float, rate: float, name: str, shape: float, rng: np.random.Generator
) -> npt.NDArray[np.float64]:
    """Renewal arrivals of the window: gaps of the given shape, scaled to the window's rate."""
    times = np.zeros(0)
    last = 0.0
    while last < span:
        count = int((span - last) * rate * 1.1) + 16
        if name == "Gamma":
            gaps = rng.gamma(shape, 1 / (shape * rate), count)
        elif name == "Weibull":
            gaps = rng.weibull(shape, count) / (math.gamma(1 + 1 / shape) * rate)
        else:
            gaps = rng.exponential(1 / rate, count)
        more = last + np.cumsum(gaps)
        times = np.concatenate((times, more))
        last = float(more[-1])
        if times.size > _MAX_SAMPLED or not math.isfinite(last) or last <= 0:
            raise BadLineError("gaps of this shape are too small or too large to draw")
    return times[times < span]
