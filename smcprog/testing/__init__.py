"""What a user needs to test a potential or an experiment of their own."""

from smcprog.testing.laws import LawError, check_potential
from smcprog.testing.tabular import TabularLM

__all__ = ["LawError", "TabularLM", "check_potential"]
