"""Points of a sweep: which scenarios, under which verb, in which order."""

from __future__ import annotations

import itertools
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Literal

from smetric_model.errors import SpecError
from smetric_model.scenario import Scenario

if TYPE_CHECKING:
    import pandas as pd

__all__ = ["Design", "Point", "check_keys", "points_of", "scenario_of", "valid_keys"]

Design = Literal["product", "zip"]


@dataclass(frozen=True, slots=True)
class Point:
    """One row to be: a scenario's name, changed keys, verb.

    Parameters
    ----------
    scenario : str
        Name among the base scenarios; empty where there is only one.
    changes : tuple of (str, value)
        Dotted key and value, in the order of the sweep, the seed last.
    verb : int
        Position among the verbs.
    """

    scenario: str
    changes: tuple[tuple[str, Any], ...]
    verb: int


def points_of(
    names: Sequence[str],
    over: Mapping[str, Iterable[Any]] | pd.DataFrame | None,
    verbs: int,
    seeds: Sequence[int] | None,
    design: Design,
) -> list[Point]:
    """List the points of a sweep, seeds fastest, then verbs, then keys, then scenarios.

    Parameters
    ----------
    names : sequence of str
        Of the base scenarios.
    over : mapping or DataFrame
        Values by dotted key; or one line a point and one column a key.
    verbs : int
        How many verbs.
    seeds : sequence of int, optional
        None: the scenario's own seed.
    design : {"product", "zip"}
        All combinations, or the values at the same position.

    Returns
    -------
    list of Point

    Raises
    ------
    SpecError
        If there is nothing to run, the design is unknown, lengths differ, or a key stands twice.
    """
    combinations = list(_combinations(over, design))
    if seeds is not None:
        if not seeds:
            raise SpecError("sweep: seeds is empty; at least one is needed")
        if len(set(seeds)) < len(seeds):
            raise SpecError(f"sweep: seeds = {list(seeds)}: each seed once")
        if any(key == "seed" for combination in combinations for key, _ in combination):
            raise SpecError("sweep: 'seed' is among the keys, and seeds are given: one of them")
    if not combinations or not names or not verbs:
        raise SpecError("sweep: no point to run; a scenario, a verb and values are needed")
    tails: list[tuple[tuple[str, Any], ...]] = [()]
    if seeds is not None:
        tails = [(("seed", int(seed)),) for seed in seeds]
    return [
        Point(name, combination + tail, verb)
        for name in names
        for combination in combinations
        for verb in range(verbs)
        for tail in tails
    ]


def scenario_of(base: Scenario, point: Point) -> Scenario:
    """Make the scenario of a point.

    Parameters
    ----------
    base : Scenario
    point : Point

    Returns
    -------
    Scenario

    Raises
    ------
    SpecError
        If the keys or values are wrong.
    """
    return base.replace(**dict(point.changes)) if point.changes else base


def check_keys(keys: Iterable[str]) -> None:
    """Refuse keys that a scenario does not have.

    Parameters
    ----------
    keys : iterable of str
        Dotted.

    Raises
    ------
    SpecError
        Names the key and the valid ones nearby.
    """
    from difflib import get_close_matches

    valid = valid_keys()
    wrong = []
    for key in keys:
        if key in valid:
            continue
        section = key.partition(".")[0]
        close = get_close_matches(key, valid, n=3, cutoff=0.5)
        beside = [name for name in valid if name.startswith(section + ".")]
        hint = f"did you mean {' or '.join(close)}?" if close else ""
        if beside:
            hint += f"{' ' if hint else ''}[{section}] has {', '.join(beside)}"
        wrong.append(f"sweep: {key!r} is not a key of a scenario; {hint or _sections(valid)}")
    if wrong:
        raise SpecError("\n".join(wrong))


def valid_keys() -> list[str]:
    """List the dotted keys that can be swept.

    Returns
    -------
    list of str
        In the order of the scenario file.
    """
    keys = []
    for name, field in Scenario.model_fields.items():
        inner = getattr(field.annotation, "model_fields", None)
        if inner is not None:
            keys += [f"{name}.{key}" for key in inner]
        elif name not in ("groups", "failures"):  # lists of tables
            keys.append(name)
    return keys


def _sections(valid: Sequence[str]) -> str:
    sections = dict.fromkeys(key.partition(".")[0] for key in valid)
    return f"sections are {', '.join(sections)}"


def _combinations(
    over: Mapping[str, Iterable[Any]] | pd.DataFrame | None, design: Design
) -> Iterator[tuple[tuple[str, Any], ...]]:
    import pandas as pd

    if design not in ("product", "zip"):
        raise SpecError(f"sweep: design = {design!r}: one of product, zip, or over = a DataFrame")
    if over is None:
        yield ()
        return
    if isinstance(over, pd.DataFrame):
        if over.columns.has_duplicates:
            raise SpecError("sweep: a column of the design stands twice")
        for line in over.itertuples(index=False, name=None):
            values = zip(over.columns, map(_plain, line), strict=True)
            # a missing cell leaves the key as the scenario has it
            yield tuple((str(key), value) for key, value in values if not _is_missing(value))
        return
    axes = {key: _values(key, values) for key, values in over.items()}
    if design == "zip":
        lengths = {key: len(values) for key, values in axes.items()}
        if len(set(lengths.values())) > 1:
            raise SpecError(f"sweep: design = 'zip' needs equal lengths, not {lengths}")
        lines: Iterable[tuple[Any, ...]] = zip(*axes.values(), strict=True) if axes else [()]
    else:
        lines = itertools.product(*axes.values())
    for line in lines:
        yield tuple(zip(axes, line, strict=True))


def _values(key: str, values: Iterable[Any]) -> list[Any]:
    if isinstance(values, str) or not isinstance(values, Iterable):
        raise SpecError(f"sweep: {key} = {values!r}: a list of values is needed")
    found = [_plain(value) for value in values]
    if not found:
        raise SpecError(f"sweep: {key} has no values")
    for value in found:
        if isinstance(value, Mapping | list | tuple):
            raise SpecError(f"sweep: {key} = {value!r}: numbers, texts and booleans can be swept")
    if len(set(map(repr, found))) < len(found):
        raise SpecError(f"sweep: {key}: a value stands twice in {found}")
    return found


def _plain(value: Any) -> Any:
    """``value`` as Python's own type, where it is a scalar of numpy."""
    return value.item() if hasattr(value, "item") and not isinstance(value, str) else value


def _is_missing(value: Any) -> bool:
    return value is None or (isinstance(value, float) and value != value)
