"""Decoding programs: Python that runs once and acts on a whole population of texts.

`decorator` is the public face, `population` has the verbs; `tapes` and `lines` keep the models'
key/value memory from verb to verb.
"""

from smcprog.programs.decorator import Program, program
from smcprog.programs.population import Population

__all__ = ["Population", "Program", "program"]
