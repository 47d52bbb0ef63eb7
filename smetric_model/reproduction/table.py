"""The result table: one row a point, load, seed and verb.

Columns that say which row it is (:data:`KEYS`, with ``rate_rps``, ``tier_ratio``, ``overload`` and
``hit_ratio`` beside them), then ``goodput_tps``, the set-up's tokens within SLO, then columns of an
outcome under their own names (:data:`MEASURES`).
"""

from __future__ import annotations

import json
import math
from collections.abc import Iterable
from pathlib import Path
from typing import TYPE_CHECKING, Any

from smetric_model.errors import SpecError

if TYPE_CHECKING:
    import pandas as pd

    from smetric_model.outcome import Outcome

__all__ = [
    "KEYS",
    "MEASURES",
    "TEXTS",
    "append_rows",
    "frame",
    "measures_of",
    "read_results",
    "read_rows",
    "write_results",
]

#: what identifies a row
KEYS = (
    "setup",
    "preset",
    "study",  # sweep, router, sensitivity
    "assumption",  # what differs from the sweep; empty there
    "variant",
    "policy",
    "tier",  # none, 0.8x, ... full
    "load",  # in multiples of 1.0x
    "seed",
    "verb",  # simulate, predict
)
#: what the keys stand for
_MEANINGS = ("rate_rps", "tier_ratio", "overload", "hit_ratio", "goodput_tps")

_SECONDS = [
    f"{name}_{statistic}_s"
    for name in ("ttft", "tpot")
    for statistic in ("mean", "p50", "p90", "p95", "p99")
]
#: columns of an outcome that are kept
MEASURES = (
    "arrival_rate_rps",
    "requests",
    "unservable_ratio",
    "within_slo_ratio",
    "inflight_requests_mean",
    "total_tps",
    "prompt_tps",
    "total_within_slo_tps",
    "prompt_within_slo_tps",
    *_SECONDS,
    "queue_mean_s",
    "fetch_mean_s",
    "transfer_wait_p99_s",
    "local_ratio",
    "global_ratio",
    "recomputed_ratio",
    "imbalance_processed_tokens_30s_mean",
    "imbalance_processed_tokens_30s_p75",
    "imbalance_processed_tokens_30s_p90",
    "imbalance_processed_tokens_30s_p99",
    "imbalance_processed_tokens_60s_mean",
    "imbalance_inflight_tokens_60s_mean",
    "imbalance_unprefilled_tokens_60s_mean",
    "imbalance_requests_60s_mean",
    "return_to_first_ratio",
    "return_to_previous_ratio",
    "migrated_overload_ratio",
    "migrated_evicted_ratio",
    "migrated_other_ratio",
    "compute_utilisation_ratio",
    "kv_utilisation_ratio",
    "nic_in_utilisation_ratio",
    "nic_out_utilisation_ratio",
    "pcie_utilisation_ratio",
)
#: columns of texts and booleans
TEXTS = ("binding_resource", "valid")

_DIGITS = 4
_SHIPPED = "reproduction/results.parquet"


def measures_of(outcome: Outcome, goodput: str) -> dict[str, Any]:
    """Return what the table keeps of an outcome.

    Parameters
    ----------
    outcome : Outcome
    goodput : str
        Its column that counts as goodput.

    Returns
    -------
    dict
        Missing values are None.
    """
    values: dict[str, Any] = {"goodput_tps": _number(outcome, goodput)}
    values |= {name: _number(outcome, name) for name in MEASURES}
    return values | {name: outcome[name] for name in TEXTS}


def _number(outcome: Outcome, name: str) -> float | None:
    value = outcome.number(name) if name in outcome else math.nan
    # far below what a seed changes, and a file of half the size
    return float(f"{value:.{_DIGITS}g}") if math.isfinite(value) else None


def append_rows(path: Path, rows: Iterable[dict[str, Any]]) -> None:
    """Add rows to a file of one JSON object a line.

    Parameters
    ----------
    path : Path
        Made if missing.
    rows : iterable of dict
    """
    text = "".join(json.dumps(row) + "\n" for row in rows)
    with path.open("a", encoding="utf-8") as file:
        file.write(text)


def read_rows(path: Path) -> list[dict[str, Any]]:
    """Read the rows of a file; a last line that was cut short is left out.

    Parameters
    ----------
    path : Path
        Of :func:`append_rows`; none, if there is no such file.
    """
    rows: list[dict[str, Any]] = []
    if path.exists():
        for line in path.read_text(encoding="utf-8").splitlines():
            try:
                rows.append(json.loads(line))
            except json.JSONDecodeError:
                continue
    return rows


def frame(rows: Iterable[dict[str, Any]]) -> pd.DataFrame:
    """Make the result table of rows.

    Parameters
    ----------
    rows : iterable of dict

    Returns
    -------
    DataFrame
        Columns in the table's order, sorted by keys, no row twice; missing numbers are NaN.
    """
    import pandas as pd

    names = [*KEYS, *_MEANINGS, *MEASURES, *TEXTS]
    table = pd.DataFrame(list(rows), columns=names)
    for name in (*_MEANINGS, *MEASURES, "load"):
        table[name] = pd.to_numeric(table[name]).astype("float64")
    table = table.drop_duplicates(list(KEYS), keep="last").sort_values(list(KEYS))
    return table.reset_index(drop=True)


def write_results(table: pd.DataFrame, path: Path, commit: str) -> None:
    """Write the result table, in single precision.

    Parameters
    ----------
    table : DataFrame
        Of :func:`frame`.
    path : Path
        A Parquet file.
    commit : str
        Commit of the sources that made it; kept as metadata of the file.
    """
    import pyarrow as pa
    import pyarrow.parquet as pq

    small = dict.fromkeys((*_MEANINGS, *MEASURES), "float32")
    content = pa.Table.from_pandas(table.astype(small), preserve_index=False)
    content = content.replace_schema_metadata(
        {**(content.schema.metadata or {}), b"commit": commit.encode()}
    )
    pq.write_table(content, path, compression="zstd", compression_level=19)


def read_results(path: str | Path | None = None) -> pd.DataFrame:
    """Read a result table.

    Parameters
    ----------
    path : str or Path, optional
        Of a run; by default the one that is shipped.

    Returns
    -------
    DataFrame
        One row a point, load, seed and verb; ``attrs["commit"]`` tells what made it.

    Raises
    ------
    SpecError
        If there is no such file, or it is no result table.
    """
    import pyarrow as pa
    import pyarrow.parquet as pq

    from smetric_model.datafiles import data_dir

    file = Path(path) if path is not None else data_dir() / _SHIPPED
    try:
        content = pq.read_table(file)
    except FileNotFoundError:
        raise SpecError(f"{file}: no such result table") from None
    except (OSError, pa.ArrowInvalid) as error:
        raise SpecError(f"{file}: no result table: {error}") from None
    lacking = [name for name in KEYS if name not in content.column_names]
    if lacking:
        raise SpecError(f"{file}: no result table: column {lacking[0]} is missing")
    table: pd.DataFrame = content.to_pandas()
    table.attrs["commit"] = (content.schema.metadata or {}).get(b"commit", b"").decode()
    return table
