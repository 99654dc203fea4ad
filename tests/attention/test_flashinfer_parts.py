"""Parts of the FlashInfer path by themselves: wrappers, pages, and the models of cost and size."""

from __future__ import annotations

import dataclasses
import gc

import numpy as np
import pytest
import torch

from smcprog.attention import Layout
from smcprog.attention.flashinfer import Machine
from smcprog.attention.flashinfer.cost import cascade_pays, schedule_bytes, workspace_bytes
from smcprog.attention.flashinfer.workspace import Wrappers
from smcprog.errors import ModelError

from . import flashinfer_reference as library
from .flashinfer_cases import CPU, flash


def test_layers_share_a_plan_by_kind():
    """One schedule for each way of attending, whatever the number of layers."""
    attention = flash(10, 8, layers=4)
    x = torch.randn(2, 2, 3, 8)
    layout = Layout(np.array([[1], [2]], np.int32), np.zeros(2, np.int64), np.array([3, 3]), 3)
    plan = attention.plan(layout)
    library.MADE.clear()
    for layer in range(4):
        window = 2 if layer % 2 else None
        attention.attend(plan, layer, x, x, x, scaling=1.0, window=window, softcap=None)
    assert [w.plans for w in library.MADE] == [1, 1]
    assert len(attention._slabs) == 1 and attention.layers == {0, 1, 2, 3}
    assert attention.bytes_per_page == 4 * 2 * 8 * 2 * 8 * 4


def test_wrappers_are_planned_again_once_their_plan_is_gone():
    attention = flash(10, 8)
    x = torch.randn(1, 2, 3, 8)
    layout = Layout(np.array([[1]], np.int32), np.zeros(1, np.int64), np.array([3]), 3)
    library.MADE.clear()
    options = {"scaling": 1.0, "window": None, "softcap": None}
    for _ in range(5):
        attention.attend(attention.plan(layout), 0, x, x, x, **options)
    gc.collect()
    assert len(library.MADE) == 1 and library.MADE[0].plans == 5
    plans = [attention.plan(layout) for _ in range(3)]
    for plan in plans:  # as the segments of one forward are
        attention.attend(plan, 0, x, x, x, **options)
    assert len(library.MADE) == 3


class Event:
    """As the device's: done at some time, or waited for."""

    def __init__(self):
        self.done, self.waited = False, False

    def query(self):
        return self.done

    def synchronize(self):
        self.done = self.waited = True


def test_no_wrapper_is_planned_while_its_last_plan_is_on_the_way():
    wrappers, made, events = Wrappers(CPU), [], []

    def take():
        plan = Event()  # any object
        wrapper = wrappers.take("sort", plan, lambda: made.append(object()) or made[-1])
        slot = wrappers._slots["sort"][-1]
        if slot.planned is None:
            slot.planned = Event()
            events.append(slot.planned)
        slot.planned.done = False
        return wrapper

    first = [take() for _ in range(8)]
    assert len(set(map(id, first))) == 8
    events[5].done = True
    assert take() is first[5]
    assert take() is first[0] and events[0].waited  # all are on the way: the oldest is waited for
    assert take() is first[1] and len(made) == 8


@pytest.mark.parametrize("kv_dtype", [None, torch.float8_e4m3fn])
def test_pages_are_copied_in_every_layer(kv_dtype):
    attention = flash(6, 2, layers=2, kv_dtype=kv_dtype)
    layout = Layout(np.array([[1, 2]], np.int32), np.zeros(1, np.int64), np.array([4]), 4)
    for layer, heads in ((0, 3), (1, 3), (2, 1)):
        x = torch.full((1, heads, 4, 5), layer + 1.0)
        plan = attention.plan(layout)
        attention.attend(plan, layer, x, x, x, scaling=1.0, window=None, softcap=None)
    attention.copy_pages(np.array([1], np.int32), np.array([5], np.int32))
    attention.move_pages(torch.tensor([2, 0, 0]), torch.tensor([3, 0, 0]))
    for layer, (_, cache) in attention._caches.items():
        assert (cache.float()[[1, 2, 3, 5]] == layer + 1).all()
        assert (cache.float()[[0, 4]] == 0).all()
    assert len(attention._slabs) == 2
    attention.forget()
    assert not attention.layers and attention.bytes_per_page == 0


def test_values_of_another_size_are_refused():
    attention = flash(4, 8)
    layout = Layout(np.array([[1]], np.int32), np.zeros(1, np.int64), np.array([1]), 1)
    x = torch.zeros(1, 2, 1, 8)
    with pytest.raises(ModelError, match="attention='torch'"):
        attention.attend(
            attention.plan(layout), 0, x, x, x[..., :4], scaling=1.0, window=None, softcap=None
        )
    assert not attention.layers


def test_numbers_beyond_fp8_become_its_largest():
    attention = flash(4, 8, kv_dtype=torch.float8_e4m3fn)
    layout = Layout(np.array([[1]], np.int32), np.zeros(1, np.int64), np.array([1]), 1)
    x = torch.full((1, 2, 1, 8), 1e6)
    plan = attention.plan(layout)
    out = attention.attend(plan, 0, x, x, x, scaling=1.0, window=None, softcap=None)
    assert (out == 448).all()


def test_a_cascade_pays_for_long_prefixes_of_many_rows():
    machine = Machine(bandwidth=4.8e12, l2=50 << 20, launch=5e-6, replay=2e-6)
    token, own = 4096, 8 * 64 * 4096

    def pays(prefix, rows, **options):
        shared = prefix * token
        return cascade_pays(machine, own, shared, own + rows * shared, **options)

    assert not pays(256, 8) and not pays(256, 8, captured=True)
    assert pays(8192, 8) and pays(4096, 8, captured=True) and not pays(4096, 8)
    # What does not fit in the cache is read from memory by every row.
    assert pays(8192, 4)
    machine = dataclasses.replace(machine, l2=100 << 20)
    assert not pays(8192, 4)


def test_captured_passes_ask_the_model_too():
    attention = flash(40, 16, machine=Machine(bandwidth=4.8e12))
    assert not attention.sharing_pays(4096, 8)  # nothing is known of the layers
    x = torch.zeros(1, 8, 1, 128)
    layout = Layout(np.array([[1]], np.int32), np.zeros(1, np.int64), np.array([1]), 1)
    options = {"scaling": 1.0, "window": None, "softcap": None}
    attention.attend(attention.plan(layout), 0, x, x, x, **options)
    assert attention.sharing_pays(4096, 8)
    assert not attention.sharing_pays(4096, 1) and not attention.sharing_pays(256, 8)
    attention.cascade = False
    assert not attention.sharing_pays(4096, 8)


def scheduler_floats(machine, heads, kv_heads, dim, lengths, graph, most=None):
    """Floats that FlashInfer's `PrefillPlan` keeps, as `scheduler.cuh` works it out."""
    group, rows = heads // kv_heads, len(lengths)
    packed = [n * group for n in lengths]
    longest = (most - rows + 1) * group if graph else sum(packed) // rows
    tile = 128 if longest > 64 and dim < 256 else 64 if longest > 16 else 16
    blocks = 2 * machine.sms // kv_heads
    if graph:
        blocks = max(blocks, -(-most * group // tile) + rows - 1)
    return heads * blocks * tile * (dim + 1)


def test_a_schedule_fits():
    """Against what `PrefillPlan` and `DecodePlan` keep, as `scheduler.cuh` works it out."""
    machine = Machine()
    for group, rows, width in ((1, 8, 1), (4, 8, 9), (8, 256, 17), (7, 1, 1), (4, 512, 1)):
        tokens = rows * width
        got = schedule_bytes(machine, group, rows, tokens)
        for tile in (16, 64, 128):
            blocks = max(2 * machine.sms, -(-tokens * group // tile) + rows - 1)
            arrays = [4 * blocks] * 3 + [4 * (rows + 1), 4, 4, 4 * (tokens + 1), blocks]
            assert sum(a + 16 for a in arrays) <= got
        blocks = 32 * machine.sms
        assert sum(a + 16 for a in [4 * blocks] * 3 + [4, 4, blocks]) <= got < 1 << 20


@pytest.mark.parametrize("heads", [(32, 8), (64, 8), (16, 8), (14, 2), (9, 3)])
@pytest.mark.parametrize("dim", [64, 128, 256])
def test_the_workspace_suffices(heads, dim):
    machine = Machine()
    for lengths in ([1], [9] * 8, [17] * 32, [512], [9] * 256, [1] * 256):
        total = sum(lengths)
        dynamic = scheduler_floats(machine, *heads, dim, lengths, False)
        assert 4 * dynamic <= workspace_bytes(machine, *heads, dim)
        fixed = scheduler_floats(machine, *heads, dim, lengths, True, total)
        got = workspace_bytes(machine, *heads, dim, len(lengths), total)
        assert 4 * fixed <= got <= max(128 << 20, 4 * fixed + (2 << 20))
