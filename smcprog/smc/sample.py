"""`target.sample(...)`: from prompts and settings to posteriors."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from smcprog.errors import BatchError, SMCError
from smcprog.limits import MAX_DEVICE_ROUND_ELEMENTS, MAX_ROUND_ELEMENTS
from smcprog.potentials.base import Potential, Request
from smcprog.smc.call import Call
from smcprog.smc.posterior import Posterior
from smcprog.smc.wave import WaveRequest

__all__ = ["deliver", "sample"]


def sample(
    target: Potential,
    prompt: Any,
    seed: int | Sequence[int] | None,
    *,
    stop: str | Sequence[str] | None,
    **options: Any,
) -> Posterior | list[Posterior]:
    """Draw from a target; `Potential.sample` is the public face of this function."""
    call = Call.of(target, stop, **options)
    prompts, many = call.prompts(prompt)
    seeds = call.seeds(seed, len(prompts))

    results: list[Posterior | SMCError | None] = [None] * len(prompts)
    requests: list[WaveRequest] = []
    shared: dict[str, Request] = {}  # one Request a distinct prompt
    for i, one in enumerate(prompts):
        key = repr(one)  # its form counts too: another model may encode it differently
        try:
            if key not in shared:
                shared[key] = call.request(one)
        except SMCError as error:
            results[i] = error
            continue
        requests.append(WaveRequest(i, shared[key], seeds[i]))

    order = {id(r): rank for rank, r in enumerate(shared.values())}
    requests.sort(key=lambda q: order[id(q.request)])  # equal prompts side by side
    for wave in _waves(call, requests):
        for index, result in call.run(wave):
            results[index] = result
    return deliver(results, many)


def _waves(call: Call, requests: list[WaveRequest]) -> list[list[WaveRequest]]:
    """Requests to be worked on together: as many as pages and memory surely hold.

    Deterministic requests go one by one: then the shapes of all that is computed depend
    on the request alone, and so do its bits.
    """
    on_cpu = call.lm.device.type == "cpu"
    elements = MAX_ROUND_ELEMENTS if on_cpu else MAX_DEVICE_ROUND_ELEMENTS
    most = 1 if call.settings.deterministic else max(1, elements // call.logits)
    waves: list[list[WaveRequest]] = []
    left: dict[Any, int] = {}
    for q in requests:
        need = call.wave_pages(q.request)
        fits = waves and len(waves[-1]) < most and all(left[k] >= n for k, n in need.items())
        if not fits:
            waves.append([])
            left = {model: call.pages_free(model) for model in need}
        waves[-1].append(q)
        for model, pages in need.items():
            left[model] -= pages
    return waves


def deliver(results: list[Posterior | SMCError | None], many: bool) -> Posterior | list[Posterior]:
    """The results of a call, or the one error that tells of all its failures."""
    failures = [(i, r) for i, r in enumerate(results) if isinstance(r, SMCError)]
    if not failures:
        done = [r for r in results if isinstance(r, Posterior)]
        return done if many else done[0]
    if not many:
        raise failures[0][1]
    shown = "; ".join(f"request {i}: {type(e).__name__}: {e}" for i, e in failures[:3])
    more = f"; and {len(failures) - 3} more" if len(failures) > 3 else ""
    raise BatchError(
        f"{len(failures)} of {len(results)} requests failed ({shown}{more}); .results holds "
        "every posterior and error",
        results=results,
    ) from failures[0][1]
