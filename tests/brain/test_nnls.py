"""Non-negative least squares: never below zero, and as close as scipy's."""

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from shoal.brain.algorithms.nnls import nnls

numbers = st.floats(-100.0, 100.0).map(lambda value: round(value, 3))


@st.composite
def equations(draw: st.DrawFn) -> tuple[np.ndarray, np.ndarray]:
    count, unknowns = draw(st.integers(1, 12)), draw(st.integers(1, 4))
    row = st.lists(numbers, min_size=unknowns, max_size=unknowns)
    rows = draw(st.lists(row, min_size=count, max_size=count))
    return np.array(rows), np.array(draw(st.lists(numbers, min_size=count, max_size=count)))


@settings(max_examples=60, deadline=None)
@given(equations())
def test_no_unknown_is_below_zero_and_nothing_is_left_over_that_could_be_less(given_equations):
    scipy = pytest.importorskip("scipy.optimize")
    rows, wanted = given_equations
    found, left = nnls(rows, wanted)
    _, least = scipy.nnls(rows, wanted)
    assert (found >= 0.0).all()
    assert left == pytest.approx(float(np.linalg.norm(rows @ found - wanted)))
    assert left <= least + 1e-6 * (1.0 + float(np.linalg.norm(wanted)))


def test_unknowns_that_no_equation_names_are_zero():
    found, left = nnls(np.array([[2.0, 0.0], [4.0, 0.0]]), np.array([1.0, 2.0]))
    assert (found.tolist(), left) == ([0.5, 0.0], pytest.approx(0.0, abs=1e-12))
