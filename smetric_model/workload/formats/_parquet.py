"""Rows of Parquet files, whatever schema they have."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

from smetric_model.errors import TraceError

__all__ = ["MAGIC", "metadata_value", "parquet_batches", "parquet_columns", "parquet_rows"]

MAGIC = b"PAR1"
_KEY = b"smetric_trace"


def _open(path: Path) -> Any:
    import pyarrow as pa
    import pyarrow.parquet as pq

    try:
        file = pq.ParquetFile(path)
        _ = file.schema_arrow.names, file.schema_arrow.metadata  # names may not be UTF-8
        return file
    except (pa.ArrowException, OSError, ValueError) as error:
        raise TraceError(f"not readable as Parquet: {_first_line(error)}", path) from None


def _first_line(error: Exception) -> str:
    lines = str(error).splitlines()
    return lines[0][:300] if lines else type(error).__name__


def metadata_value(path: Path) -> bytes | None:
    """Header of this package's schema in the file's metadata; None where there is none."""
    with _open(path) as file:
        value: bytes | None = (file.schema_arrow.metadata or {}).get(_KEY)
    return value


def parquet_columns(path: Path) -> list[str]:
    """Names of the top-level columns."""
    with _open(path) as file:
        return [str(name) for name in file.schema_arrow.names]


def parquet_batches(path: Path, batch_rows: int) -> Iterator[tuple[int, Any]]:
    """Record batches of a file, each with the number of its first row, counted from 1.

    Raises
    ------
    TraceError
        If the file cannot be read.
    """
    import pyarrow as pa

    number = 1
    with _open(path) as file:
        try:
            for batch in file.iter_batches(batch_size=batch_rows):
                yield number, batch
                number += batch.num_rows
        except (pa.ArrowException, OSError, ValueError) as error:
            if isinstance(error, TraceError):
                raise
            raise TraceError(
                f"not readable as Parquet: {_first_line(error)}", path, number
            ) from None


def parquet_rows(path: Path, batch_rows: int) -> Iterator[tuple[int, dict[str, Any]]]:
    """Rows of a file as dictionaries, counted from 1, a batch in memory at a time.

    Raises
    ------
    TraceError
        If the file cannot be read.
    """
    for number, batch in parquet_batches(path, batch_rows):
        try:
            rows = batch.to_pylist()
        except ValueError as error:  # text that is not UTF-8
            raise TraceError(
                f"not readable as Parquet: {_first_line(error)}", path, number
            ) from None
        yield from enumerate(rows, number)
