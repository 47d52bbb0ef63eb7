"""Parameters of synthetic agent traffic: one set in one TOML file.

``docs/synthesis.md`` explains how the sections act together.
"""

from __future__ import annotations

import dataclasses
import tomllib
import typing
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from smetric_model.errors import SpecError
from smetric_model.workload.synthesis_distributions import (
    Distribution,
    distribution_from,
    distribution_to,
    quantile_of,
)
from smetric_model.workload.synthesis_sections import (
    Arrivals,
    Execution,
    Forks,
    Frameworks,
    HistoryEdits,
    Sessions,
    Tenants,
    ThinkTimes,
    check_integer,
    check_number,
    check_positive,
)

__all__ = [
    "Arrivals",
    "Execution",
    "Forks",
    "Frameworks",
    "HistoryEdits",
    "Sessions",
    "Tenants",
    "ThinkTimes",
    "WorkloadParameters",
]


@dataclass(frozen=True)
class WorkloadParameters:
    """Everything the generator needs but a seed.

    Attributes
    ----------
    name : str
        Name of the parameter set.
    description : str
        What it stands for.
    assumptions : tuple of str
        What remains free, and why it was chosen so.
    block_tokens : int
        Tokens of a KV block [tokens].
    rate_rps : float
        Requests per second, unless another rate is asked for [1/s].
    window_s : float
        Length of the window, unless another is asked for [s].
    history_s : float
        Sessions that started earlier than this before the window are left out of those in progress
        when it opens [s].
    arrivals, frameworks, tenants, sessions, think, history, forks, execution
        The sections.
    """

    name: str = "custom"
    description: str = ""
    assumptions: tuple[str, ...] = ()
    block_tokens: int = 64
    rate_rps: float = 1.0
    window_s: float = 7_200.0
    history_s: float = 172_800.0
    arrivals: Arrivals = field(default_factory=Arrivals)
    frameworks: Frameworks = field(default_factory=Frameworks)
    tenants: Tenants = field(default_factory=Tenants)
    sessions: Sessions = field(default_factory=Sessions)
    think: ThinkTimes = field(default_factory=ThinkTimes)
    history: HistoryEdits = field(default_factory=HistoryEdits)
    forks: Forks = field(default_factory=Forks)
    execution: Execution = field(default_factory=Execution)

    def __post_init__(self) -> None:
        check_integer(self, "block_tokens", 1, 1_000_000)
        check_positive(self, "rate_rps")
        check_positive(self, "window_s")
        check_number(self, "history_s", 0, 1e8)
        limit = quantile_of(self.sessions.context_limit_tokens, 0.0)
        if limit <= self.longest_prefix_tokens:
            raise SpecError(
                f"sessions.context_limit_tokens = {limit:g} at least: more than the longest system "
                f"prompt with tools, {self.longest_prefix_tokens}, is needed"
            )

    @property
    def longest_prefix_tokens(self) -> int:
        """Tokens of the longest system prompt with tools [tokens]."""
        return int(self.frameworks.prefix_tokens()[1].max())

    def replace(self, **changes: Any) -> WorkloadParameters:
        """Copy with some values changed.

        Parameters
        ----------
        **changes
            Field or dotted key (``**{"history.rewrite_ratio": 0.1}``) and its new value.

        Returns
        -------
        WorkloadParameters

        Raises
        ------
        SpecError
            If a key does not exist or a value is not allowed.
        """
        result = self
        for key, value in changes.items():
            section, _, name = key.rpartition(".")
            try:
                if section:
                    part = dataclasses.replace(getattr(result, section), **{name: value})
                    result = dataclasses.replace(result, **{section: part})
                else:
                    result = dataclasses.replace(result, **{name: value})
            except (AttributeError, TypeError):
                raise SpecError(f"{key}: no such parameter") from None
        return result

    @classmethod
    def from_dict(cls, content: dict[str, Any]) -> WorkloadParameters:
        """Parameters of nested dicts, shaped as the TOML file.

        Parameters
        ----------
        content : dict
            Keys left out have their defaults.

        Returns
        -------
        WorkloadParameters

        Raises
        ------
        SpecError
            If a key is unknown or a value not allowed; names the dotted key.
        """
        result: WorkloadParameters = _read(cls, content, "")
        return result

    @classmethod
    def from_toml(cls, path: str | Path) -> WorkloadParameters:
        """Read a parameter file.

        Parameters
        ----------
        path : str or Path

        Returns
        -------
        WorkloadParameters

        Raises
        ------
        SpecError
            If the file is missing or no TOML, a key is unknown or a value not allowed.
        """
        path = Path(path)
        try:
            content = tomllib.loads(path.read_bytes().decode())
        except FileNotFoundError:
            raise SpecError(f"{path}: no such parameter file") from None
        except OSError as error:
            raise SpecError(f"{path}: cannot be read: {error.strerror}") from None
        except (tomllib.TOMLDecodeError, UnicodeDecodeError) as error:
            raise SpecError(f"{path}: not TOML: {error}") from None
        try:
            return cls.from_dict(content)
        except SpecError as error:
            raise SpecError(f"{path}: {error}") from None

    def to_dict(self) -> dict[str, Any]:
        """Nested dicts, as :meth:`from_dict` reads them."""
        return _write(self)

    def to_toml(self, path: str | Path) -> None:
        """Write a file that :meth:`from_toml` reads.

        Parameters
        ----------
        path : str or Path
        """
        import tomli_w

        Path(path).write_text(tomli_w.dumps(self.to_dict()), encoding="utf-8")


def _read(cls: Any, content: Any, where: str) -> Any:
    if not isinstance(content, dict):
        raise SpecError(f"{where} = {content!r}: a table is needed")
    hints = typing.get_type_hints(cls)
    names = {item.name for item in dataclasses.fields(cls)}
    values: dict[str, Any] = {}
    for key, value in content.items():
        dotted = f"{where}.{key}" if where else key
        if key not in names:
            raise SpecError(f"{dotted}: unknown key; {', '.join(sorted(names))} are allowed")
        kind = hints[key]
        if dataclasses.is_dataclass(kind):
            values[key] = _read(kind, value, dotted)
        elif kind == Distribution:
            values[key] = distribution_from(value, dotted)
        elif typing.get_origin(kind) is tuple:
            if not isinstance(value, list):
                raise SpecError(f"{dotted} = {value!r}: a list is needed")
            wanted = str if typing.get_args(kind)[0] is str else (int, float)
            for item in value:
                if not isinstance(item, wanted) or isinstance(item, bool):
                    raise SpecError(f"{dotted}: {item!r} is not allowed in this list")
            values[key] = tuple(value)
        elif kind is str and not isinstance(value, str):
            raise SpecError(f"{dotted} = {value!r}: a string is needed")
        else:
            values[key] = value
    try:
        return cls(**values)
    except SpecError as error:
        raise SpecError(f"{where}.{error}" if where else str(error)) from None


def _write(section: Any) -> dict[str, Any]:
    result: dict[str, Any] = {}
    for item in dataclasses.fields(section):
        value = getattr(section, item.name)
        if isinstance(value, Distribution):
            result[item.name] = distribution_to(value)
        elif dataclasses.is_dataclass(value):
            result[item.name] = _write(value)
        else:
            result[item.name] = list(value) if isinstance(value, tuple) else value
    return result
