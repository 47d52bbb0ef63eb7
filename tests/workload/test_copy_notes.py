"""What is said of a workload that is many times its trace."""

from __future__ import annotations

import math

from smetric_model.workload.copy_notes import copies_note


def test_many_copies_are_said_with_their_number() -> None:
    note = copies_note(8.0, 0.46, 1141, 67, "mine.jsonl")
    assert "17.4 times the rate of mine.jsonl (67 sessions, 1,141 requests in 41.3 min)" in note
    assert "18 copies" in note
    assert "poisson" in note
    assert ";" not in note  # notes are joined by it
    assert "(1,141 requests" in copies_note(8.0, 0.46, 1141, None, "mine.jsonl")


def test_few_copies_and_no_clock_are_not() -> None:
    assert copies_note(0.9, 0.46, 1141, 67, "mine.jsonl") == ""
    assert copies_note(8.0, math.nan, 1141, 67, "mine.jsonl") == ""
