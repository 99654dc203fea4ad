"""`extend`: a target goes on with every text of a population."""

from __future__ import annotations

from collections.abc import Iterable
from typing import TYPE_CHECKING, Any

import numpy as np
import torch
from numpy.typing import NDArray

from smcprog.errors import SettingError, SMCError
from smcprog.potentials.base import Potential, Request
from smcprog.potentials.models.factor import ModelFactor
from smcprog.programs.append import read_by
from smcprog.programs.extension import Beginning, Extension
from smcprog.programs.lines import Lines, ProgramRequest
from smcprog.programs.pieces import Piece, history_key, tokens_for
from smcprog.programs.until import Marks
from smcprog.smc.block import DEAD, EOS, FINISH_REASONS
from smcprog.smc.call import Call
from smcprog.smc.fed_draft import is_fed
from smcprog.smc.together import together

if TYPE_CHECKING:
    from smcprog.engine.lm import LM
    from smcprog.programs.population import Population
    from smcprog.programs.run import Run
    from smcprog.programs.tapes import Key

__all__ = ["extend", "keys_of", "memory_of", "program_request"]


def extend(
    p: Population,
    target: Potential,
    until: Any,
    max_tokens: int | None,
    options: dict[str, Any],
) -> None:
    """See `Population.extend`."""
    run = p.run
    marks = None if until is None else Marks(until)
    if not isinstance(target, Potential):
        raise SettingError(f"extend takes a target, got {type(target).__name__}")
    index_M = p.begin("extend")
    call = _call(run, target, len(index_M), max_tokens, options)
    read_by(p, index_M, call.lm)  # only now is it known how long texts are that none had read
    p.fitting(p.living(index_M), np.ones(len(p.living(index_M)), dtype=np.int64))
    index_M = np.array(p.going(), dtype=np.int64)
    if not len(p.living(index_M)):
        run.check_alive(p)
        return
    if len(index_M) != call.settings.particles:
        call = _call(run, target, len(index_M), max_tokens, options)
    p.target = call.product
    run.uses(call.product)
    p.settle(index_M)
    room_M = torch.from_numpy(np.minimum(p.room(index_M).clip(min=1), call.settings.max_tokens))
    lines = Lines(p.tapes, p.histories, index_M, run.options.max_tokens)
    try:
        request = program_request(run, call, lines)
        paths = call.settings.draft_paths if call.draft_tokens else 1
        memory = memory_of(call.product.factors, request, run.rows)
        run.need(keys_of(request, call), call, paths, call.draft_tokens + 1, memory)
        beginning = Beginning(
            log_w_M=p.log_w_N[torch.from_numpy(index_M)],
            room_M=room_M,
            keys_M=torch.tensor([history_key(p.histories[i]) for i in index_M]),
            contexts=_contexts(p, index_M, request, call),
            first_round=run.rounds,
        )
        wave = Extension(call, request, run.seed, beginning, marks, run.make_draws)
        try:
            _play(run, wave)
        except SMCError:
            raise
        except RuntimeError as error:
            raise call.device_error(error) from error
        run.rounds += len(wave.rounds)
        _take_over(p, wave, index_M)
        lines.commit(*p.rows_now(index_M))
    finally:
        lines.close()
    run.check_alive(p)


def _call(
    run: Run, target: Potential, particles: int, max_tokens: int | None, options: dict[str, Any]
) -> Call:
    most = run.options.max_tokens
    given = {
        "ess_threshold": run.options.ess_threshold,
        "resampling": run.options.resampling,
        **{name: value for name, value in options.items() if value is not None},
    }
    call = Call.of(
        target,
        None,
        particles=particles,
        max_tokens=most if max_tokens is None else max_tokens,
        deterministic=run.options.deterministic,
        on_round=run.options.on_round,
        **given,
    )
    return call


def program_request(run: Run, call: Call, lines: Lines) -> ProgramRequest:
    """What the factors may know, and where their models begin.

    Raises
    ------
    SettingError, PromptError
    """
    prompt = run.prompt
    if prompt is None:
        own = call.lead.models[0][1]
        if own is None or callable(own):
            raise SettingError("the program has no prompt yet: begin with p.prompt(...)")
        prompt = own
    known = call.request(prompt)
    return ProgramRequest(
        prompt, known.prompt_tokens, known.vocab, known.max_tokens, call.truncate, lines=lines
    )


def keys_of(request: ProgramRequest, call: Call) -> list[Key]:
    """Every model that keeps rows, as often as it does, with the tokens it continues."""
    keys: list[Key] = [
        (lm, tuple(lm.encode(request.prompt_for(own))))
        for factor in call.product.factors
        if isinstance(factor, ModelFactor)
        for lm, own in factor.models
    ]
    if call.draft_tokens and not is_fed(call.settings.draft):
        keys.append((call.settings.draft, request.prompt_tokens))  # type: ignore[arg-type]
    return keys


def memory_of(factors: Iterable[Potential], request: Request, rows: int) -> dict[LM, int]:
    """Pages that factors come to hold in models of their own."""
    pages: dict[LM, int] = {}
    for factor in factors:
        for lm, need in factor.memory(request, rows).items():
            pages[lm] = pages.get(lm, 0) + need
    return pages


def _contexts(
    p: Population, index_M: NDArray[np.int64], request: ProgramRequest, call: Call
) -> list[list[int]]:
    if call.settings.draft is None or not is_fed(call.settings.draft):
        return []
    return [[*request.prompt_tokens, *tokens_for(call.lm, p.histories[i])] for i in index_M]


def _play(run: Run, wave: Extension) -> None:
    try:
        with together(wave):
            wave.start()
            while wave.running:
                wave.play_round()
                run.breathe()
    finally:
        wave.release()
    if wave.failed:
        raise wave.failed[0]


def _take_over(p: Population, wave: Extension, index_M: NDArray[np.int64]) -> None:
    """The particles are those of the finished wave."""
    origin_M = wave.origin_B.numpy()
    _record(p, wave, index_M)
    ancestors_N = np.arange(p.n)
    ancestors_N[index_M] = index_M[origin_M]
    p.histories = [p.histories[i] for i in ancestors_N]
    p.eve_N, p.origin_N = p.eve_N[ancestors_N], p.origin_N[ancestors_N]
    p.tapes.become(ancestors_N)
    at = torch.from_numpy(index_M)
    p.log_gamma_N[at] = p.log_gamma_N[torch.from_numpy(index_M[origin_M])] + wave.log_gamma_B
    p.log_w_N[at] = wave.log_w_R_N[0] + wave.log_evidence_R[0]
    vocab = wave.target_lm.vocab
    kept = wave.kept_B.tolist()
    for m, i in enumerate(index_M.tolist()):
        finish = int(wave.finish_B[m])
        tokens = tuple(wave.tokens_B_T[m, : kept[m]].tolist())
        logp = wave.logp_B_T[m, : int(wave.lengths_B[m])].tolist()
        end = None
        if finish == EOS:
            end = (int(wave.tokens_B_T[m, kept[m]]), logp[-1])
        reason = FINISH_REASONS[finish]
        p.append(
            i,
            Piece(
                "extend", vocab.to_bytes(tokens), vocab, tokens, tuple(logp[: kept[m]]), end, reason
            ),
        )
    if bool((wave.finish_B == DEAD).any()) and 0 in wave.deaths:
        factor, position = wave.deaths[0]
        before = int(p.lengths.max()) - int(wave.lengths_B.max())
        blame = wave.target.factors[factor].name if factor >= 0 else wave.target.name
        p.run.note_death(blame, before + position)


def _record(p: Population, wave: Extension, index_M: NDArray[np.int64]) -> None:
    at = torch.from_numpy(index_M)
    longest = int(p.lengths.max())
    before = torch.zeros(1, dtype=torch.float64)  # log Ẑ of this wave up to the round
    for record in wave.rounds:
        log_w_N = p.log_w_N.clone()
        log_w_N[at] = record.log_w_R_N[0] + before[0]
        ancestors_N = None
        if bool(record.resampled_R[0]):
            ancestors_N = torch.arange(p.n)
            ancestors_N[at] = at[record.ancestors_R_N[0]]
            before = record.log_evidence_R
            p.run.reshaped |= p.parent is not None or len(index_M) < p.n
        p.run.record(p, log_w_N, ancestors_N, longest + int(record.length_R[0]))
