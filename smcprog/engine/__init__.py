"""Language models over paged key/value memory."""

from smcprog.engine.lm import LM
from smcprog.engine.sequences import PagedSequences, Sequences
from smcprog.engine.vocab import Vocabulary

__all__ = ["LM", "PagedSequences", "Sequences", "Vocabulary"]
