"""By how much arriving prompts hold up a sequence: from the times of its tokens."""

from __future__ import annotations

import numpy as np
import pytest

from smetric_model.live.client import Answer
from smetric_model.live.microbenchmark import held_up_s

STEP_S = 0.01


def times(*stops):
    """Tokens every 10 ms; (index, seconds) stops the sequence before a token."""
    gaps = np.full(200, STEP_S)
    for index, seconds in stops:
        gaps[index] += seconds
    return np.cumsum(gaps)


def prompt(sent_s, last_s):
    return Answer(sent_s, first_s=last_s, last_s=last_s)


def test_a_stop_is_found_whole():
    tokens = times((50, 0.1), (120, 0.04))
    arrived = [prompt(tokens[48] + 0.001, tokens[50]), prompt(tokens[118] + 0.001, tokens[120])]
    lost = held_up_s(tokens, arrived, 0.0)
    assert lost == pytest.approx([0.1, 0.04])


def test_work_left_behind_the_answer_counts():
    tokens = times((50, 0.1), (53, 0.02))
    (lost,) = held_up_s(tokens, [prompt(tokens[49] + 0.001, tokens[50])], 0.0)
    assert lost == pytest.approx(0.12)


def test_what_cannot_be_said():
    tokens = times((50, 0.1))
    early, late = prompt(-1.0, tokens[3]), prompt(tokens[-2], tokens[-1] + 1)
    assert held_up_s(tokens, [early, late], 0.0) == [None, None]
    assert held_up_s(tokens, [prompt(tokens[0] - 0.001, tokens[-1])], 0.0) == [None]
    assert held_up_s([], [early], 0.0) == [None]
    assert held_up_s(tokens, [], 0.0) == []
