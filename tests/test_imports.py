"""Imports flow one way: cli → program → smc → potentials → engine → attention; leaves below."""

from __future__ import annotations

import ast
from pathlib import Path

import pytest

import smcprog

ROOT = Path(smcprog.__file__).parent
LEAVES = {"errors", "limits", "particles", "resampling", "rng", "validate"}
MAY_IMPORT = {
    **{leaf: {"errors", "limits"} for leaf in LEAVES},
    "resampling": {"errors", "limits", "particles"},
    "attention": LEAVES,
    "models": LEAVES,
    "engine": LEAVES | {"attention", "models"},
    "drafts": LEAVES | {"engine", "models"},
    "grammars": LEAVES | {"engine"},
    "potentials": LEAVES | {"engine", "grammars"},
    "programs": LEAVES | {"drafts", "engine", "potentials", "smc"},
    "plots": LEAVES | {"smc"},
    "smc": LEAVES | {"drafts", "engine", "potentials", "plots"},
    "genlm": LEAVES | {"engine", "potentials", "smc"},
    "testing": LEAVES | {"engine", "potentials"},
}


def modules():
    for path in sorted(ROOT.rglob("*.py")):
        room = path.relative_to(ROOT).parts[0].removesuffix(".py")
        if room in MAY_IMPORT:
            yield pytest.param(path, room, id=str(path.relative_to(ROOT)))


def imported_rooms(path):
    tree = ast.parse(path.read_text())
    typing_only = {
        node
        for block in ast.walk(tree)
        if isinstance(block, ast.If) and getattr(block.test, "id", "") == "TYPE_CHECKING"
        for node in ast.walk(block)
    }
    for node in ast.walk(tree):
        if node in typing_only:
            continue
        if isinstance(node, ast.ImportFrom):
            assert node.level == 0, f"{path}: relative import"
            names = [node.module or ""]
            if node.module == "smcprog":
                names = [f"smcprog.{alias.name}" for alias in node.names]
        elif isinstance(node, ast.Import):
            names = [alias.name for alias in node.names]
        else:
            continue
        for name in names:
            assert name.split(".")[0] not in {"potentials", "grammars"}, f"{path}: {name}"
            if name.startswith("smcprog."):
                yield name.split(".")[1]


@pytest.mark.parametrize(("path", "room"), list(modules()))
def test_imports_flow_one_way(path, room):
    for other in imported_rooms(path):
        assert other == room or other in MAY_IMPORT[room], f"{path} imports smcprog.{other}"
