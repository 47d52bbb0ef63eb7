"""Finished points on disk, each in a file named by a digest of all that its answer depends on."""

from __future__ import annotations

import contextlib
import hashlib
import inspect
import json
import os
import pickle
import tempfile
from collections.abc import Callable, Iterator
from functools import cache, lru_cache
from importlib.metadata import version
from pathlib import Path
from typing import Any

from smetric_model.datafiles import data_dir
from smetric_model.errors import SpecError
from smetric_model.scenario import Scenario

__all__ = ["Record", "Store", "library_digest", "point_digest", "verb_digest", "verb_name"]

#: what is kept of a point, ready for JSON: status, error_class, error, values
Record = dict[str, Any]
Verb = str | Callable[[Scenario], Any]

#: packages that no verb's answer depends on
_APART = {
    "advantage",
    "capacity",
    "cli",
    "comparison",
    "designing",
    "live",
    "operations",
    "reproduction",
    "sweeping",
    "tuning",
}
#: packages above a verb's own, from bottom to top (the import layers hold this)
_ABOVE = {
    "predict": {"simulate", "bound", "planning"},
    "simulate": {"bound", "planning"},
    "bound": {"planning"},
    "plan": {"simulate", "bound"},
}


class Store:
    """Folder of finished points.

    Files are written apart and then renamed, so that a file is whole or not there, whoever else
    writes to the folder.

    Parameters
    ----------
    folder : Path
        Made where it does not exist.
    """

    def __init__(self, folder: Path):
        self.folder = folder
        (folder / "points").mkdir(parents=True, exist_ok=True)

    def read(self, digest: str) -> Record | None:
        """Return what is kept of a point, or None; a file that is no record counts as none.

        Parameters
        ----------
        digest : str
        """
        try:
            record = json.loads(self._path(digest).read_bytes())
        except (FileNotFoundError, ValueError):
            return None
        whole = isinstance(record, dict) and {"status", "values"} <= set(record)
        return record if whole else None

    def write(self, digest: str, record: Record) -> None:
        """Keep a finished point.

        Parameters
        ----------
        digest : str
        record : dict
        """
        path = self._path(digest)
        path.parent.mkdir(parents=True, exist_ok=True)
        with written_apart(path) as apart:
            apart.write_text(json.dumps(record), encoding="utf-8")

    def _path(self, digest: str) -> Path:
        return self.folder / "points" / digest[:2] / f"{digest}.json"


@contextlib.contextmanager
def written_apart(path: Path) -> Iterator[Path]:
    """Yield a file beside ``path`` that takes its place in one step once it is written.

    Parameters
    ----------
    path : Path
    """
    handle, name = tempfile.mkstemp(dir=path.parent, prefix=".", suffix=path.suffix)
    os.close(handle)
    try:
        yield Path(name)
        os.replace(name, path)
    finally:
        with contextlib.suppress(FileNotFoundError):
            os.unlink(name)


def point_digest(scenario: Scenario, verb: Verb) -> str:
    """Digest of a scenario, the files it names, a verb and the library.

    Files count by what they hold, not by where they lie; the scenario's name does not count,
    unless the verb is a function of the user's.

    Parameters
    ----------
    scenario : Scenario
    verb : str or callable

    Returns
    -------
    str
        32 hexadecimal digits.

    Raises
    ------
    SpecError
        If a file that the scenario names does not exist.
    """
    content = scenario.to_dict()
    if isinstance(verb, str):
        del content["name"]
    if scenario.workload.trace is not None:
        content["workload"]["trace"] = file_digest(scenario.trace_path())
    config = scenario.llm_config_path()
    if config is not None:
        content["llm"]["name"] = file_digest(config)
    whole = {"scenario": content, "verb": verb_digest(verb), "library": library_digest(verb)}
    return hashlib.sha256(json.dumps(whole, sort_keys=True).encode()).hexdigest()[:32]


def library_digest(verb: Verb | None = None) -> str:
    """Digest of the library's version, sources and facts, as far as a verb depends on them.

    Parameters
    ----------
    verb : str or callable, optional
        One of the library's verbs leaves out the packages it cannot use.

    Returns
    -------
    str
    """
    return _library_digest(verb if isinstance(verb, str) else "")


@cache
def _library_digest(verb: str) -> str:
    root = Path(__file__).parents[1]
    apart = _APART | _ABOVE[verb] if verb in _ABOVE else {"cli", "sweeping", "comparison"}
    digest = hashlib.sha256(version("smetric-model").encode())
    sources = [p for p in root.rglob("*.py") if p.relative_to(root).parts[0] not in apart]
    for base, paths in ((root, sources), (data_dir(), list(_facts()))):
        for path in sorted(paths):
            digest.update(str(path.relative_to(base)).encode() + b"\0" + path.read_bytes())
    return digest.hexdigest()


def _facts() -> Iterator[Path]:
    for suffix in ("toml", "json", "csv"):
        yield from data_dir().rglob(f"*.{suffix}")


def file_digest(path: Path) -> str:
    """Digest of a file, or of all files in a folder.

    Parameters
    ----------
    path : Path

    Returns
    -------
    str
    """
    if path.is_dir():
        files = sorted(p for p in path.rglob("*") if p.is_file())
        parts = [f"{p.relative_to(path)} {file_digest(p)}" for p in files]
        return hashlib.sha256("\n".join(parts).encode()).hexdigest()
    state = path.stat()
    return _file_digest(str(path.resolve()), state.st_size, state.st_mtime_ns)


@lru_cache(maxsize=4096)
def _file_digest(path: str, _size: int, _mtime_ns: int) -> str:
    with open(path, "rb") as file:
        return hashlib.file_digest(file, "sha256").hexdigest()


def verb_name(verb: Verb) -> str:
    """Name of a verb in messages.

    Parameters
    ----------
    verb : str or callable

    Returns
    -------
    str
    """
    if isinstance(verb, str):
        return verb
    inner = getattr(verb, "func", verb)  # functools.partial
    return str(getattr(inner, "__qualname__", type(inner).__name__))


def verb_digest(verb: Verb) -> str:
    """Digest of a verb: its name, or a function's pickle and source.

    Parameters
    ----------
    verb : str or callable

    Returns
    -------
    str

    Raises
    ------
    SpecError
        If the function cannot be sent to another process.
    """
    if isinstance(verb, str):
        return verb
    inner = getattr(verb, "func", verb)
    try:
        pickled = pickle.dumps(verb, protocol=4)
    except (pickle.PicklingError, AttributeError, TypeError):
        raise SpecError(
            f"sweep: verb {verb_name(verb)} cannot be kept or sent to another process; a function"
            " defined at the top of a module (or a functools.partial of one) can"
        ) from None
    try:
        source = inspect.getsource(inner if inspect.isroutine(inner) else type(inner))
    except (OSError, TypeError):
        source = ""
    return hashlib.sha256(pickled + source.encode()).hexdigest()
