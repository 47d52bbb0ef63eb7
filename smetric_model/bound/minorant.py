r"""A lower bound (minorant) of the step time, so that work can be counted by request.

A step with prefill chunks and ``d`` decoding sequences takes, by
:func:`~smetric_model.analytic.step_time.step_groups`,

.. math:: t = G(n) + A_p + A_d,\qquad n = p + d,

where G is what depends on the number of tokens only (weights, experts, gaps, all-reduces, head).
This module gives numbers such that, for every step that an engine can run,

.. math:: t \ge \beta\,p + a\,(\mathrm{pairs} + \tau p) + g(d) + \kappa \sum_{r\ \mathrm{decoding}}
          \mathrm{context}_r .

:mod:`smetric_model.bound.rows` shares g(d) out among the sequences.

*Proof.*  (1) Attention: each group is a maximum, hence at least each of its sides; prefill
attention takes its compute side, decode attention its streaming side at full bandwidth, both
linear.  (2) Dense layers: max(F n, W) ≥ θ W + (1 − θ) F n for any θ in [0, 1].  (3) For any
β ≤ min_p G(p)/p let g(d) = min_p [G(p + d) − β p], so that G(p + d) ≥ β p + g(d), also in a mixed
step.  (4) A step that the CPU launches eagerly takes max(t_GPU, E) ≥ υ t_GPU + (1 − υ) max(G, E)
for υ in [0, 1].

β, θ and υ are free: every choice is valid, and several may be used side by side.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
from numpy.typing import ArrayLike, NDArray

from smetric_model.analytic.step_time import StepModel, step_groups

__all__ = ["Minorant", "least_step_s", "minorants"]

FloatArray = NDArray[np.float64]

_DENSE_SPLITS = (0.0, 0.5, 1.0)
_EAGER_SPLITS = (1.0, 0.5, 0.0)
_PREFILL_SPLITS = (1.0, 0.98, 0.95, 0.9, 0.85, 0.7, 0.5)


@dataclass(frozen=True, eq=False)
class Minorant:
    """Coefficients of one minorant of the step time.

    Attributes
    ----------
    prefill_token_s : float
        β plus attention's wasted keys, per prefilled token [s].
    prefill_pair_s : float
        a: per (query, key) pair [s].
    decode_key_s : float
        κ: per token of context of a decoding sequence and step [s].
    batch_s : ndarray of float64, shape (places,)
        g at 1, 2, … decoding sequences [s].
    label : str
        Which choice of (β, θ, υ) this is.
    """

    prefill_token_s: float
    prefill_pair_s: float
    decode_key_s: float
    batch_s: FloatArray
    label: str

    def step_s(
        self, prefill_tokens: float, prefill_pairs: float, contexts_tokens: ArrayLike
    ) -> float:
        """Evaluate the minorant for one step, for checks.

        Parameters
        ----------
        prefill_tokens, prefill_pairs : float
            As in :func:`~smetric_model.analytic.step_time.step_groups`.
        contexts_tokens : array_like of float, shape (decoding,)
            Context of each decoding sequence [tokens].

        Returns
        -------
        float
            Seconds, at most the step time [s].
        """
        context = np.asarray(contexts_tokens, dtype=float)
        decode = self.batch_s[context.size - 1] if context.size else 0.0
        return float(
            self.prefill_token_s * prefill_tokens
            + self.prefill_pair_s * prefill_pairs
            + decode
            + self.decode_key_s * context.sum()
        )


def _token_times(
    model: StepModel, tokens: FloatArray, theta: float, upsilon: float
) -> tuple[FloatArray, FloatArray]:
    """Time of the groups that see only the number of tokens; without and with the head."""
    zero = 0.0 * tokens
    groups = step_groups(model, tokens, zero, zero, zero, zero, zero)
    dense = theta * model.dense_weights_s + (1 - theta) * model.dense_flop_s_per_token * tokens
    # dense, experts, linear attention, all-reduce; prefill attention is counted by its own terms
    gpu = dense + groups[1] + model.linear_token_s * tokens + groups[6] + model.gap_s
    head = np.maximum(model.head_token_s * tokens, model.head_weights_s)

    def launched(time: FloatArray) -> FloatArray:
        if model.graph_capture_tokens > 0:
            return time
        return upsilon * time + (1 - upsilon) * np.maximum(time, model.eager_launch_s)

    return launched(gpu), head * (upsilon if model.graph_capture_tokens == 0 else 1.0)


def minorants(
    model: StepModel,
    token_budget: int,
    max_running_requests: int,
    mixed: bool = True,
) -> list[Minorant]:
    """Return a family of minorants; each is valid on its own.

    Parameters
    ----------
    model : StepModel
        The instance.
    token_budget : int
        Tokens of one engine step.
    max_running_requests : int
        Most sequences that run at once.
    mixed : bool, default True
        Whether steps may hold prefill and decode; False for the instances of disaggregated pools,
        where a step holds only one of both.

    Returns
    -------
    list of Minorant
    """
    eager = model.graph_capture_tokens == 0
    most = max(token_budget, max_running_requests)
    tokens = np.arange(1.0, most + 1.0)
    places = max_running_requests
    result: list[Minorant] = []
    for theta in _DENSE_SPLITS:
        for upsilon in _EAGER_SPLITS if eager else (1.0,):
            time, head = _token_times(model, tokens, theta, upsilon)
            per_token = float((time / tokens)[:token_budget].min())
            for split in _PREFILL_SPLITS if mixed else (1.0,):
                beta = split * per_token
                # g(d) = min over n >= d of G(n) - β (n - d); a step of more than the budget only
                # decodes
                credit = time - beta * tokens
                credit[token_budget:] = np.inf
                least = np.minimum.accumulate(credit[::-1])[::-1][:places]
                least = least + beta * tokens[:places]
                decode_only = time[:places]
                g = np.minimum(least, decode_only) if mixed else decode_only
                g = g + head[:places] + upsilon * model.linear_state_s * tokens[:places]
                label = f"prefill {split:g}, dense {theta:g}"
                label += f", launch {1 - upsilon:g}" if eager else ""
                result.append(
                    Minorant(
                        prefill_token_s=beta
                        + upsilon * model.attention_pair_s * model.attention_tile_tokens,
                        prefill_pair_s=upsilon * model.attention_pair_s,
                        decode_key_s=upsilon * max(model.attention_decode_key_s, model.kv_token_s),
                        batch_s=g,
                        label=label,
                    )
                )
    return result


def least_step_s(
    model: StepModel, token_budget: int, max_running_requests: int
) -> tuple[float, float]:
    """Return the least time of a step in which some sequence decodes.

    Parameters
    ----------
    model : StepModel
        The instance.
    token_budget : int
        Tokens of one engine step.
    max_running_requests : int
        Most sequences that run at once.

    Returns
    -------
    step_s : float
        At no context, whatever else the step holds [s].
    key_s : float
        What each token of that sequence's context adds [s].
    """
    others = np.arange(0.0, max(token_budget, max_running_requests))
    zero = 0.0 * others
    groups = step_groups(model, others, zero, zero, zero + 1.0, zero, zero + 1.0)
    gpu = sum(group for k, group in enumerate(groups[:-1]) if k != 2) + model.gap_s
    key = max(model.attention_decode_key_s, model.kv_token_s)
    return float(np.min(gpu)), key
