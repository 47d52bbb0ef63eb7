"""``sweep``: points of a design through a verb, kept as they finish, in the design's order."""

from __future__ import annotations

import re
import time
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

from smetric_model.datafiles import data_dir
from smetric_model.errors import SpecError
from smetric_model.scenario import Scenario
from smetric_model.schema import load_schema
from smetric_model.sweeping.design import Design, Point, check_keys, points_of, scenario_of
from smetric_model.sweeping.pools import run_here, run_on_dask, run_on_processes
from smetric_model.sweeping.store import (
    Record,
    Store,
    Verb,
    point_digest,
    verb_digest,
    verb_name,
)
from smetric_model.sweeping.work import VERBS, Task, failed

if TYPE_CHECKING:
    import pandas as pd

__all__ = ["sweep"]

#: told how many points are done and how many there are
Progress = Callable[[int, int], None]


def sweep(
    scenario: Scenario | str | Path | Mapping[str, Scenario],
    over: Mapping[str, Iterable[Any]] | pd.DataFrame | None = None,
    verb: Verb | Sequence[Verb] = "predict",
    *,
    seeds: int | Iterable[int] | None = None,
    design: Design = "product",
    folder: str | Path | None = None,
    jobs: int = 1,
    scheduler: str | None = None,
    progress: Progress | None = None,
) -> pd.DataFrame:
    """Answer many scenarios, one tidy row each.

    Parameters
    ----------
    scenario : Scenario, path or mapping of str to Scenario
        What is varied; several, by name, are a column ``scenario``.
    over : mapping of str to iterable, or DataFrame
        Values by dotted key; or one line a point, one column a key (a missing cell leaves the
        key as it is).
    verb : str or callable, or a sequence of them
        ``predict``, ``simulate``, ``bound``, ``plan``, or a function of a scenario that returns an
        :class:`Outcome` or a mapping of names to numbers, texts and booleans.
    seeds : int or iterable of int, optional
        How many seeds, counted from the scenario's own, or which.
    design : {"product", "zip"}
        All combinations of ``over``, or the values at the same position.
    folder : path, optional
        Finished points are kept here, and found again by the next call; made if need be.
    jobs : int, default 1
        Processes on this machine.
    scheduler : str, optional
        Address of a Dask scheduler, in place of ``jobs``.
    progress : callable, optional
        Told how many points are done, and how many there are.

    Returns
    -------
    DataFrame
        The swept keys, ``status`` (``done``, ``unstable``, ``failed``), ``error_class``, ``error``,
        and what the verb answers; in the order of the design, whatever the order of finishing.
        Its ``attrs`` say how many points were ``computed`` and ``found``, and ``elapsed_s``.

    Raises
    ------
    SpecError
        Before anything runs: if a key does not exist, a value is not allowed, a verb is not
        known, or no point is left.  Keys that contradict each other in some points only are rows
        that failed.

    Examples
    --------
    >>> from smetric_model import Scenario, sweep
    >>> scenario = Scenario.from_toml("data/scenarios/agents-small.toml")
    >>> rows = sweep(scenario, {"router.policy": ["smetric", "bailian"]}, "predict")
    >>> rows[["router.policy", "status"]]
      router.policy status
    0       smetric   done
    1       bailian   done
    """
    started = time.monotonic()
    bases = _bases(scenario)
    verbs = _verbs(verb)
    if jobs < 1:
        raise SpecError(f"sweep: jobs = {jobs}: at least 1")
    first = next(iter(bases.values()))
    points = points_of(list(bases), over, len(verbs), _seeds(seeds, first), design)
    check_keys(dict.fromkeys(key for point in points for key, _ in point.changes))
    store = None if folder is None else Store(Path(folder))
    sent = store is not None or jobs > 1 or scheduler is not None
    if sent:  # a function that cannot be sent or kept is refused now
        for each in verbs:
            verb_digest(each)
    paths = _Paths()
    digests, ids, records = _prepared(points, bases, verbs, paths, store is not None)
    computed_before = len(records)
    if store is not None:
        for number, digest in digests.items():
            record = store.read(digest)
            if record is not None and record["status"] in ("done", "unstable", "failed"):
                records[number] = record
    found = len(records) - computed_before
    todo = [number for number in range(len(points)) if number not in records]
    done = len(points) - len(todo)

    def keep(number: int, record: Record) -> None:
        nonlocal done
        if store is not None and record.pop("lasting", False):
            store.write(digests[number], record)
        records[number] = record
        done += 1
        if progress is not None:
            progress(done, len(points))

    def tasks() -> Iterator[tuple[int, Task]]:
        for number in todo:
            point = points[number]
            asked = paths.resolved(scenario_of(bases[point.scenario], point))
            yield number, Task(asked, verbs[point.verb])

    if progress is not None:
        progress(done, len(points))
    if todo and scheduler is not None:
        run_on_dask(tasks(), keep, scheduler)
    elif todo and jobs > 1:
        run_on_processes(tasks(), keep, jobs)
    else:
        run_here(tasks(), keep)
    frame = _frame(points, [records[k] for k in range(len(points))], ids, verbs, bases)
    frame.attrs = {
        "computed": len(todo),
        "found": found,
        "elapsed_s": time.monotonic() - started,
    }
    return frame


def _bases(scenario: Scenario | str | Path | Mapping[str, Scenario]) -> dict[str, Scenario]:
    if isinstance(scenario, str | Path):
        return {"": Scenario.from_toml(scenario)}
    if isinstance(scenario, Scenario):
        return {"": scenario}
    if not scenario:
        raise SpecError("sweep: no scenario is given")
    return dict(scenario)


def _verbs(verb: Verb | Sequence[Verb]) -> list[Verb]:
    verbs: list[Verb] = [verb] if isinstance(verb, str) or callable(verb) else list(verb)
    for one in verbs:
        if not callable(one) and one not in VERBS:
            raise SpecError(f"sweep: verb = {one!r}: one of {', '.join(VERBS)}, or a function")
    return verbs


def _seeds(seeds: int | Iterable[int] | None, base: Scenario) -> list[int] | None:
    if seeds is None:
        return None
    if isinstance(seeds, int):
        if seeds < 1:
            raise SpecError(f"sweep: seeds = {seeds}: at least one")
        return [base.seed + k for k in range(seeds)]
    return list(seeds)


def _prepared(
    points: Sequence[Point],
    bases: Mapping[str, Scenario],
    verbs: Sequence[Verb],
    paths: _Paths,
    digested: bool,
) -> tuple[dict[int, str], dict[int, str], dict[int, Record]]:
    """Digests, scenario ids, and the records of points that contradict themselves."""
    digests: dict[int, str] = {}
    ids: dict[int, str] = {}
    records: dict[int, Record] = {}
    refused: SpecError | None = None
    for number, point in enumerate(points):
        try:
            asked = scenario_of(bases[point.scenario], point)
            paths.resolved(asked)  # its files exist
            ids[number] = asked.scenario_id
        except SpecError as error:
            # a value that is wrong by itself is a mistake of the sweep, found before it starts
            for key, _ in point.changes:
                if re.match(rf"{re.escape(key)} = .*: (allowed is|no such)", str(error)):
                    raise SpecError(f"sweep: {error}") from None
            refused = error
            records[number] = failed(error)
            continue
        if digested:
            digests[number] = point_digest(asked, verbs[point.verb])
    if refused is not None and len(records) == len(points):
        raise SpecError(f"sweep: no point can be run: {refused}")
    return digests, ids, records


class _Paths:
    """Where the files of a sweep's scenarios lie: looked for once."""

    def __init__(self) -> None:
        self._absolute: dict[tuple[Path | None, str | None, str], dict[str, str]] = {}

    def resolved(self, scenario: Scenario) -> Scenario:
        """Scenario with its files' paths made absolute, but for those in the package's data."""
        written = (scenario._folder, scenario.workload.trace, scenario.llm.name)
        if written not in self._absolute:
            found = {}
            if scenario.workload.trace is not None:
                found["workload.trace"] = scenario.trace_path().resolve()
            config = scenario.llm_config_path()
            if config is not None:
                found["llm.name"] = config.resolve()
            packaged = data_dir()
            self._absolute[written] = {
                key: str(path) for key, path in found.items() if not path.is_relative_to(packaged)
            }
        absolute = self._absolute[written]
        return scenario.replace(**absolute) if absolute else scenario


def _frame(
    points: Sequence[Point],
    records: Sequence[Record],
    ids: Mapping[int, str],
    verbs: Sequence[Verb],
    bases: Mapping[str, Scenario],
) -> pd.DataFrame:
    import pandas as pd

    keys = list(dict.fromkeys(key for point in points for key, _ in point.changes))
    keys = [key for key in keys if key != "seed"]
    changes = [dict(point.changes) for point in points]
    columns: dict[str, pd.Series[Any]] = {}
    if len(bases) > 1:
        columns["scenario"] = pd.Series([p.scenario for p in points], dtype=object)
    for key in keys:
        columns[key] = _series([change.get(key) for change in changes])
    columns["verb"] = pd.Series([verb_name(verbs[p.verb]) for p in points], dtype=object)
    for name in ("status", "error_class", "error"):
        columns[name] = pd.Series([record[name] for record in records], dtype=object)
    rows = [dict(record["values"]) for record in records]
    for number, row in enumerate(rows):
        if number in ids:
            row.setdefault("scenario_id", ids[number])
            row["scenario_id"] = ids[number]
        # whatever the verb, and also where it failed
        row.setdefault("seed", changes[number].get("seed", bases[points[number].scenario].seed))
    schema = load_schema()
    found = dict.fromkeys(name for row in rows for name in row)
    in_schema = any(isinstance(verb, str) and verb != "plan" for verb in verbs)
    names = [name for name in schema if in_schema or name in found]
    names += [name for name in found if name not in schema]
    for name in names:
        if name == "verb":
            continue
        values = [row.get(name) for row in rows]
        if name in schema and schema[name].kind != "number":
            missing = "" if schema[name].kind == "text" else None
            filled = [missing if value is None else value for value in values]
            columns[name] = pd.Series(filled, dtype=object)
        else:
            columns[name] = _series([_number(value) for value in values])
    return pd.DataFrame(columns)


def _series(values: list[Any]) -> pd.Series[Any]:
    """Series of float64 where all values are numbers or missing, else of objects."""
    import pandas as pd

    numbers = set(map(type, values)) <= {int, float, type(None)}
    return pd.Series(values, dtype="float64" if numbers else object)


def _number(value: Any) -> Any:
    return float(value) if isinstance(value, str) and value in ("inf", "-inf") else value
