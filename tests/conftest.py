"""Fixtures that every test folder shares."""

from __future__ import annotations

import os
from collections.abc import Iterator
from pathlib import Path
from typing import TYPE_CHECKING

import pytest
from hypothesis import settings

if TYPE_CHECKING:
    from smcprog import LM

# Nothing a test loads may come from a model hub: what is missing fails at once.
os.environ.setdefault("HF_HUB_OFFLINE", "1")
os.environ.setdefault("MPLBACKEND", "Agg")
# Threads that wait spin by default, which stalls everything on a machine that is busy.
os.environ.setdefault("OMP_WAIT_POLICY", "passive")

# The same examples in every run; no database of failures, no deadline on a busy machine.
settings.register_profile("smcprog", derandomize=True, database=None, deadline=None)
settings.load_profile("smcprog")


@pytest.fixture(scope="session", autouse=True)
def _torch_threads() -> None:
    """As many threads as this process has cores, at most four, unless the environment says."""
    import torch

    if "OMP_NUM_THREADS" in os.environ:
        return
    if "PYTEST_XDIST_WORKER" in os.environ:  # one process a core
        torch.set_num_threads(1)
        return
    cores = len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count()
    torch.set_num_threads(max(1, min(4, cores or 1)))


@pytest.fixture(scope="session")
def default_model() -> Path:
    """Folder of the default model; fetched into the user's cache if it is nowhere yet."""
    from smcprog.models import default_model_path

    return default_model_path(progress=False)


@pytest.fixture(scope="session")
def default_lm(default_model: Path) -> Iterator[LM]:
    """The default model, loaded once. Tests that need settings of their own load another."""
    from smcprog import LM

    yield LM(default_model)


@pytest.fixture(scope="session")
def data_dir() -> Path:
    """Folder of public test data, named by ``SMCPROG_DATA``; skips where that is unset."""
    named = os.environ.get("SMCPROG_DATA")
    if not named:
        pytest.skip("SMCPROG_DATA is not set: it names the folder of public test data")
    folder = Path(named)
    if not folder.is_dir():
        pytest.fail(f"SMCPROG_DATA={named} is not a folder")
    return folder
