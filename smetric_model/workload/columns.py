"""The one table of what a request is: columns in memory, in Parquet and in JSON lines."""

from __future__ import annotations

from dataclasses import dataclass

__all__ = ["BLOCK_COLUMNS", "REQUEST_COLUMNS", "SCHEMA_VERSION", "Column", "header_keys"]

SCHEMA_VERSION = 1


@dataclass(frozen=True)
class Column:
    """One column of a trace.

    Attributes
    ----------
    name : str
        Name, with its unit as a suffix.
    dtype : str
        Type in memory and in Parquet.
    unknown : str
        How an unknown value is written in memory (``null`` or left out in a file); empty where a
        value is required.
    meaning : str
        What it is.
    """

    name: str
    dtype: str
    unknown: str
    meaning: str


REQUEST_COLUMNS: tuple[Column, ...] = (
    Column(
        "request_id",
        "int64",
        "",
        "Row number in order of arrival, from 0. In a file: any distinct integers.",
    ),
    Column(
        "session_id",
        "int64",
        "-1",
        "Session, numbered from 0 by first arrival. In a file: any string or integer.",
    ),
    Column("turn", "int64", "-1", "Turn within the session, from 0: first turns are `turn == 0`."),
    Column(
        "parent",
        "int64",
        "-1",
        "request_id of the request this one continues, or that spawned its session; "
        "-1 for none or unknown.",
    ),
    Column(
        "arrival_s",
        "float64",
        "",
        "Arrival [s]; from the trace's start (clock shared) or the session's (clock per-session). "
        "Rows are sorted by it; ties keep the file's order.",
    ),
    Column("prompt_tokens", "int64", "", "Tokens of the prompt, cached or not; at least 1."),
    Column("output_tokens", "int64", "", "Tokens generated; 0 where the trace says so."),
    Column(
        "think_time_s",
        "float64",
        "NaN",
        "Arrival minus completion of the session's previous turn [s], at least 0.",
    ),
    Column("e2e_s", "float64", "NaN", "Arrival to completion as the trace recorded it [s]."),
    Column(
        "trigger",
        "category",
        "<NA>",
        "Who caused it: user, agent, compaction; recorded or derived by the reader.",
    ),
    Column("model", "category", "<NA>", "Model named by the trace; KV is never shared across."),
    Column("source_line", "int64", "-1", "Line of the file (row, for Parquet) from which it came."),
)

BLOCK_COLUMNS: tuple[Column, ...] = (
    Column(
        "block_first",
        "list of int64",
        "null",
        "The prompt's KV blocks as runs of consecutive ids: the first id of each run.",
    ),
    Column("block_count", "list of int64", "null", "Blocks of each run."),
    Column(
        "block_ids",
        "list of int64",
        "null",
        "In a file, instead of the two above: every id. An id may name the block's content or its "
        "whole prefix; ids are shared by the whole file. The last block may be partly filled, or "
        "left out.",
    ),
)


def header_keys() -> dict[str, str]:
    """Keys of the header: first line of JSON lines, key ``smetric_trace`` of Parquet's metadata.

    Returns
    -------
    dict of str to str
        Key and meaning.
    """
    return {
        "smetric_trace": f"Version of this schema: {SCHEMA_VERSION}.",
        "block_tokens": "Tokens of a KV block; null where the trace has no blocks.",
        "session_clock": "shared: one clock for all; per-session: every session starts at 0.",
        "format": "Format from which the trace was converted.",
        "source": "Name of the file from which the trace was converted.",
    }
