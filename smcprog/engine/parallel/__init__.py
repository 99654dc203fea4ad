"""One model over several processes: under a launcher, or with followers of this process."""

from smcprog.engine.parallel.crew import Crew, crew_of
from smcprog.engine.parallel.ranks import Ranks, ranks_of
from smcprog.engine.parallel.split import split_over

__all__ = ["Crew", "Ranks", "crew_of", "ranks_of", "split_over"]
