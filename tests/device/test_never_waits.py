"""Nothing on the way of a round waits for the device, but in the places listed here.

Two nets. Rounds are really played with every tensor of the program replaced by one that refuses to
be read by the host, which its descendants inherit, through the model and its attention. And the
files that are captured are read for the same calls, for lines that no test runs.
"""

from __future__ import annotations

import ast
import math
import sys
from pathlib import Path

import pytest
import torch
from torch.utils._python_dispatch import TorchDispatchMode

import smcprog
from smcprog import Grammar, Reward, Target
from smcprog.engine.arena import Arena
from smcprog.smc.device import cache
from smcprog.smc.device.program import RoundProgram
from smcprog.smc.device.rows import RowsOf
from smcprog.smc.device.state import RowState

from ..tiny import tiny_llama

ROOT = Path(smcprog.__file__).parent

#: Where the host may read what a round made: (file, function).
LISTED = {("reports.py", "send"), ("wave.py", "_fetch")}

#: Files of which every line may be inside a CUDA graph.
CAPTURED = [
    "engine/arena.py",
    "smc/device/blocks.py",
    "smc/device/books.py",
    "smc/device/law.py",
    "smc/device/program.py",
    "smc/device/rows.py",
    "smc/device/state.py",
    "smc/strata.py",
    "attention/torch_static.py",
    "attention/flashinfer/device_arrays.py",
    "rng.py",
    "resampling.py",
    "particles.py",
]
WAITS = {"item", "tolist", "numpy", "cpu", "nonzero", "argwhere", "masked_select", "unique",
         "unique_consecutive", "equal", "allclose", "is_nonzero", "bincount"}  # fmt: skip
READS = {"__bool__", "__int__", "__float__", "__index__", "__array__", "__contains__"}


class WouldWaitError(AssertionError):
    pass


class OnDevice(torch.Tensor):
    """A tensor that plays one on a device the host cannot see."""

    @classmethod
    def __torch_function__(cls, func, types, args=(), kwargs=None):
        kwargs = kwargs or {}
        name = getattr(func, "__name__", "")
        frame, listed = sys._getframe(1), False
        for _ in range(4):
            if frame is None:
                break
            code = frame.f_code
            listed |= (Path(code.co_filename).name, code.co_name) in LISTED
            frame = frame.f_back
        if not listed and would_wait(name, args, kwargs):
            raise WouldWaitError(f"{name} reads a tensor of the device")
        out = super().__torch_function__(func, types, args, kwargs)
        # What a listed place brings to the host is a host tensor from there on.
        if listed and isinstance(out, OnDevice):
            return out.as_subclass(torch.Tensor)
        return out


def would_wait(name, args, kwargs):
    if name in WAITS or name in READS:
        return True
    if name in ("to", "type", "new_tensor"):
        places = [*args[1:], *kwargs.values()]
        return any(
            p in ("cpu", torch.device("cpu")) for p in places if isinstance(p, (str, torch.device))
        )
    if name == "where" and len(args) == 1 and not kwargs:
        return True
    if name == "repeat_interleave" and any(isinstance(a, torch.Tensor) for a in args[1:2]):
        return "output_size" not in kwargs
    if name in ("__getitem__", "__setitem__", "index_put_", "index_put"):
        index = args[1] if isinstance(args[1], (tuple, list)) else (args[1],)
        return any(
            isinstance(i, torch.Tensor) and i.dtype in (torch.bool, torch.uint8) for i in index
        )
    return False


class NoSync(TorchDispatchMode):
    """The same, below Python: operations that wait inside of others."""

    def __torch_dispatch__(self, func, types, args=(), kwargs=None):
        name = func.overloadpacket.__name__
        if name in ("_local_scalar_dense", "nonzero", "masked_select", "_unique2", "equal"):
            raise WouldWaitError(f"aten.{name} inside a piece of a round")
        return func(*args, **(kwargs or {}))


def hide(owner):
    """Make the tensors of a program, and of all it is made of, tensors of the device."""
    if isinstance(owner, RowState):
        for name in owner.__dataclass_fields__:
            object.__setattr__(owner, name, getattr(owner, name).as_subclass(OnDevice))
        return
    for name, value in vars(owner).items():
        if isinstance(value, torch.Tensor):
            setattr(owner, name, value.as_subclass(OnDevice))
        elif isinstance(value, (RowState, RowsOf, Arena)):
            hide(value)
    for plan in getattr(owner, "plans", []):
        hide(plan)


@pytest.fixture
def hidden(monkeypatch):
    take, made = cache.take, []

    def take_hidden(*args):
        launcher = take(*args)
        program = launcher.program
        if program not in made:
            made.append(program)
            hide(program)
            for i, piece in enumerate(program.pieces):
                program.pieces[i] = guarded(piece)
            if len(launcher.groups) > 1:
                launcher.groups = list(program.pieces)
        return launcher

    monkeypatch.setattr(cache, "take", take_hidden)
    return made


def guarded(piece):
    def run():
        with NoSync():
            piece()

    return run


def sample(coupling=math.inf, k=3, masked=False, rewarded=False, **local):
    memory = {"page_size": 4, "kv_pages": 1000, "graphs": True}
    options = {"vocab_size": 6, "eos": 5, "scale": 0.3, **memory}
    lm = tiny_llama(seed=1, **options)
    draft = tiny_llama(seed=2, **options) if k else None
    target = Target(lm, **local)
    if masked:
        target = target * Grammar.regex("[ab][a-d]*")
    if rewarded:
        target = target * Reward(lambda texts: [len(t) for t in texts], beta=0.1, at="round")
    return target.sample(
        [[0, 1, 2], [1, 1, 0, 2, 3, 1]], particles=4, draft=draft, draft_tokens=k,
        coupling=coupling, max_tokens=12, seed=1, ess_threshold=1.0,
    )  # fmt: skip


CASES = {
    "smc": {},
    "no draft": {"k": 0},
    "lossless": {"coupling": 1.0},
    "coupled": {"coupling": 2.0},
    "truncated": {"top_k": 5, "top_p": 0.999, "min_p": 0.001},
    "grammar": {"masked": True},
    "grammar, coupled": {"masked": True, "coupling": 2.0},
    "reward": {"rewarded": True},
}


@pytest.mark.filterwarnings("ignore:the draft")
@pytest.mark.parametrize("case", CASES)
def test_rounds_never_wait(case, hidden):
    want = [p.tokens for post in sample(**CASES[case]) for p in post.particles]
    assert len(hidden) == 1
    hidden_rows = hidden[0].state.recent_M_2
    assert isinstance(hidden_rows, OnDevice)
    assert want and isinstance(hidden[0].books.tokens_M_B, OnDevice)  # it was inherited


@pytest.mark.filterwarnings("ignore:the draft")
@pytest.mark.parametrize(
    "wait",
    [
        lambda state: state.out_M.sum().item(),
        lambda state: state.out_M.tolist(),
        lambda state: bool((state.finish_M == 0).any()),
        lambda state: state.out_M[state.finish_M == 0],
        lambda state: torch.nonzero(state.finish_M),
        lambda state: state.out_M.to("cpu"),
        lambda state: torch.bincount(state.out_M),
    ],
)
def test_the_net_holds(wait, hidden, monkeypatch):
    settle = RoundProgram.settle

    def waiting(self, books):
        wait(self.state)
        settle(self, books)

    monkeypatch.setattr(RoundProgram, "settle", waiting)
    with pytest.raises(WouldWaitError):
        sample()


def calls(path):
    """Names of methods and functions that a file calls, with the function they are in."""
    tree = ast.parse(path.read_text())
    for outer in ast.walk(tree):
        if isinstance(outer, (ast.FunctionDef, ast.Lambda)):
            for node in ast.walk(outer):
                if isinstance(node, ast.Call):
                    function = node.func
                    name = getattr(function, "attr", getattr(function, "id", ""))
                    yield getattr(outer, "name", "lambda"), name, node


@pytest.mark.parametrize("file", CAPTURED)
def test_captured_files_read_nothing(file):
    for function, name, node in calls(ROOT / file):
        if function in ("__init__", "schedule"):  # before a capture, and before a launch
            continue
        assert name not in WAITS, f"{file}:{node.lineno}: {function} calls {name}"


def test_the_wave_reads_in_listed_places_only():
    """In `wave.py` tensors of the program may be read by `_fetch` and by reports alone."""
    seen = set()
    for function, name, node in calls(ROOT / "smc/device/wave.py"):
        if name in {"cpu", "item"} or (name == "to" and "cpu" in ast.unparse(node)):
            seen.add(function)
    assert seen == {"_fetch"}
