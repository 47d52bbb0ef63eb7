"""TraceLab, LMCache, Azure and ServeGen, on small files written here."""

from __future__ import annotations

import json
import math

import numpy as np
import pytest
from trace_files import notes, write

from smetric_model.errors import TraceError
from smetric_model.workload import load_trace
from smetric_model.workload.reuse import ideal_reuse

# -- TraceLab, LMCache, Azure, ServeGen ----------------------------------------------------------


def test_tracelab(tmp_path) -> None:
    def row(index, second, total, prefix, kind):
        stamp = f"2026-08-25T00:00:{second:02}"
        return {
            "session_id": "s",
            "provider": "codex",
            "round_index": index,
            "model": "m",
            "input_tokens_total": total,
            "prefix_tokens": prefix,
            "newly_append_tokens": total - prefix,
            "output_tokens": 9,
            "timing_events": [
                {"event_type": kind, "timestamp": stamp + "Z"},
                {"event_type": "text", "timestamp": stamp + ".500+00:00"},
            ],
        }

    rows = [
        row(0, 1, 9000, 0, "user_message"),
        row(1, 5, 9900, 3456, "tool_result"),
        row(2, 9, 9999, 5, "tool_result") | {"prefix_tokens": 6},
    ]
    trace = load_trace(write(tmp_path / "t", rows))
    assert (trace.format, trace.tree, trace.session_names) == ("tracelab", None, ("codex/s",))
    np.testing.assert_allclose(trace.column("arrival_s"), [0, 4, 8])
    np.testing.assert_allclose(trace.column("think_time_s"), [math.nan, 3.5, 3.5])
    assert trace.requests["trigger"].tolist() == ["user", "agent", "agent"]
    assert notes(trace, "noted") == {
        "prefix_tokens and newly_append_tokens do not sum to the input": 1
    }
    with pytest.raises(TraceError, match="holds no timestamp"):
        load_trace(write(tmp_path / "u", [rows[0] | {"timing_events": []}]))


def test_lmcache_texts(tmp_path) -> None:
    system = "You are an agent. " * 40
    rows = [
        {"timestamp": 1760428436442742, "input": system + "a" * 900, "output": "", "session_id": 1},
        {"timestamp": 1760428435442742, "input": system, "output": "x" * 9, "session_id": 2},
        {"timestamp": 1760428437442742, "input": "", "output": "x", "session_id": 2},
        {
            "timestamp": 1760428438442742,
            "input": system + "a" * 990,
            "output": "é",
            "session_id": 1,
        },
    ]
    trace = load_trace(write(tmp_path / "t", rows))
    assert trace.format == "lmcache"
    assert trace.column("arrival_s").tolist() == [0, 1, 3]
    assert trace.column("output_tokens").tolist() == [3, 0, 1]
    assert trace.column("prompt_tokens")[1] == math.ceil((len(system) + 900) / 4)
    assert trace.column("session_id").tolist() == [0, 1, 1]
    assert ideal_reuse(trace).tolist() == [0, len(system) // 256 * 64, 1620 // 256 * 64]
    assert notes(trace, "dropped") == {"a prompt of no tokens": 1}
    assert "time stamps out of order; sorted" in notes(trace, "repaired")
    assert notes(trace, "noted")["tokens estimated from text, 4 bytes each"] == 4


def test_azure(tmp_path) -> None:
    rows = [
        "TIMESTAMP,ContextTokens,GeneratedTokens",
        "2023-11-16 18:17:03.9799600,4808,10",
        "2023-11-16 18:17:04.0319600,3180,8",
        "2023-11-16 19:17:05.0319600+01:00,110,27",
    ]
    trace = load_trace(write(tmp_path / "t.csv", rows, end="\r\n"))
    assert (trace.format, trace.tree, trace.sessions) == ("azure", None, None)
    np.testing.assert_allclose(trace.column("arrival_s"), [0, 0.052, 1.052], atol=1e-6)
    assert trace.column("prompt_tokens").tolist() == [4808, 3180, 110]
    for bad, match in (
        ("2023-11-16 18:17:03.97,4808", "2 fields; 3 are needed"),
        ("2023-13-16 18:17:03.97,4808,1", "month must be"),
        ("yesterday,4808,1", "TIMESTAMP is 'yesterday'"),
        ("2023-11-16 18:17:03.97,-5,1", "ContextTokens is '-5'"),
        ("2023-11-16 18:17:03.97,1,99999999999", "GeneratedTokens is '99999999999'"),
    ):
        path = write(tmp_path / "u.csv", [*rows[:2], bad])
        with pytest.raises(TraceError, match=match) as caught:
            load_trace(path)
        assert caught.value.line == 3
        assert len(load_trace(path, on_error="skip")) == 1


def servegen(folder, windows, dataset=None, number=1):
    write(folder / f"chunk-{number}-trace.csv", windows)
    if dataset is None:
        dataset = {
            "0": {"input_tokens": "{224: 0.25, 1000: 0.75}", "output_tokens": "{10: 1.0}"},
            "1200": {"input_tokens": "{7: 1.0}", "output_tokens": "{9: 2}", "reason_ratio": "{}"},
        }
    (folder / f"chunk-{number}-dataset.json").write_text(json.dumps(dataset))
    return folder / f"chunk-{number}-trace.csv"


def test_servegen_draws_what_it_describes(tmp_path) -> None:
    windows = [
        "0,4.0,1.4,Gamma,0.5,0.5",
        "600,0,0,,0,0",
        "1200,2.0,1.0,Weibull,0.7,0.4",
        "1800,1.0,1.0,Exponential,0,0",
    ]
    path = servegen(tmp_path, windows)
    trace = load_trace(path, seed=1)
    assert trace.requests.equals(load_trace(path, seed=1).requests)
    assert not trace.requests.equals(load_trace(path, seed=2).requests)
    arrival_s, prompt = trace.column("arrival_s"), trace.column("prompt_tokens")
    counts = np.histogram(arrival_s, [0, 599, 1199, 1799, 2400])[0]
    np.testing.assert_allclose(counts, [2400, 0, 1200, 600], rtol=0.15, atol=3)
    first = arrival_s < 700
    assert np.mean(prompt[first] == 1000) == pytest.approx(0.75, abs=0.04)
    assert set(prompt[~first]) == {7}
    gaps = np.diff(arrival_s[first])
    assert gaps.std() / gaps.mean() == pytest.approx(math.sqrt(2), rel=0.1)  # 1/sqrt(shape)

    servegen(tmp_path, ["0,1.0,1.0,Exponential,0,0"], number=2)
    assert len(load_trace(tmp_path)) > len(trace)


@pytest.mark.parametrize(
    ("windows", "dataset", "match"),
    [
        (["0,1,1,Gamma,0.5,0.5", "600,1,1,Cauchy,1,1"], None, ":2: distribution 'Cauchy'"),
        (["0,1,1,Gamma,0.5,0.5", "600,1,1"], None, ":2: 3 fields; 6 are needed"),
        (["0,1,1,Gamma,0.5,0.5", "0,1,1,Gamma,1,1"], None, ":2: window start"),
        (["0,1,1,Gamma,0,0.5"], None, "a shape > 0"),
        (["0,1e5,1,Gamma,1,1"], None, "more than 5,000,000 requests"),
        (["0,1,1,Gamma,1e-9,1"], None, "too small or too large|no requests"),
        (["0,1,1,Gamma,1,1"], {}, "no token distributions"),
        (["0,1,1,Gamma,1,1"], {"0": {"input_tokens": "{"}}, "not a ServeGen dataset"),
        (
            ["0,1,1,Gamma,1,1"],
            {"0": {"input_tokens": "{-5: 1}", "output_tokens": "{1: 1}"}},
            "a token count out of range",
        ),
    ],
)
def test_wrong_servegen_files(tmp_path, windows, dataset, match) -> None:
    with pytest.raises(TraceError, match=match):
        load_trace(servegen(tmp_path, windows, dataset))


def test_servegen_needs_its_dataset(tmp_path) -> None:
    path = write(tmp_path / "chunk-1-trace.csv", ["0,1,1,Gamma,1,1"])
    with pytest.raises(TraceError, match=r"missing: chunk-1-dataset\.json"):
        load_trace(path)
