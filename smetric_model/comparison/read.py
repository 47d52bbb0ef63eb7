"""Rows to be compared: outcomes, tables, and the files that the verbs and ``sweep`` write."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any

from smetric_model.errors import SpecError
from smetric_model.outcome import Outcome, outcomes_frame
from smetric_model.schema import load_schema

if TYPE_CHECKING:
    import pandas as pd

__all__ = ["read_rows", "rows_of"]

Item = Any  # Outcome, DataFrame, or path


def rows_of(items: Item | Iterable[Item] | Mapping[str, Item]) -> pd.DataFrame:
    """One table of all rows, with a column ``source`` that says where each is from.

    Parameters
    ----------
    items : Outcome, DataFrame, path, or several of them
        As a mapping, by name; else files are called as they are, others by their position.

    Returns
    -------
    DataFrame

    Raises
    ------
    SpecError
        If there is nothing to compare, or an item is no outcome.
    """
    import pandas as pd

    named: list[tuple[str, Item]]
    if isinstance(items, Mapping) and not isinstance(items, Outcome):
        named = [(str(name), item) for name, item in items.items()]
    else:
        if isinstance(items, Outcome | str | Path | pd.DataFrame):
            items = [items]
        every = list(items)
        named = [(_name(item, number), item) for number, item in enumerate(every)]
        paths = [name for name, _ in named]
        if len(set(paths)) < len(paths):  # outcome.json of several folders
            named = [
                (str(item) if isinstance(item, str | Path) else f"{name} ({k})", item)
                for k, (name, item) in enumerate(named)
            ]
    frames = []
    for name, item in named:
        if isinstance(item, str | Path):
            frame = read_rows(Path(item))
        elif isinstance(item, Outcome):
            frame = outcomes_frame([item])
        elif isinstance(item, pd.DataFrame):
            frame = item.copy()
        else:
            raise SpecError(f"compare: {name}: an Outcome, a table or a file, not {item!r}")
        frame = frame.drop(columns="source", errors="ignore")
        source = pd.Series(name, index=frame.index, name="source", dtype=object)
        frames.append(pd.concat([frame, source], axis=1))
    if not frames or not sum(map(len, frames)):
        raise SpecError("compare: no rows to compare")
    for (name, _), frame in zip(named, frames, strict=True):
        if not any(
            n in frame and c.kind == "number" and c.group not in ("", "identity")
            for n, c in load_schema().items()
        ):
            raise SpecError(
                f"compare: {name} has no column of the schema; docs/schema.md lists them"
            )
    rows = pd.concat([frame.astype(object) for frame in frames], ignore_index=True)
    schema = load_schema()
    # made anew in one go: inserting column by column fragments the table
    return pd.DataFrame(
        {
            str(name): (
                pd.to_numeric(column, errors="coerce").astype(float)
                if name in schema and schema[str(name)].kind == "number"
                else column
            )
            for name, column in rows.items()
        }
    )


def read_rows(path: Path) -> pd.DataFrame:
    """Rows of a file.

    Parameters
    ----------
    path : Path
        JSON of an outcome, of several, or of ``sweep``; CSV; Parquet; or a folder that ``simulate``
        or ``sweep`` wrote.

    Returns
    -------
    DataFrame

    Raises
    ------
    SpecError
        If the file is none of these.
    """
    import pandas as pd

    if path.is_dir():
        for name in ("rows.parquet", "rows.csv", "outcome.json"):
            if (path / name).is_file():
                return read_rows(path / name)
        raise SpecError(f"compare: {path}: no rows.parquet, rows.csv or outcome.json in it")
    try:
        if path.suffix == ".parquet":
            return pd.read_parquet(path)
        if path.suffix == ".csv":
            return pd.read_csv(path, keep_default_na=False, na_values=["", "nan", "NaN"])
        if path.suffix == ".json":
            return _of_json(path)
    except FileNotFoundError:
        raise SpecError(f"compare: {path}: no such file") from None
    except SpecError:
        raise
    except Exception as error:  # each reader has errors of its own
        line = (str(error).splitlines() or [""])[0]
        raise SpecError(f"compare: {path} cannot be read: {line}") from None
    raise SpecError(f"compare: {path}: a .json, .csv or .parquet file, or a folder, is needed")


def _of_json(path: Path) -> pd.DataFrame:
    import orjson
    import pandas as pd

    content = orjson.loads(path.read_bytes())
    if isinstance(content, dict):
        for key in ("rows", "outcome"):  # of sweep, of predict --find and bound
            if key in content:
                content = content[key]
                break
    rows = content if isinstance(content, list) else [content]
    if not rows or not all(isinstance(row, dict) for row in rows):
        raise SpecError(f"compare: {path}: no outcome, and no list of outcomes")
    return pd.DataFrame(rows)


def _name(item: Item, number: int) -> str:
    if isinstance(item, str | Path):
        path = Path(item)
        return path.parent.name if path.name == "outcome.json" and path.parent.name else path.stem
    return f"{number + 1}"
