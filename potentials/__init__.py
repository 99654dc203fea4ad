"""Factors of a target. Import this package as `smcprog.potentials` only."""

from smcprog.potentials.base import Potential, Request, State
from smcprog.potentials.canonical import Canonical
from smcprog.potentials.check import Check
from smcprog.potentials.grammar import Grammar
from smcprog.potentials.product import Product
from smcprog.potentials.reward import Reward
from smcprog.potentials.target import Target

__all__ = [
    "Canonical",
    "Check",
    "Grammar",
    "Potential",
    "Product",
    "Request",
    "Reward",
    "State",
    "Target",
]
