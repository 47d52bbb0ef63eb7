"""All questions of a plan, one after the other; each is tested for itself elsewhere."""

from __future__ import annotations

from typing import Any

import pytest

from smetric_model.errors import UnstableError
from smetric_model.operations import Finding
from smetric_model.operations import overview as module
from smetric_model.operations.overview import operational_findings
from smetric_model.scenario import Scenario
from smetric_model.workload.trace import Trace

QUESTIONS = (
    "node_loss",
    "cold_recovery",
    "router_replicas",
    "tenant_isolation",
    "kv_cache_dtype",
)


@pytest.fixture
def seeds(monkeypatch: pytest.MonkeyPatch) -> dict[str, Any]:
    """Seeds that each question was asked with."""
    given: dict[str, Any] = {}

    def stand_in(name: str) -> Any:
        def ask(_scenario: Scenario, *_positional: Any, **options: Any) -> Finding:
            given[name] = options.get("seeds")
            options["progress"]("at work")
            if name == "router_replicas":
                raise UnstableError("compute saturates", "compute")
            return Finding(name, name, (), ("yes",))

        return ask

    for name in QUESTIONS:
        monkeypatch.setattr(module, name, stand_in(name))
    return given


def test_every_question_is_asked(scenario: Scenario, trace: Trace, seeds: dict[str, Any]) -> None:
    told: list[str] = []
    found = operational_findings(scenario, seeds=2, trace=trace, progress=told.append)
    assert tuple(seeds) == QUESTIONS
    assert [seeds[name] for name in QUESTIONS] == [2, 2, 2, None, None]
    assert [one.words[0] for one in found] == [
        "yes",
        "yes",
        "No answer here: compute saturates",
        "yes",
        "yes",
    ]
    assert found[2].title == "Several routers"
    assert "FP8 KV: at work" in told


def test_pools_are_not_simulated(scenario: Scenario, trace: Trace, seeds: dict[str, Any]) -> None:
    pools = scenario.replace(
        cluster={"serving": "disaggregated", "prefill_instances": 10, "decode_instances": 10}
    )
    operational_findings(pools, seeds=2, trace=trace)
    assert seeds["node_loss"] == seeds["cold_recovery"] == seeds["router_replicas"] == 0
