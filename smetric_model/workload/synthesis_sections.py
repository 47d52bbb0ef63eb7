"""Sections of the generator's parameters: what each value means, its unit, what is allowed.

Times are seconds, lengths tokens.  :class:`~.synthesis_parameters.WorkloadParameters` holds one of
each.
"""

from __future__ import annotations

import math
from dataclasses import dataclass, field
from typing import Literal

import numpy as np
import numpy.typing as npt

from smetric_model.errors import SpecError
from smetric_model.workload.synthesis_distributions import (
    Constant,
    Distribution,
    LogNormal,
    Uniform,
    quantile_of,
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
    "check_integer",
    "check_number",
    "check_positive",
    "zipf_shares",
]

#: Fractional part of the golden ratio.
_GOLDEN = (math.sqrt(5) - 1) / 2


def zipf_shares(count: int, exponent: float) -> npt.NDArray[np.float64]:
    """Shares proportional to k^−exponent for k = 1 … count.

    Parameters
    ----------
    count : int
    exponent : float

    Returns
    -------
    ndarray of float64, shape (count,)
    """
    weights = np.arange(1, count + 1, dtype=np.float64) ** -exponent
    result: npt.NDArray[np.float64] = weights / weights.sum()
    return result


def _check(condition: bool, name: str, value: object, allowed: str) -> None:
    if not condition:
        raise SpecError(f"{name} = {value!r}: {allowed} is needed")


def check_number(section: object, name: str, low: float, high: float = math.inf) -> None:
    """Check that an attribute is a finite number within bounds."""
    value = getattr(section, name)
    good = isinstance(value, int | float) and not isinstance(value, bool)
    allowed = f"a finite number of at least {low:g}" + (
        "" if high == math.inf else f", at most {high:g}"
    )
    _check(good and math.isfinite(value) and low <= value <= high, name, value, allowed)


def check_positive(section: object, name: str) -> None:
    """Check that an attribute is a finite number above 0."""
    value = getattr(section, name)
    good = isinstance(value, int | float) and not isinstance(value, bool)
    _check(good and math.isfinite(value) and value > 0, name, value, "a finite number above 0")


def check_integer(section: object, name: str, low: int, high: int) -> None:
    """Check that an attribute is an integer within bounds."""
    value = getattr(section, name)
    good = isinstance(value, int) and not isinstance(value, bool)
    _check(good and low <= value <= high, name, value, f"an integer from {low} to {high}")


def _bounded(section: object, name: str, high: float) -> None:
    top = quantile_of(getattr(section, name), 1.0)
    _check(top <= high, name, f"up to {top:g}", f"a distribution that ends at or below {high:g}")


@dataclass(frozen=True)
class Arrivals:
    """When sessions start.

    Attributes
    ----------
    kind : {'poisson', 'mmpp', 'diurnal'}
        ``poisson``: at random, at a constant rate.  ``mmpp``: at random, at a rate that jumps
        between levels (Markov-modulated).  ``diurnal``: at random, at a rate that follows a sine.
        The long-run mean is the rate asked for in every case.
    levels : tuple of float
        ``mmpp``: rates of the states, relative to each other.
    dwell_s : tuple of float
        ``mmpp``: mean time in each state [s]; the next state is any other, equally likely.
    amplitude_ratio : float
        ``diurnal``: height of the sine ÷ mean rate, in [0, 1].
    period_s : float
        ``diurnal``: period [s].
    peak_s : float
        ``diurnal``: when the rate is highest, from the window's opening [s].
    """

    kind: Literal["poisson", "mmpp", "diurnal"] = "poisson"
    levels: tuple[float, ...] = (0.5, 2.0)
    dwell_s: tuple[float, ...] = (600.0, 300.0)
    amplitude_ratio: float = 0.5
    period_s: float = 86_400.0
    peak_s: float = 0.0

    def __post_init__(self) -> None:
        kinds = ("poisson", "mmpp", "diurnal")
        _check(self.kind in kinds, "kind", self.kind, f"one of {', '.join(kinds)}")
        _check(
            len(self.levels) == len(self.dwell_s) >= 2,
            "levels and dwell_s",
            (self.levels, self.dwell_s),
            "the same number of entries, at least 2,",
        )
        _check(
            all(math.isfinite(level) and level >= 0 for level in self.levels)
            and sum(self.levels) > 0,
            "levels",
            self.levels,
            "numbers of at least 0, one above 0,",
        )
        _check(
            all(math.isfinite(dwell) and dwell > 0 for dwell in self.dwell_s),
            "dwell_s",
            self.dwell_s,
            "numbers above 0",
        )
        check_number(self, "amplitude_ratio", 0, 1)
        check_positive(self, "period_s")
        check_number(self, "peak_s", -math.inf)


@dataclass(frozen=True)
class Frameworks:
    """Agent frameworks: whose system prompt and tool descriptions sessions begin with.

    Attributes
    ----------
    count : int
        Number of frameworks (a version with another prompt is another framework).
    zipf_exponent : float
        Framework k has a share of the sessions proportional to k^−zipf_exponent; 0: equal shares.
    system_tokens : Distribution
        Length of the system prompt [tokens].  The frameworks' lengths are spread over its
        quantiles in a fixed order: they are facts of the environment, not of the seed.
    toolsets : int
        Different tool descriptions of each framework, with the same Zipf exponent.
    tool_tokens : Distribution
        Length of the tool descriptions, which follow the system prompt [tokens]; spread likewise.
    """

    count: int = 20
    zipf_exponent: float = 1.0
    system_tokens: Distribution = field(default=LogNormal(3_000.0, 0.5))
    toolsets: int = 1
    tool_tokens: Distribution = field(default=LogNormal(2_000.0, 0.5))

    def __post_init__(self) -> None:
        check_integer(self, "count", 1, 100_000)
        check_number(self, "zipf_exponent", 0, 10)
        check_integer(self, "toolsets", 1, 1_000)

    def prefix_tokens(self) -> tuple[npt.NDArray[np.int64], npt.NDArray[np.int64]]:
        """Lengths of the shared prefixes.

        Returns
        -------
        system : ndarray of int64, shape (count,)
            System prompt of each framework [tokens].
        whole : ndarray of int64, shape (count, toolsets)
            System prompt with each of its tool descriptions [tokens].

        Notes
        -----
        Framework k takes the quantile frac(k·φ + 1/2), φ the golden ratio: any few of them cover
        the distribution evenly, the middle first.
        """
        frameworks = np.arange(self.count)
        system = np.rint(self.system_tokens.quantile((frameworks * _GOLDEN + 0.5) % 1.0))
        pairs = frameworks[:, None] + self.count * np.arange(self.toolsets)[None, :]
        tools = np.rint(self.tool_tokens.quantile((pairs * _GOLDEN + 0.5) % 1.0))
        return system.astype(np.int64), (system[:, None] + tools).astype(np.int64)

    def shares(self) -> npt.NDArray[np.float64]:
        """Share of the sessions of each framework, shape (count,)."""
        return zipf_shares(self.count, self.zipf_exponent)


@dataclass(frozen=True)
class Tenants:
    """Customers, between whom nothing is shared if the cache is salted.

    Attributes
    ----------
    count : int
        Number of tenants.
    zipf_exponent : float
        Tenant k has a share of the sessions proportional to k^−zipf_exponent.
    salted : bool
        Whether each tenant's KV is kept apart (a cache salt): not even the system prompt is shared.
    """

    count: int = 1
    zipf_exponent: float = 1.0
    salted: bool = False

    def __post_init__(self) -> None:
        check_integer(self, "count", 1, 1_000_000)
        check_number(self, "zipf_exponent", 0, 10)
        _check(isinstance(self.salted, bool), "salted", self.salted, "true or false")


@dataclass(frozen=True)
class Sessions:
    """How long sessions are and what each turn adds.

    Attributes
    ----------
    turns : Distribution
        Requests of a session, rounded, at least 1; it must end (``high``).
    first_tokens : Distribution
        Tokens of the first prompt beyond the system prompt and tools [tokens].
    tool_result_tokens : Distribution
        New tokens of a turn sent by the agent, beyond the model's previous answer [tokens].
    user_tokens : Distribution
        New tokens of a turn sent by the user, likewise [tokens].
    size_sigma : float
        Sessions differ: the new tokens of all turns after a session's first are multiplied by one
        log-normal factor of mean 1 with this sigma.
    first_turns_correlation, size_turns_correlation : float
        Correlation of the first tokens, and of the factor above, with the number of turns (on
        normal scores), in [-1, 1]: negative where long sessions begin small or grow slowly.
    output_tokens : Distribution
        Tokens generated [tokens].
    answer_kept_ratio : float
        Share of an answer that the next prompt repeats (reasoning may be stripped), in [0, 1].
    user_ratio : float
        Share of later turns that the user sends; the agent sends the others.
    context_limit_tokens : Distribution
        A prompt that would be longer makes the agent compact; one draw a session [tokens].  A
        session whose first prompt exceeds it has the distribution's upper end.
    """

    turns: Distribution = field(default=LogNormal(20.0, 1.0, high=1_000.0))
    first_tokens: Distribution = field(default=LogNormal(2_000.0, 1.0))
    tool_result_tokens: Distribution = field(default=LogNormal(500.0, 1.2))
    user_tokens: Distribution = field(default=LogNormal(150.0, 1.2))
    size_sigma: float = 0.3
    first_turns_correlation: float = 0.0
    size_turns_correlation: float = 0.0
    output_tokens: Distribution = field(default=LogNormal(220.0, 1.0))
    answer_kept_ratio: float = 1.0
    user_ratio: float = 0.15
    context_limit_tokens: Distribution = field(default=Constant(200_000.0))

    def __post_init__(self) -> None:
        _bounded(self, "turns", 1_000_000)
        check_number(self, "size_sigma", 0, 5)
        check_number(self, "first_turns_correlation", -1, 1)
        check_number(self, "size_turns_correlation", -1, 1)
        check_number(self, "answer_kept_ratio", 0, 1)
        check_number(self, "user_ratio", 0, 1)
        _bounded(self, "context_limit_tokens", 2**40)


@dataclass(frozen=True)
class ThinkTimes:
    """From a turn's completion to the next turn's arrival.

    Attributes
    ----------
    tool_s : Distribution
        Before a turn sent by the agent: latency of tools [s].
    human_s : Distribution
        Before a turn sent by the user: reading, typing [s].
    idle_s : Distribution
        Before a turn of a user who had left [s].
    idle_ratio : float
        Share of the user's turns before which the user had left.
    """

    tool_s: Distribution = field(default=LogNormal(2.0, 1.2, high=3_600.0))
    human_s: Distribution = field(default=LogNormal(45.0, 1.2, high=7_200.0))
    idle_s: Distribution = field(default=LogNormal(1_200.0, 1.0, high=43_200.0))
    idle_ratio: float = 0.1

    def __post_init__(self) -> None:
        check_number(self, "idle_ratio", 0, 1)


@dataclass(frozen=True)
class HistoryEdits:
    """What breaks the growth of a session's prefix.

    Attributes
    ----------
    rewrite_ratio : float
        Share of later turns whose history is rewritten: what follows some point is replaced.
    rewrite_spread : float
        How unevenly sessions do so: 0, every session alike; towards 1, some sessions in every turn
        and the others never (the sessions' ratios follow a beta distribution; this is the
        correlation between two turns of a session).  In [0, 1).
    kept_ratio : Distribution
        Share of the history, beyond system prompt, tools and the context with which a subagent
        began, that stays in place; in [0, 1].
    replaced_ratio : float
        Length of the replacement ÷ length of what was removed: 1, rewritten at equal length; 0, the
        end of the history is dropped (the user rewinds).
    compaction_ratio : float
        Share of later turns in which the agent compacts although the context is not full.
    instruction_tokens : float
        Tokens of the instruction to summarise [tokens].
    summary_tokens : Distribution
        Length of the summary, the output of the compacting request [tokens].  The turn after it
        begins with system prompt, tools and summary.
    restored_tokens : Distribution
        What the agent puts back beside the summary, such as open files [tokens].
    """

    rewrite_ratio: float = 0.02
    rewrite_spread: float = 0.0
    kept_ratio: Distribution = field(default=Uniform(0.0, 1.0))
    replaced_ratio: float = 1.0
    compaction_ratio: float = 0.0
    instruction_tokens: float = 400.0
    summary_tokens: Distribution = field(default=LogNormal(2_000.0, 0.5))
    restored_tokens: Distribution = field(default=Constant(0.0))

    def __post_init__(self) -> None:
        check_number(self, "rewrite_ratio", 0, 1)
        check_number(self, "compaction_ratio", 0, 1)
        _check(
            self.rewrite_ratio + self.compaction_ratio <= 1,
            "rewrite_ratio + compaction_ratio",
            self.rewrite_ratio + self.compaction_ratio,
            "at most 1",
        )
        check_number(self, "rewrite_spread", 0)
        _check(self.rewrite_spread < 1, "rewrite_spread", self.rewrite_spread, "a number below 1")
        _bounded(self, "kept_ratio", 1.0)
        check_number(self, "replaced_ratio", 0, 10)
        check_number(self, "instruction_tokens", 0, 1e9)


@dataclass(frozen=True)
class Forks:
    """Subagents: sessions that a turn spawns, which begin with their parent's context.

    Attributes
    ----------
    spawn_ratio : float
        Share of turns after which the agent spawns subagents; 0: never.
    children : Distribution
        Subagents spawned at once, rounded, at least 1.
    shared_ratio : Distribution
        Share of the parent's history, beyond system prompt and tools, with which they begin, in
        [0, 1]; 0: only system prompt and tools.
    turns : Distribution
        Requests of a subagent's session; it must end (``high``).
    delay_s : Distribution
        From the parent turn's completion to the subagent's first request [s].
    joined : bool
        Whether the parent's next turn waits for the subagents to finish.
    levels : int
        1: only sessions started by users spawn; 2: their subagents do, too; and so on.
    """

    spawn_ratio: float = 0.0
    children: Distribution = field(default=Constant(2.0))
    shared_ratio: Distribution = field(default=Constant(1.0))
    turns: Distribution = field(default=LogNormal(10.0, 0.8, high=200.0))
    delay_s: Distribution = field(default=LogNormal(0.5, 0.5))
    joined: bool = True
    levels: int = 1

    def __post_init__(self) -> None:
        check_number(self, "spawn_ratio", 0, 1)
        _bounded(self, "children", 1_000)
        _bounded(self, "shared_ratio", 1.0)
        _bounded(self, "turns", 1_000_000)
        _check(isinstance(self.joined, bool), "joined", self.joined, "true or false")
        check_integer(self, "levels", 1, 4)


@dataclass(frozen=True)
class Execution:
    """Execution time as the trace records it: base + new · a + output · b, times a random factor.

    A simulator or model replaces it by its own; it sets the pace of the recorded arrivals.

    Attributes
    ----------
    base_s : float
        Host, queue and network [s].
    per_new_token_s : float
        For each prompt token that the session's own previous prompt does not hold [s].
    per_output_token_s : float
        For each token generated [s].
    sigma : float
        Sigma of the factor, log-normal with mean 1.
    """

    base_s: float = 0.3
    per_new_token_s: float = 1.5e-4
    per_output_token_s: float = 0.02
    sigma: float = 0.0

    def __post_init__(self) -> None:
        for name in ("base_s", "per_new_token_s", "per_output_token_s"):
            check_number(self, name, 0, 1e6)
        check_number(self, "sigma", 0, 5)
