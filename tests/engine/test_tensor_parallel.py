"""Models over two processes, joined by gloo on the CPU: the same as in one."""

from __future__ import annotations

import contextlib
import json
import os
import shutil
import signal
import socket
import subprocess
import sys
import time
from pathlib import Path

import pytest
from safetensors.torch import load_file, save_file

import smcprog
from smcprog import LM, ModelError, ParallelError, Scheduler, SettingError, Target
from smcprog.engine.parallel import leash
from smcprog.engine.parallel.crew import Crew
from smcprog.engine.parallel.wire import decode, encode
from tests.engine.conftest import byte_level_tokenizer, make_model
from tests.engine.split_models import JOBS, MEMORY, PROMPT, main_job, outcome, save_models

ROOT = Path(smcprog.__file__).parents[1]
LAUNCH = 180
"""Seconds after which the ranks are taken to hang."""


@pytest.fixture(scope="module")
def models(tmp_path_factory):
    folder = tmp_path_factory.mktemp("models")
    save_models(folder)
    return folder


@pytest.fixture(scope="module")
def alone(models):
    """What one process makes of the jobs."""
    lm, small = LM(models / "big", **MEMORY), LM(models / "small", **MEMORY)
    out = {name: main_job(lm, small, **options) for name, options in JOBS.items()}
    target, plain = Target(lm), {"particles": 3, "max_tokens": 6}
    many = target.sample([PROMPT, "he", PROMPT], seed=[1, 2, 3], **plain)
    out["many"] = [outcome(post) for post in many]
    out["still works"] = outcome(target.sample(PROMPT, seed=0, **plain))
    return out


@pytest.fixture(scope="module")
def ranks(models, tmp_path_factory):
    """What both ranks of a launcher came to, in one go: their imports take seconds."""
    folder = tmp_path_factory.mktemp("ranks")
    with socket.socket() as some:
        some.bind(("127.0.0.1", 0))
        port = some.getsockname()[1]
    environment = {
        **os.environ,
        "PYTHONPATH": os.pathsep.join([str(ROOT), os.environ.get("PYTHONPATH", "")]),
        "OMP_NUM_THREADS": "1",
        "CUDA_VISIBLE_DEVICES": "",
    }
    command = [sys.executable, "-m", "tests.engine.rank_script", models, folder, str(port)]
    process = subprocess.Popen(command, env=environment, cwd=ROOT, start_new_session=True)
    try:
        code = process.wait(LAUNCH)
    finally:
        with contextlib.suppress(ProcessLookupError):
            os.killpg(process.pid, signal.SIGKILL)  # its ranks, too
    logs = [(folder / f"{rank}.log").read_text()[-3000:] for rank in range(2)]
    assert code == 0, "\n".join(logs)
    return [json.loads((folder / f"{rank}").read_text()) for rank in range(2)]


def assert_same(got, wanted):
    assert got["tokens"] == wanted["tokens"]
    assert got["resampled"] == wanted["resampled"]
    assert got["log_evidence"] == pytest.approx(wanted["log_evidence"], abs=1e-4)
    assert got["log_weights"] == pytest.approx(wanted["log_weights"], abs=1e-4)


# ------------------------------------------------------------------- a launcher


@pytest.mark.parametrize("job", JOBS)
@pytest.mark.parametrize("draft", ["", ", draft split"])
def test_ranks_give_what_one_process_gives(ranks, alone, job, draft):
    assert any(alone[job]["resampled"])  # forks are part of it
    for rank in range(2):
        assert_same(ranks[rank][job + draft], alone[job])


@pytest.mark.parametrize("job", ["main", "coupled"])
def test_ranks_play_rounds_of_fixed_shape(ranks, alone, job):
    for rank in range(2):
        assert_same(ranks[rank][f"{job}, fixed shapes"], alone[job])


def test_ranks_share_a_batch_of_requests(ranks, alone):
    for rank in range(2):
        for got, wanted in zip(ranks[rank]["many"], alone["many"], strict=True):
            assert_same(got, wanted)


def test_each_rank_holds_half_and_all_have_equal_pools(ranks):
    assert [rank["layer"] for rank in ranks] == [[25, 32]] * 2
    assert [rank["pages"] for rank in ranks] == [MEMORY["kv_pages"] - 1] * 2
    assert [rank["pages in use"] for rank in ranks] == [0, 0]


def test_pools_whose_size_is_settled_late_are_as_large_as_the_smallest(ranks, alone):
    (first, *got), (least, *same) = (rank["settled late"]["pages"] for rank in ranks)
    assert got == same == [least, least]
    assert least < first
    for rank in ranks:
        assert_same(rank["settled late"], alone["main"])


@pytest.mark.parametrize("what", ["fresh seed", "auto", "program"])
def test_what_each_rank_would_decide_is_decided_for_all(ranks, what):
    assert ranks[0][what] == ranks[1][what]


@pytest.mark.parametrize(
    ("what", "when"),
    [
        ("other seeds", "at the start"),
        ("other prompts", "at the start"),
        ("other settings", "at the start"),
        ("other rewards", "in round 1"),
    ],
)
def test_ranks_that_diverge_all_say_so(ranks, what, when):
    for rank in ranks:
        assert rank[what].startswith(f"RanksDivergedError: {when}, the ranks have diverged: rank 1")


def test_the_error_of_one_rank_ends_the_call_in_all_and_only_that(ranks, alone):
    for rank in ranks:
        assert rank["one fails"].startswith("BatchError: 2 of 2 requests failed")
        assert "RanksDivergedError: in" in rank["one fails"]
        assert "rank 1 of 2 failed" in rank["one fails"]
        assert "rank 1: ValueError: only here" in rank["one fails"]
        assert_same(rank["still works"], alone["still works"])


def test_what_ranks_cannot_do_is_refused_by_name(ranks):
    for rank in ranks:
        assert rank["wrong size"].startswith("SettingError: tensor_parallel=4, and the launcher")
        assert "tensor_parallel=2" in rank["wrong size"]
        assert rank["asample"].startswith("SettingError: a scheduler")
        assert rank["program without seed"].startswith("SettingError: a program")


# -------------------------------------------------------------------- followers


@pytest.fixture(scope="module")
def split(models):
    lm = LM(models / "big", **MEMORY, tensor_parallel=2)
    yield lm, LM(models / "small", **MEMORY, tensor_parallel=2), LM(models / "small", **MEMORY)
    lm.parallel.close()


@pytest.mark.parametrize("job", JOBS)
def test_a_leader_with_followers_gives_what_one_process_gives(split, alone, job):
    lm, split_draft, small = split
    assert lm.engine.follows and split_draft.engine.follows and not small.engine.follows
    assert lm.parallel is split_draft.parallel  # one crew
    assert_same(main_job(lm, small, **JOBS[job]), alone[job])
    assert_same(main_job(lm, split_draft, **JOBS[job]), alone[job])
    lm.check_pages()
    assert lm.pages_in_use == split_draft.pages_in_use == 0


def test_followers_repeat_the_packed_passes_of_a_scheduler(split, alone):
    target, settings = Target(split[0]), {"particles": 3, "max_tokens": 6}
    with Scheduler() as scheduler:
        prompts = [PROMPT, "he", PROMPT]
        handles = [
            scheduler.submit(target, prompt, seed=seed, **settings)
            for prompt, seed in zip(prompts, (1, 2, 3), strict=True)
        ]
        for handle, wanted in zip(handles, alone["many"], strict=True):
            assert_same(outcome(handle.result(60)), wanted)


def test_pools_of_followers_change_with_that_of_the_leader(split, alone):
    lm = split[0]
    lm.kv_pages = 900
    assert_same(main_job(lm, split[2]), alone["main"])
    assert lm.kv_pages == 900


def test_parts_of_a_split_model_make_no_draft(split):
    for make in (split[0].with_layers, split[0].without_layers):
        with pytest.raises(ModelError, match="split over 2 processes"):
            make([0])
    with pytest.raises(ModelError, match="split over 2 processes"):
        split[0].draft()


def test_another_number_of_processes_is_refused(split, models):
    with pytest.raises(SettingError, match="loaded a model with tensor_parallel=2"):
        LM(models / "big", **MEMORY, tensor_parallel=4)


def test_a_model_that_nobody_can_load_leaves_the_others_as_they_are(split, alone, models, tmp_path):
    broken = tmp_path / "broken"
    shutil.copytree(models / "big", broken)
    weights = load_file(broken / "model.safetensors")
    del weights["model.norm.weight"]
    save_file(weights, broken / "model.safetensors", {"format": "pt"})
    with pytest.raises(ModelError, match=r"1 tensors are missing.*model\.norm\.weight"):
        LM(broken, **MEMORY, tensor_parallel=2)
    assert_same(main_job(split[0], split[1]), alone["main"])


def test_the_error_of_a_follower_is_raised_by_the_leader_and_all_end(split):
    # The last test of this crew.
    lm, crew = split[0], split[0].parallel
    with crew.turn():
        crew.send({"op": "stand on your head", "model": 0})
    end = time.monotonic() + 30
    while crew.error is None and time.monotonic() < end:
        time.sleep(0.01)
    with pytest.raises(ParallelError, match=r"process 1 of 2 failed: AttributeError.*stand on"):
        Target(lm).sample(PROMPT, particles=2, max_tokens=4, seed=0)
    while any(crew._processes.running) and time.monotonic() < end:
        time.sleep(0.01)
    assert not any(crew._processes.running)


def test_followers_end_with_a_leader_that_is_killed(tmp_path):
    # As a crew starts them, with something quicker to load than a follower.
    (tmp_path / "sleeper.py").write_text("import time\ntime.sleep(600)\n")
    leader = (
        "import os, subprocess, sys, time\n"
        f"command = [sys.executable, {leash.__file__!r}, str(os.getpid()), 'sleeper']\n"
        "print(subprocess.Popen(command).pid, flush=True)\n"
        "time.sleep(600)\n"
    )
    process = subprocess.Popen(
        [sys.executable, "-c", leader],
        env={**os.environ, "PYTHONPATH": str(tmp_path)},
        stdout=subprocess.PIPE,
        text=True,
    )
    follower = int(process.stdout.readline())
    time.sleep(4 * leash.LOOK)
    assert _alive(follower)
    process.kill()
    process.wait()
    end = time.monotonic() + 60
    while _alive(follower) and time.monotonic() < end:
        time.sleep(0.1)
    assert not _alive(follower)


def _alive(pid):
    try:
        state = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0]
    except OSError:
        return False
    return state != "Z"


# ----------------------------------------------------------------- bad input


def test_heads_that_cannot_be_shared_are_refused_with_what_can(default_model):
    # Nine heads, three of keys and values.
    with pytest.raises(ModelError, match=r"9 attention heads and 3 key/value heads.*1 or 3$"):
        LM(default_model, device="cpu", tensor_parallel=2)
    assert not Crew.here() or Crew._current.error is not None


def test_a_model_without_a_plan_is_refused(tmp_path):
    make_model("gpt2").save_pretrained(tmp_path)
    byte_level_tokenizer().save_pretrained(tmp_path)
    with pytest.raises(ModelError, match=r"'gpt2' has no tensor-parallel plan"):
        LM(tmp_path, device="cpu", tensor_parallel=2)


@pytest.mark.parametrize("size", [0, -1, 2.5, "two"])
def test_the_number_of_processes_is_checked(models, size):
    with pytest.raises(SettingError, match="tensor_parallel"):
        LM(models / "big", **MEMORY, tensor_parallel=size)


def test_one_process_is_no_split(models, alone):
    lm, small = LM(models / "big", **MEMORY, tensor_parallel=1), LM(models / "small", **MEMORY)
    assert lm.parallel is None and not lm.engine.follows
    assert_same(main_job(lm, small), alone["main"])


def test_messages_carry_arrays_as_they_are():
    import numpy as np

    arrays = [np.arange(6, dtype=np.int32).reshape(2, 3), np.zeros((0, 4), np.int64)]
    head, got = decode(encode({"op": "x", "n": [1, None]}, arrays))
    assert head == {"op": "x", "n": [1, None]}
    for a, b in zip(arrays, got, strict=True):
        assert a.dtype == b.dtype and a.shape == b.shape and (a == b).all()
