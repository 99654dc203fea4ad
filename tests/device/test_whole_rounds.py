"""A round is one program: traced whole, of fixed shape, random by its tensors, deaf to padding."""

from __future__ import annotations

import math

import numpy as np
import pytest
import torch

from smcprog.engine.arena import arena_pages
from smcprog.potentials.models.local import LocalDistribution
from smcprog.smc.block import DEAD
from smcprog.smc.device.form import Form
from smcprog.smc.device.program import REPORT, RoundProgram

from ..tiny import tiny_llama

PROMPT = [0, 1, 2, 0, 1]
LONG = 12
PAGES = ("target", "draft")
TOKENS = slice(len(REPORT), None)


def form(**changes) -> Form:
    k = changes.get("draft_tokens", 3)
    sizes = {"requests": 2, "particles": 4, "context": 24}
    need = arena_pages(0, 4, 24, 2 + k, 4)
    return Form(
        **{
            **sizes,
            "draft_tokens": k,
            "pages": need,
            "draft_pages": need,
            "local": LocalDistribution(0.8),
            "power": 1.0,
            "draft_temperature": 0.8,
            "coupling": math.inf,
            "truncate": True,
            "joint": True,
            "ess_threshold": 1.0,
            "resampling": "systematic",
            **changes,
        }
    )


class Loaded:
    """A program with `real` requests in it, the rest padding; the prompt's rows stay open."""

    def __init__(self, shape: Form, real: int = 1, seed: int = 5) -> None:
        options = {"vocab_size": 6, "eos": 5, "scale": 0.2, "page_size": 4, "kv_pages": 200}
        self.models = [tiny_llama(seed=1, **options), tiny_llama(seed=2, **options)]
        self.prompts = [lm.sequences(PROMPT, 1) for lm in self.models]
        draft = self.models[1] if shape.draft_tokens else None
        with torch.inference_mode():
            self.program = program = RoundProgram(self.models[0], draft, shape)
            state, n = program.state, shape.particles
            for part, prompt in zip((program.target, program.draft), self.prompts, strict=True):
                if part is None:
                    continue
                engine, arena = part.lm.engine, part.arena
                pages = engine.pages().alloc(arena.pages_R_A.numel())
                engine.attention.clear_pages(pages)
                arena.pages_R_A.copy_(torch.from_numpy(pages).view(arena.pages_R_A.shape))
                arena.tables_M_W[: real * n, :2] = torch.from_numpy(prompt.tables_M_W[0, :2])
            rows = slice(0, real * n)
            state.seeds_M[rows] = seed
            state.keys_M[rows] = 7
            state.length_M[rows] = len(PROMPT)
            state.limit_M[rows] = len(PROMPT) + LONG
            state.recent_M_2[rows, 1] = PROMPT[-1]
            state.finish_M[rows] = 0
            state.log_w_M[rows] = 0.0
            logits_M_V = self.prompts[0].next_logits().repeat(shape.rows, 1)
            program.settle(program.first(logits_M_V.unsqueeze(1)))

    def told(self, name: str) -> torch.Tensor:
        return self.program.report_X_M[REPORT.index(name)]

    def snapshot(self) -> dict[str, torch.Tensor]:
        state = self.program.state
        kept = {name: getattr(state, name).clone() for name in state.__dataclass_fields__}
        for name, part in (("target", self.program.target), ("draft", self.program.draft)):
            if part is not None:
                kept[name] = part.arena.tables_M_W.clone()
                for i, pool in enumerate(part.lm.engine.attention._whole):
                    kept[f"{name} {i}"] = pool.data.clone()
        return kept

    def restore(self, kept: dict[str, torch.Tensor]) -> None:
        for name, tensor in kept.items():
            model, _, number = name.partition(" ")
            if number:
                part = getattr(self.program, model)
                part.lm.engine.attention._whole[int(number)].data.copy_(tensor)
            elif name in ("target", "draft"):
                getattr(self.program, name).arena.tables_M_W.copy_(tensor)
            else:
                getattr(self.program.state, name).copy_(tensor)


FORMS = [
    pytest.param({}, id="smc"),
    pytest.param({"coupling": 2.0, "power": 2.0, "truncate": False}, id="coupled"),
    pytest.param({"draft_tokens": 0, "resampling": "ssp"}, id="no draft"),
    pytest.param({"masked": True, "weighed": True}, id="masked"),
]


#: Tracing takes long. What is masked does all that a round without a mask does.
TRACED = [
    pytest.param({"draft_tokens": 2, "masked": True, "weighed": True}, id="masked"),
    pytest.param(
        {"draft_tokens": 2, "coupling": 2.0, "power": 2.0, "truncate": False}, id="coupled"
    ),
    pytest.param({"draft_tokens": 0, "resampling": "ssp"}, id="no draft"),
]


@pytest.mark.parametrize("changes", TRACED)
def test_traces_whole(changes):
    """No graph break, no size that depends on data, no value read back; replays go on drawing."""
    plain, traced = Loaded(form(**changes)), Loaded(form(**changes))
    torch._dynamo.reset()
    graphs = []

    def backend(graph, inputs):
        graphs.append(graph)
        return graph.forward

    play = torch.compile(traced.program.play, fullgraph=True, dynamic=False, backend=backend)
    with torch.inference_mode():
        before = traced.snapshot()
        plain.program.play()
        play()
        for name, tensor in plain.snapshot().items():
            if " " in name:
                continue  # what is in pages that nobody holds
            torch.testing.assert_close(traced.snapshot()[name], tensor, rtol=1e-9, atol=1e-9)
        drawn = [traced.program.report_X_M[TOKENS, :4].clone()]
        for rounds_on in (0, 1, 2, 3):
            traced.restore(before)
            traced.program.state.round_R.add_(rounds_on)
            play()
            drawn.append(traced.program.report_X_M[TOKENS, :4].clone())
    assert torch.equal(drawn[0], drawn[1])
    # Four rows of one to four tokens: that three rounds draw alike has no real chance.
    assert any(not torch.equal(drawn[0], other) for other in drawn[2:])
    assert len(graphs) == 1
    values = [node.meta.get("example_value") for node in graphs[0].graph.nodes]
    assert sum(isinstance(v, torch.Tensor) for v in values) > 300  # a model, not a stub
    assert not symbols(values)


def symbols(values):
    """What a traced program has to read back from the device: numbers, or sizes of tensors."""
    numbers = (torch.SymInt, torch.SymFloat, torch.SymBool)
    sizes = [size for v in values if isinstance(v, torch.Tensor) for size in v.shape]
    return [v for v in [*values, *sizes] if isinstance(v, numbers)]


@pytest.mark.parametrize("waiting", ["item", "boolean index"])
def test_tracing_would_notice(waiting):
    loaded = Loaded(form(draft_tokens=0))
    settle = loaded.program._settle

    def wait():
        settle()
        state = loaded.program.state
        if waiting == "item":
            state.length_M.add_(int(state.out_M.sum().item()))
        else:
            state.out_M.copy_(state.out_M[state.finish_M == 0].sum().expand_as(state.out_M))

    loaded.program.pieces[-1] = wait
    torch._dynamo.reset()
    found = []

    def backend(graph, inputs):
        found.extend(symbols([node.meta.get("example_value") for node in graph.graph.nodes]))
        return graph.forward

    try:
        with torch.inference_mode():
            torch.compile(loaded.program.play, fullgraph=True, dynamic=False, backend=backend)()
    except torch._dynamo.exc.TorchDynamoException:
        return
    assert found


@pytest.mark.parametrize("changes", FORMS)
def test_padding_does_not_leak(changes):
    """Padded, and among padding full of garbage: bit for bit what it is alone."""
    results = []
    for garbage in (False, True):
        loaded = Loaded(form(**changes))
        state, arena = loaded.program.state, loaded.program.target.arena
        with torch.inference_mode():
            if garbage:
                rows = slice(4, 8)
                state.seeds_M[rows] = 99
                state.recent_M_2[rows] = 3
                state.log_gamma_M[rows] = math.nan
                state.log_w_M[rows] = math.nan
                arena.tables_M_W[rows] = 0
            for _ in range(3):
                loaded.program.play()
            kept = {k: v for k, v in loaded.snapshot().items() if not k.startswith(PAGES)}
            results.append({k: v[..., :4] if k == "all_F_M" else v[:4] for k, v in kept.items()})
            assert (loaded.told("finish")[4:] == DEAD).all()
            assert (loaded.told("ancestors")[:4] < 4).all()
    for name, tensor in results[0].items():
        if name == "round_R":
            tensor, results[1][name] = tensor[:1], results[1][name][:1]
        torch.testing.assert_close(results[1][name], tensor, rtol=0, atol=0, msg=name)


def test_a_model_that_says_nan_stays_in_its_request():
    """A request whose weights are not numbers draws, resamples and forks among its own rows."""
    good, mixed = Loaded(form(), real=2), Loaded(form(), real=2)
    with torch.inference_mode():
        mixed.program.state.log_w_M[4:] = math.nan
        for loaded in (good, mixed):
            loaded.program.play()
    assert mixed.told("log_w").view(torch.float64)[4:].isnan().all()
    for name in ("log_w", "ancestors", "finish", "out"):
        assert torch.equal(good.told(name)[:4], mixed.told(name)[:4])
    assert np.isin(mixed.told("ancestors")[4:].numpy(), np.arange(4, 8)).all()
