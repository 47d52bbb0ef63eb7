"""Parquet batches of this package's schema, taken column by column where nothing needs repair.

A batch in which every value is sound goes to the collector as arrays; any other is left to the
row-by-row reader, which knows what to say about it.
"""

from __future__ import annotations

from typing import Any

import numpy as np
import numpy.typing as npt

from smetric_model.workload.formats._collect import Collector
from smetric_model.workload.formats._record import MAX_STAMP, MAX_TOKENS

__all__ = ["take_batch"]

IntArray = npt.NDArray[np.int64]


class _UnsoundError(Exception):
    """The batch needs the row-by-row reader."""


def take_batch(batch: Any, first_row: int, collector: Collector) -> bool:
    """Hand a record batch to the collector.

    Parameters
    ----------
    batch : pyarrow.RecordBatch
        Some rows of the file.
    first_row : int
        Number of the first, counted from 1.
    collector : Collector
        Takes the columns.

    Returns
    -------
    bool
        False if the batch was left alone because some value is missing, odd or out of range.
    """
    import pyarrow as pa

    try:
        columns, runs = _columns(batch, first_row, collector.block_tokens)
    except (_UnsoundError, pa.ArrowException, ValueError):
        return False
    collector.extend_columns(columns, runs)
    return True


def _columns(
    batch: Any, first_row: int, block_tokens: int | None
) -> tuple[dict[str, Any], tuple[IntArray, IntArray, IntArray] | None]:
    rows = batch.num_rows
    prompt = _integers(batch, "prompt_tokens", 1, MAX_TOKENS)
    columns: dict[str, Any] = {
        "line": first_row + np.arange(rows, dtype=np.int64),
        "arrival": _floats(batch, "arrival_s", required=True),
        "prompt_tokens": prompt,
        "output_tokens": _integers(batch, "output_tokens", 0, MAX_TOKENS),
        "turn": _integers(batch, "turn", 0, MAX_TOKENS, unknown=-1),
        "think_time_s": _floats(batch, "think_time_s"),
        "e2e_s": _floats(batch, "e2e_s"),
        "key": _plain(batch, "request_id", integer=True),
        "parent": [
            None if value is None or value < 0 else value
            for value in _plain(batch, "parent", integer=True)
        ],
        "session": [None if value is None else str(value) for value in _plain(batch, "session_id")],
        "trigger": _plain(batch, "trigger"),
        "model": _plain(batch, "model"),
    }
    return columns, _runs(batch, prompt, block_tokens)


def _column(batch: Any, name: str) -> Any:
    index = batch.schema.get_field_index(name)
    return None if index < 0 else batch.column(index)


def _integers(batch: Any, name: str, low: int, high: int, unknown: int | None = None) -> IntArray:
    import pyarrow as pa

    column = _column(batch, name)
    if column is None and unknown is not None:
        return np.full(batch.num_rows, unknown, dtype=np.int64)
    if column is None or not pa.types.is_integer(column.type):
        raise _UnsoundError
    if column.null_count and unknown is None:
        raise _UnsoundError
    present = np.asarray(column.is_valid().to_numpy(zero_copy_only=False))
    values: IntArray = column.cast(pa.int64()).fill_null(low).to_numpy(zero_copy_only=False)
    if ((values < low) | (values > high)).any():
        raise _UnsoundError
    return values if unknown is None else np.where(present, values, unknown)


def _floats(batch: Any, name: str, required: bool = False) -> npt.NDArray[np.float64]:
    import pyarrow as pa

    column = _column(batch, name)
    if column is None and not required:
        return np.full(batch.num_rows, np.nan)
    if column is None or (required and column.null_count):
        raise _UnsoundError
    if not (pa.types.is_floating(column.type) or pa.types.is_integer(column.type)):
        raise _UnsoundError
    values: npt.NDArray[np.float64] = column.cast(pa.float64()).to_numpy(zero_copy_only=False)
    known = column.is_valid().to_numpy(zero_copy_only=False)
    if not ((values >= 0) & (values <= MAX_STAMP))[known].all():  # also refuses nan
        raise _UnsoundError
    return values


def _plain(batch: Any, name: str, integer: bool = False) -> list[Any]:
    import pyarrow as pa

    column = _column(batch, name)
    if column is None:
        return [None] * batch.num_rows
    kind = column.type
    text = pa.types.is_string(kind) or pa.types.is_large_string(kind)
    number = pa.types.is_integer(kind)
    allowed = number if integer else text or (number and name == "session_id")
    if not (allowed or pa.types.is_null(kind)):
        raise _UnsoundError
    result: list[Any] = column.to_pylist()
    return result


def _runs(
    batch: Any, prompt: IntArray, block_tokens: int | None
) -> tuple[IntArray, IntArray, IntArray] | None:
    """Offsets, first ids and lengths of the runs; None where the batch has no blocks."""
    first, count = _column(batch, "block_first"), _column(batch, "block_count")
    if first is None and _column(batch, "block_ids") is None:
        return None
    if first is None or count is None or block_tokens is None:
        raise _UnsoundError
    first_offsets, first_values = _lists(first)
    count_offsets, count_values = _lists(count)
    if not np.array_equal(first_offsets, count_offsets):
        raise _UnsoundError
    if (count_values < 1).any() or (count_values > MAX_TOKENS).any():
        raise _UnsoundError
    sums = np.concatenate(([0], np.cumsum(count_values)))
    blocks = sums[first_offsets[1:]] - sums[first_offsets[:-1]]
    most = -(-prompt // block_tokens)
    if (blocks > most).any() or (blocks < most - 1).any():
        raise _UnsoundError
    return first_offsets, first_values, count_values


def _lists(column: Any) -> tuple[IntArray, IntArray]:
    import pyarrow as pa
    import pyarrow.compute as pc

    kind = column.type
    if not (pa.types.is_list(kind) or pa.types.is_large_list(kind)):
        raise _UnsoundError
    values = column.flatten()
    if column.null_count or values.null_count or not pa.types.is_integer(values.type):
        raise _UnsoundError
    lengths = pc.list_value_length(column).to_numpy(zero_copy_only=False)
    offsets = np.concatenate(([0], np.cumsum(lengths, dtype=np.int64)))
    return offsets, values.cast(pa.int64()).to_numpy(zero_copy_only=False)
