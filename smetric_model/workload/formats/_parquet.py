"""Rows of Parquet files, whatever schema they have."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

from smetric_model.errors import TraceError

__all__ = ["MAGIC", "metadata_value", "parquet_columns", "parquet_rows"]

MAGIC = b"PAR1"
_KEY = b"smetric_trace"


def _open(path: Path) -> Any:
    import pyarrow as pa
    import pyarrow.parquet as pq

    try:
        return pq.ParquetFile(path)
    except (pa.ArrowException, OSError) as error:
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


def parquet_rows(path: Path, batch_rows: int) -> Iterator[tuple[int, dict[str, Any]]]:
    """Rows of a file as dictionaries, counted from 1, a batch in memory at a time.

    Raises
    ------
    TraceError
        If the file cannot be read.
    """
    import pyarrow as pa

    number = 0
    with _open(path) as file:
        try:
            for batch in file.iter_batches(batch_size=batch_rows):
                for row in batch.to_pylist():
                    number += 1
                    yield number, row
        except (pa.ArrowException, OSError, UnicodeDecodeError, ValueError) as error:
            raise TraceError(
                f"not readable as Parquet: {_first_line(error)}", path, number + 1
            ) from None
