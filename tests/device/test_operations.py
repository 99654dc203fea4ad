"""How many operations a round takes beside its models: on a small batch, each is a kernel's time.

A ratchet: whoever needs more says so here, and whoever needs fewer lowers it.
"""

from __future__ import annotations

import math

import pytest
import torch

from .recorded import RecordedGraph
from .test_whole_rounds import Loaded, form

VIEWS = {
    "_reshape_alias", "alias", "as_strided", "broadcast_tensors", "detach", "expand", "flatten",
    "narrow", "numpy_T", "permute", "reshape", "select", "slice", "split", "squeeze", "t",
    "transpose", "unbind", "unflatten", "unsqueeze", "view", "view_as",
}  # fmt: skip


def operations(run):
    """Operations that `run` makes, views left out."""
    with torch.inference_mode(), RecordedGraph() as graph:
        run()
    names = [operation[0].overloadpacket.__name__ for operation in graph.operations]
    return len([name for name in names if name not in VIEWS])


@pytest.mark.parametrize(
    ("coupling", "most"),
    [
        (math.inf, {"books": 92, "draw": 46, "block": 126, "settle": 134}),
        (2.0, {"books": 92, "draw": 53, "block": 480, "settle": 134}),
    ],
)
def test_few_operations(coupling, most):
    k = 3
    program = Loaded(form(draft_tokens=k, coupling=coupling)).program
    pieces = program.pieces
    with torch.inference_mode():
        pieces[0]()
    found = {"books": operations(lambda: program.new_books(k + 1)), "draw": operations(pieces[1])}
    with torch.inference_mode():
        for piece in pieces[2:-2]:
            piece()
    found |= {"block": operations(pieces[-2]), "settle": operations(pieces[-1])}
    assert all(found[name] <= most[name] for name in most), found
    assert all(count > 30 for count in found.values())  # they were seen
