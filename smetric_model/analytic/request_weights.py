"""How unequal requests are: what each adds to a quantity whose imbalance is asked for."""

from __future__ import annotations

from dataclasses import dataclass, field, replace

import numpy as np
from numpy.typing import ArrayLike, NDArray

from smetric_model.analytic import _imbalance_kernels as kernels
from smetric_model.errors import SpecError

__all__ = ["RequestWeights"]

FloatArray = NDArray[np.float64]

_ALL_ALIKE = np.zeros(0)


@dataclass(frozen=True, eq=False)
class RequestWeights:
    """How unequal the amounts are that requests add to a quantity.

    Parameters
    ----------
    squared_variation : float
        Variance ÷ squared mean over requests; for what is in flight, over the requests found in
        flight at a time (long ones count more).
    session_ratio : float
        Share of that variance that is between sessions, the rest being between turns of one.
    duration_s : float, optional
        Mean time for which a request adds to the quantity [s]; the whole time at its instance by
        default.
    engine_ratio : float
        ρ: share of the time in which the engine prefills them, beside decode.
    engine_variation, engine_covariation : float
        Of the prefill times: variance ÷ squared mean, and covariance with the amounts ÷ means.
    pulses : tuple of ndarray, optional
        Amounts, how much of each is computed [tokens], and how long that lasts [s].
    """

    squared_variation: float
    session_ratio: float = 1.0
    duration_s: float | None = None
    engine_ratio: float = 0.0
    engine_variation: float = 0.0
    engine_covariation: float = 0.0
    pulses: tuple[FloatArray, FloatArray, FloatArray] | None = field(default=None, repr=False)

    def __post_init__(self) -> None:
        if not 0 <= self.squared_variation < np.inf:
            raise SpecError(
                f"weights: squared_variation = {self.squared_variation}; a finite number >= 0"
                " is needed"
            )
        if not 0 <= self.session_ratio <= 1:
            raise SpecError(f"weights: session_ratio = {self.session_ratio}; it lies in [0, 1]")

    @classmethod
    def of(
        cls,
        tokens: ArrayLike,
        session: ArrayLike | None = None,
        present_s: ArrayLike | None = None,
        duration_s: float | None = None,
    ) -> RequestWeights:
        """Return the weights of a sample of requests.

        Parameters
        ----------
        tokens : array_like of float, shape (n,)
            What each adds [tokens].
        session : array_like of int, shape (n,), optional
            Session of each; without it all variance counts as between sessions.
        present_s : array_like of float, shape (n,), optional
            How long each is present [s], to weigh the sample as it is found in flight.
        duration_s : float, optional
            See the class.
        """
        amount = np.asarray(tokens, dtype=float)
        present = _ALL_ALIKE if present_s is None else np.asarray(present_s, dtype=float)
        index = np.arange(amount.size) if session is None else np.asarray(session, dtype=np.int64)
        if session is not None and (index.min() < 0 or index.max() > 4 * index.size):
            index = np.unique(index, return_inverse=True)[1]
        mean, variance, between = kernels.spread(amount, present, index, int(index.max()) + 1)
        if variance <= 1e-20 * mean * mean:
            return cls(0.0, 1.0, duration_s)
        ratio = 1.0 if session is None else min(between / variance, 1.0)
        return cls(variance / mean**2, ratio, duration_s)

    def of_engine(
        self, tokens: ArrayLike, computed: ArrayLike, prefill_s: ArrayLike, engine_ratio: float
    ) -> RequestWeights:
        """Return the weights of what engines process: computed as prefills last, the rest at once.

        Parameters
        ----------
        tokens, computed : array_like of float, shape (n,)
            What each request adds, and how much of it is computed [tokens].
        prefill_s : array_like of float, shape (n,)
            How long each prefill lasts [s].
        engine_ratio : float
            Share of the time that prefills take beside decode.
        """
        amount, work = np.asarray(tokens, dtype=float), np.asarray(prefill_s, dtype=float)
        variation, covariation = kernels.engine_spread(amount, work)
        return replace(
            self,
            engine_ratio=engine_ratio,
            engine_variation=variation,
            engine_covariation=covariation,
            pulses=(amount, np.asarray(computed, dtype=float), work),
        )

    def seen_ratio(self, window_s: float) -> float:
        """Return the share of the amounts' mean square that a window sees at once.

        Parameters
        ----------
        window_s : float
            T [s].
        """
        if self.pulses is None:
            return 1.0
        return 1.0 - float(kernels.unseen_ratio(*self.pulses, window_s))

    def variation_beside(self, share: float) -> float:
        """Return the squared variation of ``x - share E[x] w/E[w]``.

        Parameters
        ----------
        share : float
            Of the engine's time.
        """
        left = self.squared_variation - 2 * share * self.engine_covariation
        return max(left + share**2 * self.engine_variation, 0.0)
