"""Continuous batching: many requests with targets and settings of their own, one batch.

`hub` runs each request in a greenlet and merges what they ask of a model into one forward;
`admission` says who may run; `scheduler` is the public face.
"""

from smcprog.smc.scheduler.asynchronous import asample, shared_scheduler
from smcprog.smc.scheduler.handle import RequestHandle
from smcprog.smc.scheduler.scheduler import Scheduler

__all__ = ["RequestHandle", "Scheduler", "asample", "shared_scheduler"]
