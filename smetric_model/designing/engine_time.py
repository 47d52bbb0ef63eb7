r"""Whose work fills GPUs and links: prompt tokens computed, prompt tokens reused, output.

Per request with ``n`` computed and ``c`` reused prompt tokens and ``O`` output tokens, GPU time is
what the step model says of it alone, cut where a token of a class would not have been there:

==================  ============================================================================
class               GPU time of a request
==================  ============================================================================
computed prompt     prefill(n, 0) + its share of the KV read while decoding
reused prompt       prefill(n, c) - prefill(n, 0): attention over what was not computed; + its share
                    of the KV read while decoding
output              decode steps without the KV read, + the output's own share of that
==================  ============================================================================

with prefill(n, c) in chunks of the token budget, a decode step at the mean batch of the rate, and
the KV read (the step model's ``attention_decode``) shared as n : c : O/2.  The three sum to
prefill(n, c) + decode.  Where there are two pools, each one's time is that of its own classes.  The
time in which GPUs stand idle goes in proportion: it is there for the same requests.

Links: fetches and the writes behind them are there for reuse; where there are two pools, handing a
prompt over counts for its tokens, as they came.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np

from smetric_model.analytic._step_kernels import prefill_time_s
from smetric_model.analytic.step_time import step_breakdown

if TYPE_CHECKING:
    from smetric_model.analytic.cluster import ClusterState, ColocatedCluster
    from smetric_model.outcome import Outcome

__all__ = ["CLASSES", "time_shares"]

#: classes of tokens
CLASSES = ("computed_prompt", "reused_prompt", "output")


def time_shares(
    cluster: ColocatedCluster, state: ClusterState, outcome: Outcome
) -> dict[str, float]:
    """Return the shares of GPU time and of link bytes by class of token.

    Parameters
    ----------
    cluster : ColocatedCluster
        The closed form.
    state : ClusterState
        At its rate.
    outcome : Outcome
        The prediction there.

    Returns
    -------
    dict of str to float
        ``gpu_{class}_ratio`` and ``link_{class}_ratio``; each three sum to 1 (the links' are all 0
        where nothing is moved).
    """
    mixed = state.mixed
    budget = cluster.demand.instance.token_budget
    reused = mixed.local + mixed.fetched
    new = np.maximum(mixed.prompt - reused, 0.0)
    whole = np.asarray(prefill_time_s(cluster.model, new, reused, budget))
    alone = np.asarray(prefill_time_s(cluster.model, new, np.zeros(new.size), budget))
    prefill = np.array([alone.mean(), (whole - alone).mean(), 0.0])
    decode = _decode(cluster, state, outcome, float(new.mean()), float(reused.mean()))

    section = cluster.scenario.cluster
    if section.serving == "disaggregated":
        parts = section.prefill_instances or 1, section.decode_instances or 1
        gpu = sum(
            pool * seconds / max(float(seconds.sum()), 1e-300)
            for pool, seconds in zip(parts, (prefill, decode), strict=True)
        )
    else:
        gpu = prefill + decode
    gpu = np.asarray(gpu) / float(np.sum(gpu))

    moved = np.zeros(3)
    remote = cluster.cluster.remote_ratio
    if cluster.has_global:
        moved[1] += remote * float(mixed.fetched.mean() + new.mean())
    if section.serving == "disaggregated":
        moved[0] += float(new.mean())
        moved[1] += float(reused.mean())
    total = float(moved.sum())
    links = moved / total if total > 0 else moved
    result = {f"gpu_{name}_ratio": float(v) for name, v in zip(CLASSES, gpu, strict=True)}
    return result | {f"link_{name}_ratio": float(v) for name, v in zip(CLASSES, links, strict=True)}


def _decode(
    cluster: ColocatedCluster, state: ClusterState, outcome: Outcome, new: float, reused: float
) -> np.ndarray[tuple[int], np.dtype[np.float64]]:
    """GPU time of a request's decode steps by class."""
    output = state.mixed.output
    steps = float(np.maximum(output - 1.0, 0.0).mean())
    if steps == 0:
        return np.zeros(3)
    section = cluster.scenario.cluster
    instances = section.decode_instances or section.instances
    # Little's law: sequences that decode on an instance
    batch = state.rate_rps / instances * steps * outcome.number("tpot_mean_s")
    batch = max(batch, 1.0)
    own = 0.5 * float(output.mean())
    context = new + reused + own
    step = step_breakdown(cluster.model, 0.0, 0.0, batch, context)
    read = float(step.groups["attention_decode"]["time_s"])
    each = steps / batch
    shares = np.array([new, reused, own]) / context
    return np.asarray(each * (read * shares + np.array([0.0, 0.0, step.step_time_s - read])))
