"""Rate curves: means, shapes, and files that are not curves."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest

from smetric_model.errors import SpecError, TraceError
from smetric_model.operations.day import diurnal_parameters
from smetric_model.operations.rate_curve import (
    DAY_S,
    RateCurve,
    diurnal_curve,
    file_curve,
    parameter_curve,
    trace_curve,
)
from smetric_model.workload.synthesis import generate, preset_parameters
from smetric_model.workload.trace import Trace


@pytest.mark.parametrize("interval_s", [300.0, 3600.0])
def test_a_sine_has_its_mean_and_its_peak(interval_s: float) -> None:
    curve = diurnal_curve(4.0, 0.5, interval_s, peak_s=6 * 3600.0)
    assert curve.periodic
    assert curve.length_s == DAY_S
    assert curve.mean_rps == pytest.approx(4.0, rel=1e-12)
    assert curve.peak_to_mean_ratio == pytest.approx(1.5, rel=5e-3)
    busiest = (np.argmax(curve.rate_rps) + 0.5) * interval_s
    assert abs(busiest - 6 * 3600) <= interval_s


def test_an_interval_as_long_as_the_period_has_the_mean() -> None:
    assert diurnal_curve(4.0, 1.0, DAY_S).rate_rps == pytest.approx([4.0])


def test_a_trace_is_counted(trace: Trace) -> None:
    curve = trace_curve(trace, 300.0)
    arrival = trace.column("arrival_s") - trace.column("arrival_s").min()
    assert curve.rate_rps.size == 5  # 1,500 s
    assert curve.rate_rps[2] * 300 == ((arrival >= 600) & (arrival < 900)).sum()
    assert curve.counted
    assert not curve.periodic
    assert curve.with_mean(2.0).mean_rps == pytest.approx(2.0)
    assert curve.with_mean(2.0).peak_to_mean_ratio == pytest.approx(curve.peak_to_mean_ratio)
    with pytest.raises(SpecError, match="covers only"):
        trace_curve(trace, 1e5)


def test_a_trace_without_a_clock_has_no_curve(trace: Trace) -> None:
    import dataclasses

    with pytest.raises(TraceError):
        trace_curve(dataclasses.replace(trace, session_clock="per-session"), 60.0)


def test_a_preset_is_constant_and_random_rates_are_refused() -> None:
    parameters = preset_parameters("bailian-trace-1-short")
    assert parameter_curve(parameters, 3600.0).peak_to_mean_ratio == pytest.approx(1.0)
    with pytest.raises(SpecError, match="mmpp"):
        parameter_curve(parameters.replace(**{"arrivals.kind": "mmpp"}), 3600.0)


def test_requests_follow_the_sine_that_they_were_made_for() -> None:
    period, amplitude, peak = DAY_S, 0.4, 43_200.0
    parameters = diurnal_parameters(
        preset_parameters("bailian-trace-1-short"), amplitude, peak, period
    )
    curve = parameter_curve(parameters, 3600.0)
    assert curve.peak_to_mean_ratio == pytest.approx(1 + amplitude, abs=0.01)
    arrival = generate(parameters, rate_rps=1.5, window_s=period, seed=3).column("arrival_s")
    wave = 2 * np.exp(2j * np.pi * arrival / period).mean()
    # 130,000 requests of some thousand sessions
    assert abs(wave) == pytest.approx(amplitude, abs=0.07)
    assert np.angle(wave) / (2 * np.pi) * period % period == pytest.approx(peak, abs=3600)
    with pytest.raises(SpecError, match="amplitude_ratio = 1"):
        diurnal_parameters(preset_parameters("bailian-trace-1-short"), 1.0, peak, 600.0)


def test_a_file_is_read(tmp_path: Path) -> None:
    path = tmp_path / "curve.csv"
    path.write_text("start_s,rate_rps\n" + "".join(f"{3600 * k},{k % 5}\n" for k in range(24)))
    curve = file_curve(path)
    assert curve.periodic
    assert curve.interval_s == 3600
    assert curve.rate_rps.tolist() == [k % 5 for k in range(24)]


@pytest.mark.parametrize(
    ("content", "message"),
    [
        ("", "not read as CSV"),
        ("a,b\n1,2\n", "columns start_s and rate_rps are needed; there are a, b"),
        ("start_s,rate_rps\n0,1\n", "at least two lines"),
        ("start_s,rate_rps\n0,1\n60,x\n", "line 3: rate_rps = 'x' is no finite number"),
        ("start_s,rate_rps\n0,1\n60,1\n90,1\n", "line 4: start_s = 90 comes 30 s after"),
        ("start_s,rate_rps\n0,1\n60,-1\n", "line 3: rate_rps must be at least 0"),
        ("start_s,rate_rps\n0,0\n60,0\n", "one of them above 0"),
    ],
)
def test_a_file_that_is_no_curve_says_why(tmp_path: Path, content: str, message: str) -> None:
    path = tmp_path / "curve.csv"
    path.write_text(content)
    with pytest.raises(SpecError, match=message):
        file_curve(path)


def test_what_is_not_allowed_is_said() -> None:
    with pytest.raises(SpecError, match="no such file"):
        file_curve("nowhere.csv")
    for wrong in (
        lambda: diurnal_curve(0.0, 0.5, 60.0),
        lambda: diurnal_curve(1.0, 1.5, 60.0),
        lambda: diurnal_curve(1.0, 0.5, 0.0),
        lambda: RateCurve(60.0, np.zeros(0), "empty"),
        lambda: RateCurve(60.0, np.ones(3), "x").with_mean(-1.0),
    ):
        with pytest.raises(SpecError):
            wrong()
