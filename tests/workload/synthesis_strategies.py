"""Random but small parameter sets of the generator."""

from __future__ import annotations

from hypothesis import strategies as st

from smetric_model.workload.synthesis_distributions import (
    Constant,
    LogNormal,
    Mixture,
    Quantiles,
    Uniform,
)
from smetric_model.workload.synthesis_parameters import (
    Arrivals,
    Forks,
    Frameworks,
    HistoryEdits,
    Sessions,
    Tenants,
    ThinkTimes,
    WorkloadParameters,
)

tokens = st.one_of(
    st.builds(Constant, st.floats(0, 2_000)),
    st.builds(LogNormal, st.floats(1, 1_000), st.floats(0, 2)),
    st.builds(lambda low, width: Uniform(low, low + width), st.floats(0, 500), st.floats(1, 500)),
)
counts = st.builds(
    LogNormal, st.floats(0.5, 12), st.floats(0, 1.2), st.just(0.0), st.floats(20, 60)
)
shares = st.one_of(
    st.builds(Constant, st.floats(0, 1)),
    st.just(Uniform(0.0, 1.0)),
    st.just(Quantiles(((0.0, 0.0), (0.5, 0.1), (1.0, 1.0)))),
)
seconds = st.one_of(
    st.builds(LogNormal, st.floats(0.01, 100), st.floats(0, 1.5)),
    st.builds(
        lambda a, b: Mixture((1.0, 2.0), (Constant(a), LogNormal(b, 1.0))),
        st.floats(0, 10),
        st.floats(0.1, 100),
    ),
)
arrivals = st.one_of(
    st.just(Arrivals()),
    st.builds(
        Arrivals,
        st.just("mmpp"),
        st.just((0.0, 1.0, 3.0)),
        st.tuples(*[st.floats(10, 500)] * 3),
    ),
    st.builds(
        Arrivals, st.just("diurnal"), amplitude_ratio=st.floats(0, 1), period_s=st.floats(60, 9_000)
    ),
)


@st.composite
def parameters(draw) -> WorkloadParameters:
    """Any kind of traffic, about a hundred requests of it in 300 s at 0.5 requests/s."""
    frameworks = Frameworks(
        draw(st.integers(1, 4)),
        draw(st.floats(0, 2)),
        draw(st.builds(LogNormal, st.floats(1, 400), st.floats(0, 1), high=st.just(2_000.0))),
        draw(st.integers(1, 3)),
        draw(st.builds(LogNormal, st.floats(1, 300), st.floats(0, 1), high=st.just(2_000.0))),
    )
    rewrite = draw(st.floats(0, 0.9))
    return WorkloadParameters(
        block_tokens=draw(st.sampled_from([1, 16, 64, 300])),
        rate_rps=0.5,
        window_s=300.0,
        history_s=1_000.0,
        arrivals=draw(arrivals),
        frameworks=frameworks,
        tenants=Tenants(draw(st.integers(1, 3)), 1.0, draw(st.booleans())),
        sessions=Sessions(
            turns=draw(counts),
            first_tokens=draw(tokens),
            tool_result_tokens=draw(tokens),
            user_tokens=draw(tokens),
            size_sigma=draw(st.floats(0, 1)),
            first_turns_correlation=draw(st.floats(-1, 1)),
            size_turns_correlation=draw(st.floats(-1, 1)),
            output_tokens=draw(tokens),
            answer_kept_ratio=draw(st.floats(0, 1)),
            user_ratio=draw(st.floats(0, 1)),
            context_limit_tokens=draw(st.builds(Constant, st.floats(4_500, 20_000))),
        ),
        think=ThinkTimes(draw(seconds), draw(seconds), draw(seconds), draw(st.floats(0, 1))),
        history=HistoryEdits(
            rewrite,
            draw(st.floats(0, 0.95)),
            draw(shares),
            draw(st.floats(0, 2)),
            draw(st.floats(0, 1 - rewrite)),
            draw(st.floats(0, 500)),
            draw(tokens),
            draw(tokens),
        ),
        forks=Forks(
            draw(st.floats(0, 0.15)),
            draw(st.builds(LogNormal, st.floats(0.5, 3), st.floats(0, 0.5), high=st.just(5.0))),
            draw(shares),
            draw(counts),
            draw(seconds),
            draw(st.booleans()),
            draw(st.integers(1, 2)),
        ),
    )
