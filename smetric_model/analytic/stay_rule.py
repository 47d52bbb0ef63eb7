"""How a router treats follow-ups, as far as the KV tiers need to know."""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import Literal, NamedTuple

import numpy as np
from numpy.typing import NDArray

__all__ = ["HOLDERS", "LEADS", "Lead", "Pace", "StayRule", "lead_of"]

FloatArray = NDArray[np.float64]

LEADS = 129  # leads told apart
HOLDERS = 12  # numbers of instances told apart among those that hold a prefix

#: how a policy compares the home's hit with the prefix that others hold: private hit ÷ prompt, what
#: others would compute ÷ what the home would, private hit in tokens
Lead = Literal["share", "ratio", "tokens"]


def lead_of(kind: Lead, prompt: FloatArray, own: FloatArray, shared: FloatArray) -> FloatArray:
    """Return what a home's hit is worth against the shared prefix elsewhere.

    Parameters
    ----------
    kind : {"share", "ratio", "tokens"}
        Private hit ÷ prompt; what others would compute ÷ what the home would; private hit.
    prompt, own, shared : ndarray, shape (n,)
        Prompt, hit at home, shared prefix [tokens].
    """
    private = np.maximum(own - shared, 0.0)
    if kind == "share":
        return np.asarray(private / prompt)
    if kind == "ratio":
        return np.asarray(np.log1p(private / np.maximum(prompt - own, 1.0)))
    return private


class Pace(NamedTuple):
    """How long a request takes.

    Attributes
    ----------
    first_token_s : float
        Mean time to first token [s].
    per_output_token_s : float
        Mean time of every further token [s].
    """

    first_token_s: float
    per_output_token_s: float


@dataclass(frozen=True)
class StayRule:
    """How a router treats follow-ups, as far as the tiers need to know.

    Attributes
    ----------
    stay : float
        Probability that a follow-up whose home has its context stays there.
    least_hit_ratio : float or None
        A follow-up leaves if no more than this share of its expected hit is left at home; None:
        the router does not look.
    subtract_shared : bool
        Whether the shared prefix is taken off both sides of that comparison.
    needs_own : bool
        Whether a home that holds no more than the shared prefix counts as none.
    stay_without : float
        Probability that a follow-up whose home has lost its context is served there all the same.
    seeks_hits : bool
        Whether a request that leaves goes where it finds most of its prompt: to the latest copy
        elsewhere, else to an instance that holds the shared prefix.  Otherwise it falls as it may.
    stay_of_leads : ndarray, shape (LEADS,), optional
        Where those with much of their prompt at home stay more than others: the probability to stay
        at leads (:func:`lead_of`) from 0 to ``longest_lead``; ``stay`` is the mean.
    stay_above_leads : ndarray, shape (LEADS,), optional
        The same of those with such a lead or a larger one.
    lead : {"share", "ratio", "tokens"}
        What the leads are.
    longest_lead : float
        Largest lead told apart, in that unit.
    older_wins : float
        Probability that a copy as long as the home's takes a follow-up that would stay.
    home_wins : ndarray, optional
        Probability that the home is the least loaded of 1 … N instances, in geometric series; one
        in so many by default.
    tie_tokens : float, optional
        Private tokens at home up to which whoever holds the shared prefix ties with it [tokens]; a
        block of the engine by default.
    """

    stay: float
    least_hit_ratio: float | None = None
    subtract_shared: bool = False
    needs_own: bool = False
    stay_without: float = 0.0
    seeks_hits: bool = False
    stay_of_leads: FloatArray | None = None
    stay_above_leads: FloatArray | None = None
    lead: Lead = "tokens"
    longest_lead: float = 1.0
    older_wins: float = 0.5
    home_wins: FloatArray | None = None
    tie_tokens: float | None = None

    def stay_table(self) -> FloatArray:
        """Return P(stay) at the leads, and the logarithm of that of turns that find as much.

        An older copy as long as a request's was left by such a turn: those that found less have
        less in common with this one, too.

        Returns
        -------
        ndarray, shape (2, LEADS)
        """
        table = np.empty((2, LEADS))
        if self.stay_of_leads is None or self.stay_above_leads is None:
            table[0], table[1] = self.stay, np.log(max(self.stay, 1e-12))
        else:
            table[0] = self.stay_of_leads
            np.log(np.maximum(self.stay_above_leads, 1e-12), out=table[1])
        return table

    def context_only(self) -> StayRule:
        """Return the rule for those whose home has their context: no other is served there."""
        return replace(self, stay_without=0.0, home_wins=np.zeros(HOLDERS))

    def home_wins_of(self, holders: FloatArray, instances: int) -> FloatArray:
        """Return P(the home is the least loaded of so many instances, itself one of them).

        Parameters
        ----------
        holders : ndarray
            Numbers of instances, from 1 to N; need not be whole.
        instances : int
            N.
        """
        if self.home_wins is None:
            return np.asarray(1.0 / np.maximum(holders, 1.0))
        of = np.linspace(0.0, np.log(float(max(instances, 2))), self.home_wins.size)
        return np.asarray(np.interp(np.log(np.maximum(holders, 1.0)), of, self.home_wins))
