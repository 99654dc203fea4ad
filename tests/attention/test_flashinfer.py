"""FlashInfer behind the contract: its calls, and attention by its documented layout.

The kernels need a GPU. Here they are attention written out (`flashinfer_reference`), which reads
nothing but the arrays that the kernels would be given.
"""

from __future__ import annotations

import inspect
from collections import Counter

import numpy as np
import pytest
import torch
import transformers

from smcprog.attention import Layout, TorchPagedAttention
from smcprog.attention.flashinfer import FlashInferAttention, Machine
from smcprog.attention.flashinfer.trial import try_out
from smcprog.attention.packing import PackedAttention, Segment
from smcprog.engine import LM

from ..engine.conftest import make_model, reference, toy_vocabulary  # noqa: F401
from ..engine.test_equals_reference import Walk
from . import flashinfer_reference as library
from . import flashinfer_signatures as signatures
from .flashinfer_cases import ALWAYS, CPU, flash
from .flashinfer_package import use_reference_kernels

needs_package = pytest.mark.skipif(
    signatures.package_folder() is None, reason="FlashInfer is not installed (see README.md)"
)
METHODS = ("__init__", "plan", "run")
MORE = ("reset_workspace_buffer",)
CONFIGS = {
    "llama": transformers.LlamaConfig(hidden_size=64, num_attention_heads=4, num_key_value_heads=2),
    "one head each": transformers.LlamaConfig(hidden_size=64, num_attention_heads=2),
    "gemma2": transformers.Gemma2Config(
        num_attention_heads=8, num_key_value_heads=2, head_dim=16, sliding_window=20
    ),
}


@pytest.fixture
def used():
    """Entry points that were called, by name, while a test runs."""
    before = Counter(signatures.BOUND)
    library.MADE.clear()
    yield lambda: {name for name, n in signatures.BOUND.items() if n > before[name]}
    library.MADE.clear()


@pytest.mark.parametrize(
    ("arch", "page_size", "machine"),
    [
        ("llama", 1, ALWAYS),
        ("llama", 16, Machine()),
        ("gemma2", 8, ALWAYS),
        ("gemma2", 1, Machine()),
        ("qwen3", 8, ALWAYS),
        ("gpt2", 8, ALWAYS),
        ("mistral", 8, ALWAYS),
    ],
)
def test_random_operations_of_the_engine(arch, page_size, machine, reference, used):  # noqa: F811
    """Rows extend, fork, are cut back, joined and freed; logits are those of the plain model."""
    model = make_model(arch)
    lm = LM.from_model(model, toy_vocabulary(), page_size=page_size, kv_pages=1500)
    attention = flash(1501, page_size, machine=machine, layers=2)
    lm._engine.attention = attention
    walk = Walk(lm, model, lm.vocab.size, reference, page_size)
    walk.run(25)
    assert walk.compared > 20
    assert lm.pages_in_use == 0
    assert attention.layers == {0, 1} and len(attention._slabs) == 1
    if signatures.package_folder() is not None and machine is ALWAYS:
        every = {name for name in signatures.FILES if name[0].islower()}
        every |= {f"{w}.{m}" for w in signatures.FILES if w[0].isupper() for m in METHODS}
        # Rows of one page a token share something in every step, short windows leave nothing.
        absent = {"mistral": "merge", "llama": "BatchDecode"}.get(arch, "-")
        assert {name for name in every - used() if not name.startswith(absent)} == set()


@pytest.mark.parametrize("arch", ["llama", "gemma2"])
def test_long_prompt_in_pieces(arch, reference):  # noqa: F811
    model = make_model(arch, max_position_embeddings=2048)
    lm = LM.from_model(model, toy_vocabulary(), page_size=16, kv_pages=100)
    lm._engine.attention = flash(101, 16, layers=2)
    tokens = torch.randint(0, 50, (700,), generator=torch.Generator().manual_seed(0)).tolist()
    rows = lm.sequences(tokens, 2)
    (expected,) = reference(model, [tokens])
    torch.testing.assert_close(rows.next_logits()[1], expected[-1], atol=1e-4, rtol=0)


@pytest.mark.parametrize("page_size", [1, 8, 16, 100])
@pytest.mark.parametrize("config", CONFIGS.values(), ids=CONFIGS.keys())
def test_trial_finds_nothing(config, page_size):
    assert try_out(config, page_size, CPU, torch.float32, None, library) is None


def test_trial_in_low_precision():
    for kv_dtype in (None, torch.float8_e4m3fn, torch.float8_e5m2):
        config = CONFIGS["gemma2"]
        assert try_out(config, 16, CPU, torch.bfloat16, kv_dtype, library) is None


def test_trial_finds_wrong_results(monkeypatch):
    real = library.attention
    monkeypatch.setattr(library, "attention", lambda *a: (real(*a)[0] * 1.01, real(*a)[1]))
    found = try_out(CONFIGS["llama"], 16, CPU, torch.float32, None, library)
    assert found.startswith("its results differ from PyTorch's by")


def test_trial_tells_what_kernels_raise(monkeypatch):
    def no_compiler(*args, **kwargs):
        raise RuntimeError("Could not find nvcc\nand more")

    monkeypatch.setattr(library, "append_paged_kv_cache", no_compiler)
    found = try_out(CONFIGS["llama"], 16, CPU, torch.float32, None, library)
    assert found == "its kernels do not run here: RuntimeError: Could not find nvcc"


@needs_package
def test_signatures_and_python_of_the_package(monkeypatch):
    """What is bound everywhere is what the package has; its own Python accepts all that is passed.

    The one test that imports FlashInfer, which takes seconds.
    """
    package = use_reference_kernels(monkeypatch)
    for path in ("append_paged_kv_cache", "merge_state_in_place"):
        compare(path, inspect.signature(getattr(package, path)))
    for name in ("BatchDecodeWithPagedKVCacheWrapper", "BatchPrefillWithPagedKVCacheWrapper"):
        for method in METHODS + MORE:
            compare(f"{name}.{method}", inspect.signature(getattr(getattr(package, name), method)))
    for config in CONFIGS.values():
        assert try_out(config, 16, CPU, torch.float32, None, package) is None
    kinds = (torch.bfloat16, torch.float8_e4m3fn)
    assert try_out(CONFIGS["gemma2"], 8, CPU, *kinds, package) is None
    in_and_out_of_inference_mode(FlashInferAttention(9, 8, CPU, library=package))


def in_and_out_of_inference_mode(attention):
    """What is made in a forward is written outside of one, and the other way round."""
    x = torch.zeros(2, 2, 3, 8)
    tables, begin = np.array([[1, 2], [3, 4]], dtype=np.int32), np.array([2, 9])
    for made, planned in ((True, False), (False, True)):
        with torch.inference_mode(made):
            static = attention.static_plan(2, 3, 2)
            options = {"scaling": 1.0 + made, "window": None, "softcap": None}
            for inside in (made, planned, made):
                with torch.inference_mode(inside):
                    static.schedule(begin)
                    static.place(torch.from_numpy(tables), torch.from_numpy(begin))
                    attention.attend(static, 0, x, x, x, **options)
                    attention.copy_pages(tables[:, 0], np.array([5, 6], dtype=np.int32))


def compare(path: str, real: inspect.Signature) -> None:
    ours = signatures.package_signature(path)
    assert [(p.name, p.kind) for p in ours.parameters.values()] == [
        (p.name, p.kind) for p in real.parameters.values()
    ]
    for mine, theirs in zip(ours.parameters.values(), real.parameters.values(), strict=True):
        assert (mine.default is mine.empty) == (theirs.default is theirs.empty)


@needs_package
def test_a_wrong_call_is_found():
    none = dict.fromkeys(["v", "s", "v_other", "lse_other"])
    with pytest.raises(TypeError, match="s_other"):
        library.merge_state_in_place(**none)


def test_packed_rows_of_different_widths():
    """Segments of one forward, ragged ones among them, as the scheduler makes them."""
    results = []
    for attention in (flash(40, 4), TorchPagedAttention(40, 4, CPU)):
        generator = torch.Generator().manual_seed(0)
        packed = PackedAttention(attention)
        options = {"scaling": 0.5, "window": None, "softcap": None}
        tables = np.arange(1, 31, dtype=np.int32).reshape(3, 10)
        attention.attend(  # makes the pools
            attention.plan(Layout(tables, np.zeros(3, dtype=int), np.ones(3, dtype=int), 1)),
            0,
            *(torch.zeros(3, heads, 1, 8) for heads in (4, 2, 2)),
            **options,
        )
        attention.clear_pages(np.arange(1, 31, dtype=np.int32))
        for stored, counts in (
            ([0, 0, 0], [7, 1, 4]),
            ([7, 1, 4], [1, 1, 1]),
            ([8, 2, 5], [2, 0, 3]),
        ):
            first = Layout(
                tables[:1], np.array(stored[:1]), np.array(counts[:1]), max(counts[0], 1)
            )
            rest = Layout(tables[1:], np.array(stored[1:]), np.array(counts[1:]), max(counts[1:]))
            segments = [Segment.of(attention, first, 0)]
            segments.append(Segment.of(attention, rest, segments[0].end))
            x = [
                torch.randn((1, heads, sum(counts), 8), generator=generator) for heads in (4, 2, 2)
            ]
            results.append(packed.attend(segments, 0, *x, **options))
    for got, expected in zip(results[:3], results[3:], strict=True):
        torch.testing.assert_close(got, expected, atol=1e-5, rtol=0)
