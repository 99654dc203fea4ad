"""Linear layers in the form that is fastest on the CPU for the number of rows."""

from smcprog.engine.linears.choice import fixed_kernels
from smcprog.engine.linears.install import install, make_plain, weight_count

__all__ = ["fixed_kernels", "install", "make_plain", "weight_count"]
