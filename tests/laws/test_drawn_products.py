"""Every potential of the package, and every product of two, drawn by Hypothesis, obeys the laws."""

from __future__ import annotations

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from smcprog.potentials import Product
from smcprog.testing import check_potential

from .strategies import KINDS, potentials, requests


@pytest.mark.parametrize("kind", KINDS)
@settings(max_examples=8)
@given(data=st.data(), request=requests())
def test_each_kind(kind, data, request):
    check_potential(data.draw(KINDS[kind]), request, samples=12)


@settings(max_examples=40)
@given(potentials(), potentials(), requests())
def test_products_of_two(one, two, request):
    product = one.potential * two.potential
    assert isinstance(product, Product)
    check_potential(product, request, samples=8)
