"""The SMC core: rounds, waves of populations, and the posteriors they end in."""

from smcprog.potentials.base import set_sampler
from smcprog.smc.posterior import Particle, Posterior, RoundInfo
from smcprog.smc.sample import sample
from smcprog.smc.scheduler import RequestHandle, Scheduler, asample
from smcprog.smc.settings import RoundEvent, Settings
from smcprog.smc.variants.gibbs import GibbsChain, particle_gibbs
from smcprog.smc.variants.grow import grow
from smcprog.smc.variants.pooling import PooledPosterior, pool

__all__ = [
    "GibbsChain",
    "Particle",
    "PooledPosterior",
    "Posterior",
    "RequestHandle",
    "RoundEvent",
    "RoundInfo",
    "Scheduler",
    "Settings",
    "asample",
    "grow",
    "particle_gibbs",
    "pool",
    "sample",
]

set_sampler(sample, asample)
