"""Laws of one instance's load that need no fixed point of a routing policy."""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray
from scipy import special

from smetric_model.analytic import _chain_kernels as kernels

__all__ = ["birth_death", "dealt_in_turn_law", "least_loaded_law", "least_loaded_over_time"]

FloatArray = NDArray[np.float64]


def least_loaded_law(rate: float, completion: FloatArray, instances: int) -> FloatArray:
    """Return the law of an instance's load when every request joins the least loaded of N.

    Parameters
    ----------
    rate : float
        Requests per second and instance [requests/s].
    completion : ndarray, shape (levels - 1,)
        Completions per second with 1, 2, … present [requests/s].
    instances : int
        N.

    Returns
    -------
    ndarray, shape (levels,)
    """
    if instances == 1:
        return birth_death(np.full(completion.size + 1, rate), completion)
    enough = int(np.searchsorted(completion, rate)) + 1
    top = min(completion.size, enough + int(600 / np.log(instances)))
    return np.asarray(kernels.join_least_loaded(rate, completion, instances, top))


def dealt_in_turn_law(rate: float, completion: FloatArray, instances: int) -> FloatArray:
    r"""Return the law of an instance's load when requests are dealt out in turn.

    Of a Poisson stream every N-th comes here: Erlang gaps of N phases at the cluster's rate Λ.
    Between two arrivals completions are a pure death process Q, so that the load before arrivals
    is a Markov chain: one up, then ``(I - Q/Λ)^{-N}``; level crossing turns its law into that over
    time, ``p_{l+1} µ(l+1) = rate × P(l before an arrival)``.

    Parameters
    ----------
    rate, completion, instances
        See :func:`least_loaded_law`.

    Returns
    -------
    ndarray, shape (levels,)
    """
    size = completion.size + 1
    death = np.append(0.0, completion)
    phase = np.diag(1 + death / (rate * instances)) - np.diag(completion / (rate * instances), -1)
    step = np.linalg.matrix_power(np.linalg.inv(phase), instances)
    chain = np.vstack((step[1:], step[-1:]))  # an arrival at the top finds no room
    system = chain.T - np.eye(size)
    system[-1] = 1.0
    before = np.linalg.solve(system, np.append(np.zeros(size - 1), 1.0))
    law = np.maximum(rate * before[:-1] / completion, 0.0)
    return np.append(max(1 - law.sum(), 0.0), law)


def birth_death(births: FloatArray, completion: FloatArray) -> FloatArray:
    """Return the law of a birth-death chain, in logarithms so that tails are exact.

    Parameters
    ----------
    births : ndarray, shape (levels,)
        Rates up [1/s].
    completion : ndarray, shape (levels - 1,)
        Rates down from 1, 2, … [1/s].

    Returns
    -------
    ndarray, shape (levels,)
    """
    law = np.empty(births.size)
    kernels.birth_death(births, completion, law)
    return law


def least_loaded_over_time(
    rate: float, completion: FloatArray, instances: int, total_variance: float, nodes: int = 12
) -> tuple[FloatArray, float, float]:
    r"""Return the load's law under load balancing, the cluster's total left free to vary.

    When every request joins the least loaded, loads are a narrow band that rides on the total X.
    So the law is a mixture over ``x = X / N ~ Gamma(mean, (v_X - v_in) / N)``, ``v_in`` the
    variance of the band at a fixed total, on nodes of equal probability; in each the rate is tuned
    so that the mean load is x.

    Parameters
    ----------
    rate, completion, instances
        See :func:`least_loaded_law`.
    total_variance : float
        Variance of the cluster's total ÷ N.
    nodes : int
        Nodes of the mixture.

    Returns
    -------
    law : ndarray, shape (levels,)
        P(load = l) at any time.
    largest_mean : float
        E[largest load of the N].
    largest_over_mean : float
        E[largest ÷ mean].
    """
    loads = np.arange(completion.size + 1, dtype=float)
    band = least_loaded_law(rate, completion, instances)
    mean = float(band @ loads)
    inside = float(band @ (loads - mean) ** 2)
    variance = max(total_variance - inside, 0.0) / instances
    if instances == 1 or variance < 1e-9 * mean * mean:
        largest = float((1 - np.cumsum(band)[:-1] ** instances).sum())
        return band, largest, largest / mean
    shape = mean * mean / variance
    at = special.gammaincinv(shape, (np.arange(nodes) + 0.5) / nodes) * mean / shape
    at *= mean / at.mean()
    # rates that have these means: laws at a few rates around, then interpolated
    top = 0.9995 * float(completion[-1])
    tried = np.unique(np.clip(rate * np.linspace(0.2, 2.0, 19), 1e-6 * rate, top))
    means = np.array([least_loaded_law(r, completion, instances) @ loads for r in tried])
    rates = np.interp(at, means, tried)
    laws = np.stack([least_loaded_law(float(r), completion, instances) for r in rates])
    largest_each = (1 - np.cumsum(laws, axis=1)[:, :-1] ** instances).sum(axis=1)
    centres = np.maximum(laws @ loads, 1e-12)
    return laws.mean(axis=0), float(largest_each.mean()), float((largest_each / centres).mean())
