"""Our engine inside genlm-control; needs the extra ``genlm``. Import it as `smcprog.genlm`.

`AsyncLM` stands where genlm-control's own language models stand, and `DraftSampler` where its
token samplers do. The other way round, its potentials as factors of ours, is `smcprog.Genlm`.
"""

try:
    import genlm.control  # noqa: F401 - whether it is there
except ImportError as error:
    raise ImportError(
        "smcprog.genlm needs genlm-control 0.4.1 or later: pip install 'smcprog[genlm]'"
    ) from error

from smcprog.genlm.async_lm import AsyncLM
from smcprog.genlm.sampler import DraftSampler

__all__ = ["AsyncLM", "DraftSampler"]
