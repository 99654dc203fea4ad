"""Every test here runs on the CPU too, so that nothing in it is new to the first GPU it meets."""

from __future__ import annotations

import importlib.util
from pathlib import Path

import pytest
import torch

from smcprog import LM
from smcprog.attention.flashinfer import FlashInferAttention, Machine

from ..attention import flashinfer_reference
from ..engine.conftest import toy_vocabulary

HERE = Path(__file__).parent
ORDER = (
    "random_numbers",
    "attention",
    "rounds",
    "batches",
    "masks",
    "forks",
    "exactness",
    "captured",
)
"""What the others rest on comes first: device time is short, and may end before the tests do."""
ALWAYS = Machine(launch=0.0, replay=0.0, bandwidth=1.0, l2=0)
"""A device on which reading shared pages once always pays."""
CUDA = pytest.param(
    "cuda",
    marks=pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a CUDA device"),
)


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    places = [i for i, item in enumerate(items) if item.path.parent == HERE]
    names = {name: i for i, name in enumerate(ORDER)}
    ours = [items[i] for i in places]
    ours.sort(key=lambda item: names.get(item.path.stem.removeprefix("test_"), len(ORDER)))
    for i, item in zip(places, ours, strict=True):
        items[i] = item


@pytest.fixture(params=["cpu", CUDA])
def device(request: pytest.FixtureRequest) -> torch.device:
    return torch.device(request.param)


def need_flashinfer() -> None:
    """Skip where it is not installed; what is installed and does not run is a failure."""
    if importlib.util.find_spec("flashinfer") is None:
        pytest.skip("FlashInfer is not installed")


def flashinfer_lm(model, vocab=None, *, machine=None, kv_dtype=None, **options) -> LM:
    """`LM` of a model with FlashInfer's attention.

    On the CPU its kernels are attention written out, which reads the arrays they would be given.
    """
    on_cuda = model.device.type == "cuda"
    if on_cuda:
        need_flashinfer()
    kind = "flashinfer" if on_cuda else "torch"
    lm = LM.from_model(
        model, vocab or toy_vocabulary(), attention=kind, kv_dtype=kv_dtype, **options
    )
    if not on_cuda:
        plain = lm.engine.attention
        lm.engine.attention = FlashInferAttention(
            plain.num_pages, plain.page_size, lm.device, layers=2, kv_dtype=lm.kv_dtype,
            library=flashinfer_reference,
        )  # fmt: skip
    assert isinstance(lm.engine.attention, FlashInferAttention)
    if machine is not None:
        lm.engine.attention.machine = machine
    return lm
