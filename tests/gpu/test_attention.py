"""FlashInfer's attention gives what PyTorch's gives, as closely as the type allows.

Both are held against the plain model in float32: FlashInfer's logits must not be further from it
than twice as far as PyTorch's are (and a little, for where those happen to be close).
"""

from __future__ import annotations

import pytest
import torch

from smcprog import LM

from ..engine.conftest import toy_vocabulary
from ..engine.test_equals_reference import ARCHS
from .conftest import ALWAYS, flashinfer_lm
from .models import random_model

LITTLE = 2e-3
MOST = {None: 0.1, "float8_e4m3fn": 0.5}  # beyond, the comparison says nothing
PROMPT = [(7 * i + 3) % 49 for i in range(37)]


def tokens(rows, columns, seed):
    generator = torch.Generator().manual_seed(seed)
    return torch.randint(0, 49, (rows, columns), generator=generator)


def history(lm):
    """Logits along prefill, decoding, forks, ragged scoring and long blocks, with their texts."""
    device = lm.device
    found = []

    def note(logits_M_V, texts):
        found.extend(zip(texts, logits_M_V.float().cpu(), strict=True))

    rows = lm.sequences(PROMPT, 3)
    texts = [list(PROMPT) for _ in range(3)]
    note(rows.next_logits(), [list(t) for t in texts])
    for step in range(3):  # one token a row
        block = tokens(3, 1, step)
        rows.append(block.to(device))
        for text, new in zip(texts, block.tolist(), strict=True):
            text += new
        note(rows.next_logits(), [list(t) for t in texts])
    ancestors = [2, 0, 0, 1, 2]
    forked = rows.fork(ancestors)
    rows.close()
    texts = [list(texts[a]) for a in ancestors]
    block, counts = tokens(5, 4, 10), [4, 2, 0, 1, 3]
    logits = forked.score(block.to(device), counts)
    for i, count in enumerate(counts):
        for c in range(count):
            note(logits[i : i + 1, c], [texts[i] + block[i, :c].tolist()])
        texts[i] += block[i, :count].tolist()
    note(forked.next_logits(), [list(t) for t in texts])
    block = tokens(5, 70, 11)  # as wide as a prompt, over rows that share pages
    forked.append(block.to(device))
    note(forked.next_logits(), [t + b for t, b in zip(texts, block.tolist(), strict=True)])
    forked.close()
    return found


def off(found, reference):
    """Relative error over all logits."""
    got = torch.stack([logits for _, logits in found])
    want = torch.stack([reference[tuple(text)] for text, _ in found])
    return float((got - want).norm() / want.norm())


@pytest.mark.parametrize("kv_dtype", [None, "float8_e4m3fn"])
@pytest.mark.parametrize("arch", ARCHS)
def test_equals_pytorch(arch, kv_dtype, device):
    if kv_dtype is not None and arch not in ("llama", "gemma2"):
        pytest.skip("8-bit pages are one code for all architectures")
    plain = random_model(arch, torch.device("cpu"), torch.float32)
    model = random_model(arch, device, torch.bfloat16)
    errors, texts = {}, {}
    reference = {}
    options = {"kv_pages": 300, "kv_dtype": kv_dtype}
    lms = {
        "torch": LM.from_model(model, toy_vocabulary(), attention="torch", page_size=8, **options),
        "flashinfer": flashinfer_lm(model, page_size=16, **options),
        "cascades": flashinfer_lm(model, page_size=4, machine=ALWAYS, **options),
    }
    for kind, lm in lms.items():
        found = history(lm)
        assert lm.pages_in_use == 0
        for text, _ in found:
            if tuple(text) not in reference:
                with torch.no_grad():
                    logits = plain(torch.tensor([text]), use_cache=False).logits
                reference[tuple(text)] = logits[0, -1]
        errors[kind] = off(found, reference)
        texts[kind] = tuple(tuple(text) for text, _ in found)
    assert len(set(texts.values())) == 1
    most = errors["torch"]
    assert most < MOST[kv_dtype], errors
    assert max(errors["flashinfer"], errors["cascades"]) <= 2 * most + LITTLE, errors


def test_long_shared_prompts(device):
    """Long enough that reading them once for all rows pays; runs in pieces, too."""
    changes = {"max_position_embeddings": 4096}
    plain = random_model("llama", torch.device("cpu"), torch.float32, **changes)
    model = random_model("llama", device, torch.bfloat16, **changes)
    prompt = tokens(1, 1500, 1)[0].tolist()
    block = tokens(16, 3, 2)
    with torch.no_grad():
        whole = torch.tensor([prompt + b for b in block.tolist()[:2]])
        want = plain(whole, use_cache=False).logits[:, -4:-1]
    errors = []
    options = {"page_size": 16, "kv_pages": 300}
    for lm in (
        LM.from_model(model, toy_vocabulary(), attention="torch", **options),
        flashinfer_lm(model, **options),
        flashinfer_lm(model, machine=ALWAYS, **options),
    ):
        rows = lm.sequences(prompt, 16)
        got = rows.score(block.to(device))[:2].float().cpu()
        rows.close()
        errors.append(float((got - want).norm() / want.norm()))
    assert errors[0] < MOST[None] and max(errors[1:]) <= 2 * errors[0] + LITTLE, errors
