from __future__ import annotations

import pytest

from smetric_model.analytic.demand import Demand, demand_of, trace_of
from smetric_model.scenario import Scenario
from smetric_model.workload.trace import Trace


@pytest.fixture(scope="session")
def scenario() -> Scenario:
    """Two nodes of eight instances, at about half of what they serve."""
    return Scenario(
        workload={
            "preset": "bailian-trace-1-short",
            "rate_rps": 6.0,
            "window_s": 600.0,
            "warmup_s": 900.0,
        },
        cluster={"instances": 16},
    )


@pytest.fixture(scope="session")
def trace(scenario: Scenario) -> Trace:
    return trace_of(scenario)


@pytest.fixture(scope="session")
def demand(scenario: Scenario, trace: Trace) -> Demand:
    return demand_of(scenario, trace)
