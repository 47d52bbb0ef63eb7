"""Incomplete gamma and beta functions of the compiled rules, against a library's."""

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from scipy import special

from smetric_model.analytic._incomplete_kernels import beta_ratio, gamma_ratio

DECADES = st.floats(-1.0, 4.0)


@given(decade=DECADES, off=st.floats(-6.0, 6.0))
@settings(max_examples=300, deadline=None)
def test_gamma_within_six_standard_deviations(decade, off):
    shape = 10.0**decade
    x = shape * np.exp(off / np.sqrt(shape + 1.0))
    assert gamma_ratio(shape, x) == pytest.approx(special.gammainc(shape, x), abs=1e-13)


@given(decade=DECADES, size=st.floats(-1.0, 6.0), off=st.floats(-6.0, 6.0))
@settings(max_examples=300, deadline=None)
def test_beta_within_six_standard_deviations(decade, size, off):
    a, b = 10.0**decade, 10.0**size
    odds = a / b * np.exp(off * np.sqrt(1 / (a + 1) + 1 / (b + 1)))
    x, rest = odds / (1 + odds), 1 / (1 + odds)
    assert beta_ratio(a, b, x, rest) == pytest.approx(special.betainc(a, b, x), abs=1e-10)


@pytest.mark.parametrize("a", [1e-9, 0.5, 3.0, 1e4])
def test_ends(a):
    assert gamma_ratio(a, 0.0) == 0.0
    assert gamma_ratio(a, 1e9) == 1.0
    assert beta_ratio(a, 2.0, 0.0, 1.0) == 0.0
    assert beta_ratio(a, 2.0, 1.0, 0.0) == 1.0
