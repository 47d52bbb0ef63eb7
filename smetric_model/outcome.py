"""Outcome: what every verb answers, one row of the common schema.

An outcome is a read-only mapping from column name to value, in the schema's order, with the
per-request and per-instance tables behind it where the verb has them.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Iterator, Mapping
from difflib import get_close_matches
from typing import TYPE_CHECKING, Any

from smetric_model.errors import SolveError, SpecError, UnstableError
from smetric_model.identities import Violation, check_identities
from smetric_model.schema import VERBS, Column, imbalance_schema_column, load_schema

if TYPE_CHECKING:
    import pandas as pd

    from smetric_model.scenario import Scenario

__all__ = [
    "Outcome",
    "Value",
    "Violation",
    "check_identities",
    "outcomes_frame",
    "unstable_outcome",
]

#: a number (NaN where missing), a text (empty where missing), a boolean (None where missing)
Value = float | int | str | bool | None


class Outcome(Mapping[str, Value]):
    """One row of the schema: ``outcome["ttft_p50_s"]``.

    Every column of the schema is there; those not given are missing: NaN (numbers), empty
    (texts), None (booleans).  Imbalance columns of other windows than the schema lists may be
    given too and come last.  Outcomes do not change: :meth:`replace` makes another.

    Parameters
    ----------
    values : mapping of str to value
        Columns of ``data/schema.toml`` with their values; None stands for missing.
    requests, instances : DataFrame, optional
        Tables behind the row, one line a request or an instance, with the schema's column names
        (``load_schema("requests")``) and more where the verb has more.

    Raises
    ------
    SpecError
        If a key is not in the schema, or a value is not of its column's kind.

    Examples
    --------
    >>> from smetric_model import Outcome
    >>> outcome = Outcome({"verb": "predict", "ttft_p50_s": 1.5})
    >>> outcome["ttft_p50_s"], outcome["ttft_p90_s"]  # what is not given is missing
    (1.5, nan)
    """

    __slots__ = ("_instances", "_requests", "_values")

    _values: dict[str, Value]
    _requests: pd.DataFrame | None
    _instances: pd.DataFrame | None

    def __init__(
        self,
        values: Mapping[str, Any],
        *,
        requests: pd.DataFrame | None = None,
        instances: pd.DataFrame | None = None,
    ):
        columns = dict(load_schema())
        for key in values:
            if key not in columns:
                columns[key] = _extra_column(key)
        row = {name: _value(column, values.get(name)) for name, column in columns.items()}
        if row["verb"] and row["verb"] not in VERBS:
            raise SpecError(f"outcome: verb = {row['verb']!r}: one of {', '.join(VERBS)}")
        object.__setattr__(self, "_values", row)
        object.__setattr__(self, "_requests", _copy(requests))
        object.__setattr__(self, "_instances", _copy(instances))

    def __getitem__(self, key: str) -> Value:
        try:
            return self._values[key]
        except KeyError:
            raise KeyError(_unknown(key)) from None

    def __iter__(self) -> Iterator[str]:
        return iter(self._values)

    def __len__(self) -> int:
        return len(self._values)

    def __setattr__(self, name: str, value: Any) -> None:
        raise AttributeError("an outcome does not change; outcome.replace(...) makes another")

    def __delattr__(self, name: str) -> None:
        raise AttributeError("an outcome does not change; outcome.replace(...) makes another")

    def __reduce__(self) -> tuple[Any, ...]:
        return _rebuild, (self._values, self._requests, self._instances)

    def __repr__(self) -> str:
        known = {k: v for k, v in self._values.items() if not _is_missing(v)}
        return f"Outcome({known!r})"

    @property
    def requests(self) -> pd.DataFrame | None:
        """Table of the requests that arrive in the window, or None; a copy."""
        return _copy(self._requests)

    @property
    def instances(self) -> pd.DataFrame | None:
        """Table of the instances, or None; a copy."""
        return _copy(self._instances)

    def number(self, key: str) -> float:
        """Value of a number's column, as a float.

        Parameters
        ----------
        key : str
            A column of kind number.

        Returns
        -------
        float
            The value; NaN where missing.

        Raises
        ------
        KeyError
            If there is no such column.
        SpecError
            If the column is a text or a boolean.
        """
        value = self[key]
        if isinstance(value, bool | str) or value is None:
            raise SpecError(f"outcome column {key!r} holds no number but {value!r}")
        return float(value)

    def replace(self, **changes: Any) -> Outcome:
        """Make another outcome with some columns changed, and the same tables.

        Parameters
        ----------
        **changes
            Columns and their new values.

        Returns
        -------
        Outcome
        """
        return Outcome(
            {**self._values, **changes}, requests=self._requests, instances=self._instances
        )

    def to_dict(self) -> dict[str, Value]:
        """Row ready for JSON: NaN becomes None, an infinite number the text ``"inf"``.

        Returns
        -------
        dict
            In the schema's order, without the tables.
        """
        return {key: _json_value(value) for key, value in self._values.items()}

    def to_json(self) -> str:
        """Row as one JSON object, see :meth:`to_dict`.

        Returns
        -------
        str
        """
        import orjson

        return orjson.dumps(self.to_dict(), option=orjson.OPT_INDENT_2).decode()

    @classmethod
    def from_json(cls, text: str | bytes) -> Outcome:
        """Outcome of a JSON object that :meth:`to_json` wrote (or any dict of :meth:`to_dict`).

        Parameters
        ----------
        text : str or bytes

        Returns
        -------
        Outcome
            Without tables.

        Raises
        ------
        SpecError
            If the text is not a JSON object of the schema's columns.
        """
        import orjson

        try:
            values = orjson.loads(text)
        except orjson.JSONDecodeError as error:
            raise SpecError(f"outcome: not JSON: {error}") from None
        if not isinstance(values, dict):
            raise SpecError(f"outcome: a JSON object is needed, not {type(values).__name__}")
        return cls(values)

    def to_series(self) -> pd.Series[Any]:
        """Row as a pandas Series.

        Returns
        -------
        Series
            Index: column names; dtype object, since columns differ in kind.
        """
        import pandas as pd

        return pd.Series(self._values, dtype=object, name=str(self._values["scenario_id"]))


def outcomes_frame(outcomes: Iterable[Outcome]) -> pd.DataFrame:
    """Outcomes side by side, one row each.

    Parameters
    ----------
    outcomes : iterable of Outcome

    Returns
    -------
    DataFrame
        Columns of the schema in its order, then imbalance columns of other windows; numbers as
        float64, texts and booleans as object.
    """
    import pandas as pd

    rows = list(outcomes)
    columns: dict[str, Column] = dict(load_schema())
    for row in rows:
        for key in row:
            if key not in columns:
                columns[key] = imbalance_schema_column(key)
    return pd.DataFrame(
        {
            name: pd.Series(
                [_value(column, row.get(name)) for row in rows],
                dtype="float64" if column.kind == "number" else object,
            )
            for name, column in columns.items()
        }
    )


def unstable_outcome(scenario: Scenario, verb: str, error: UnstableError | SolveError) -> Outcome:
    """Make the row of a scenario that has no steady state, or whose equations were not solved.

    Parameters
    ----------
    scenario : Scenario
    verb : str
        Who was asked; empty where it is none of the schema's.
    error : UnstableError or SolveError
        What it said.

    Returns
    -------
    Outcome
        ``valid`` is False, ``binding_resource`` what saturates (empty where the equations were
        not solved), ``note`` why; the figures are missing.
    """
    work = scenario.workload
    return Outcome(
        {
            "scenario_id": scenario.scenario_id,
            "verb": verb,
            "policy": scenario.router.policy,
            "seed": scenario.seed,
            "arrival_rate_rps": None if work.rate_rps == "trace" else work.rate_rps,
            "warmup_s": work.warmup_s,
            "window_s": work.window_s,
            "binding_resource": getattr(error, "resource", ""),
            "valid": False,
            "note": str(error),
        }
    )


def _rebuild(
    values: Mapping[str, Any], requests: pd.DataFrame | None, instances: pd.DataFrame | None
) -> Outcome:
    return Outcome(values, requests=requests, instances=instances)


def _extra_column(key: str) -> Column:
    try:
        return imbalance_schema_column(key)
    except SpecError as error:
        if str(key).startswith("imbalance_"):
            raise
        raise SpecError(f"outcome: {_unknown(key)}") from error


def _unknown(key: object) -> str:
    close = get_close_matches(str(key), load_schema(), n=1)
    hint = f"; did you mean {close[0]!r}?" if close else "; data/schema.toml lists them"
    return f"{key!r} is not a column of the schema{hint}"


def _value(column: Column, value: Any) -> Value:
    """``value`` as a plain Python object of the column's kind, missing where None."""
    if hasattr(value, "item") and not isinstance(value, str):
        value = value.item()  # numpy scalars
    if column.kind == "text":
        if value is None:
            return ""
        if isinstance(value, str):
            return value
    elif column.kind == "boolean":
        if value is None or isinstance(value, bool):
            return value
    else:
        if value is None:
            return math.nan
        if value in ("inf", "-inf") and isinstance(value, str):
            return float(value)
        if isinstance(value, int) and not isinstance(value, bool):
            return value
        if isinstance(value, float):
            # One NaN object for all, so that equal outcomes compare equal.
            return math.nan if math.isnan(value) else value
    raise SpecError(f"outcome: {column.name} = {value!r}: a {column.kind} is needed")


def _json_value(value: Value) -> Value:
    if isinstance(value, float):
        if math.isnan(value):
            return None
        if math.isinf(value):
            return "inf" if value > 0 else "-inf"
    return value


def _is_missing(value: Value) -> bool:
    return value is None or value == "" or (isinstance(value, float) and math.isnan(value))


def _copy(frame: pd.DataFrame | None) -> pd.DataFrame | None:
    return None if frame is None else frame.copy()
