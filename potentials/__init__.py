"""Factors of a target. Import this package as `smcprog.potentials` only."""

from smcprog.potentials.base import Potential, Request, State
from smcprog.potentials.canonical import Canonical
from smcprog.potentials.check import Check
from smcprog.potentials.genlm.factor import Genlm
from smcprog.potentials.grammar import Grammar
from smcprog.potentials.models.factor import ModelFactor
from smcprog.potentials.models.guidance import Guidance
from smcprog.potentials.models.mixture import Mixture
from smcprog.potentials.models.target import Target
from smcprog.potentials.power import Power
from smcprog.potentials.product import Product
from smcprog.potentials.rewards.reward import Reward
from smcprog.potentials.rewards.twist import Twist

__all__ = [
    "Canonical",
    "Check",
    "Genlm",
    "Grammar",
    "Guidance",
    "Mixture",
    "ModelFactor",
    "Potential",
    "Power",
    "Product",
    "Request",
    "Reward",
    "State",
    "Target",
    "Twist",
]
