"""The compiled engine against the readable reference, event by event."""

from __future__ import annotations

import dataclasses

import numpy as np
from hypothesis import given, settings
from hypothesis import strategies as st
from random_inputs import random_inputs

from smetric_model.simulate import engine, reference

#: counted per event or per run, which is what skipping saves
OWN_COUNTS = {"events", "runs", "steps", "admitted"}


def assert_equal(one, two):
    for field in dataclasses.fields(one):
        name = field.name
        if name == "counts":
            left = {k: v for k, v in one.counts.items() if k not in OWN_COUNTS}
            right = {k: v for k, v in two.counts.items() if k not in OWN_COUNTS}
            assert left == right
        else:
            np.testing.assert_array_equal(getattr(one, name), getattr(two, name), err_msg=name)


@settings(max_examples=150)
@given(st.integers(0, 2**32))
def test_engine_equals_reference(seed):
    inputs = random_inputs(seed)
    expected = reference.run(inputs)
    skipping = engine.run(inputs, caches=True)
    assert_equal(expected, skipping)
    assert_equal(expected, engine.run(inputs, skip=False, caches=True))
