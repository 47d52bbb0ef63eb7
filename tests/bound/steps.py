"""Models whose steps the minorants are held against."""

from __future__ import annotations

from smetric_model.analytic.demand import instance_of
from smetric_model.analytic.memory import local_tier
from smetric_model.analytic.step_model import step_model
from smetric_model.analytic.step_time import step_groups
from smetric_model.scenario import Scenario

CASES = {
    "moe": {"engine": {}},
    "moe, eager": {"engine": {"mode": "eager"}},
    "dense": {"llm": {"name": "Qwen3-32B"}, "engine": {"tp": 2}},
    "latent attention": {"llm": {"name": "DeepSeek-V3"}, "engine": {"tp": 16, "gpu": "H20"}},
    "linear attention": {"llm": {"name": "Qwen3-Next-80B-A3B"}, "engine": {"tp": 4}},
}


def case(name: str, budget: int = 8192, running: int = 256):
    """Step model, pool [tokens], token budget and most running requests."""
    content = {key: dict(value) for key, value in CASES[name].items()}
    content["cluster"] = {"gpus_per_node": 16}
    scenario = Scenario.from_dict(content)
    instance = instance_of(scenario)
    return step_model(instance), local_tier(instance).tokens, budget, running


def step_s(model, tokens, pairs, keys, batch, context, sampled) -> float:
    """Time of one step."""
    return float(sum(step_groups(model, tokens, pairs, keys, batch, context, sampled)))
