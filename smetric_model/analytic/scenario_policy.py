"""The routing policy that a scenario asks for, with what it must know of the instances."""

from __future__ import annotations

import math
from typing import TYPE_CHECKING, Any

from smetric_model.analytic.step_time import StepModel, step_time_s
from smetric_model.routing.registry import make_policy, policy_parameters

if TYPE_CHECKING:
    from smetric_model.catalog.instance import InstanceSpec
    from smetric_model.routing.policy import Policy
    from smetric_model.scenario import Scenario

__all__ = ["policy_of", "policy_settings"]


def policy_of(
    scenario: Scenario, instance: InstanceSpec, model: StepModel, cache_block_tokens: int
) -> Policy:
    """Return the policy of a scenario's router.

    Parameters
    ----------
    scenario : Scenario
        Its ``router`` section, and the SLO for policies that look at it.
    instance : InstanceSpec
        For the engine's block and token budget.
    model : StepModel
        For the speed of prefill, for policies that look at it.
    cache_block_tokens : int
        Tokens of a block in which hits are counted.

    Returns
    -------
    Policy
    """
    settings = policy_settings(scenario, instance, model, cache_block_tokens)
    return make_policy(scenario.router.policy, settings)


def policy_settings(
    scenario: Scenario, instance: InstanceSpec, model: StepModel, cache_block_tokens: int
) -> dict[str, Any]:
    """Return the parameters of that policy, as its constructor and a router's file name them.

    Parameters
    ----------
    scenario, instance, model, cache_block_tokens
        As in :func:`policy_of`.

    Returns
    -------
    dict
    """
    name = scenario.router.policy
    known = policy_parameters(name)
    section = scenario.router.model_dump()
    settings: dict[str, Any] = {key: section[key] for key in known if key in section}
    if "block_tokens" in known:
        settings["block_tokens"] = max(instance.block_tokens, cache_block_tokens)
    if "prefill_tokens_per_s" in known:
        # seconds of a token of a full chunk, and of each key that it attends to
        chunk = instance.token_budget
        linear_s = float(step_time_s(model, chunk)) / chunk - model.attention_pair_s * chunk / 2
        settings |= {
            "ttft_base_s": scenario.slo.ttft_base_s,
            "ttft_per_prompt_token_s": scenario.slo.ttft_per_prompt_token_s,
            "prefill_tokens_per_s": 1 / linear_s,
            "attention_equal_tokens": linear_s / model.attention_pair_s
            if model.attention_pair_s > 0
            else math.inf,
        }
    return settings
