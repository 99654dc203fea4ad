"""Target and draft on different devices, one of which only calls itself so (`tests.far_device`)."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest
import torch.utils.backend_registration

import smcprog

JOBS = ("SMC-SD", "lossless, two paths", "coupled")  # as the script has them
ROOT = Path(smcprog.__file__).parents[1]


@pytest.fixture(scope="module")
def results():
    if not hasattr(torch.utils.backend_registration, "_setup_privateuseone_for_python_backend"):
        pytest.skip("this PyTorch knows no devices written in Python")
    process = subprocess.run(
        [sys.executable, "-m", "tests.smc.two_devices_script"],
        cwd=ROOT,
        env={**os.environ, "PYTHONPATH": str(ROOT), "OMP_NUM_THREADS": "1"},
        capture_output=True,
        text=True,
        timeout=300,
    )
    assert process.returncode == 0, process.stderr[-4000:]
    return json.loads(process.stdout)


def test_the_far_device_refuses_mixed_tensors(results):
    assert results["devices"] == ["cpu", "far:0"]
    assert results["mixed"].startswith("RuntimeError: aten.add.Tensor: tensors on far:0 and on cpu")


@pytest.mark.parametrize("job", JOBS)
@pytest.mark.parametrize("place", ["draft far", "target far"])
def test_target_and_draft_may_be_on_different_devices(results, job, place):
    assert_same(results[f"{job}: {place}"], results[f"{job}: near"])


@pytest.mark.parametrize("job", ["SMC-SD", "coupled"])
def test_rounds_of_fixed_shape_leave_nothing_on_the_host(results, job):
    assert_same(results[f"{job}: static rounds, far"], results[f"{job}: near"])


def assert_same(got, wanted):
    assert got[0] == wanted[0]
    assert got[1] == pytest.approx(wanted[1], abs=1e-9)
