"""Processes that vet grammars: started, asked, watched, and killed when time or memory is up."""

from __future__ import annotations

import contextlib
import json
import os
import select
import signal
import subprocess
import sys
import threading
import time
from typing import Any

from smcprog import limits
from smcprog.errors import GrammarLimitError, GrammarTimeoutError
from smcprog.grammars.engine import DEEP_STACK

__all__ = ["Worker", "Workers"]

START_SECONDS = 60.0  # until a new process has imported what it needs
POLL_SECONDS = 0.02  # between two looks at its memory
RETIRE_MB = 192  # a process that has grown beyond this is not used again
SPARE_ADDRESSES_MB = 128  # address space that is no memory: libraries, arenas


class Worker:
    """One process, which does one grammar at a time."""

    def __init__(self, memory_mb: int) -> None:
        self.memory_mb = memory_mb
        self.peak_mb = 0.0
        addresses = memory_mb + (DEEP_STACK >> 20) + SPARE_ADDRESSES_MB
        environment = {
            **os.environ,
            "PYTHONPATH": os.pathsep.join(p or os.getcwd() for p in sys.path),
            "MALLOC_ARENA_MAX": "2",
            "RAYON_NUM_THREADS": "1",
        }
        self.process = subprocess.Popen(
            [sys.executable, "-m", "smcprog.grammars.vetting_worker", str(addresses)],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=subprocess.DEVNULL,
            env=environment,
            start_new_session=True,  # an interrupt from the terminal is not its business
        )
        self._unread = b""
        if self._read(START_SECONDS, None) is None:
            self.end()
            raise GrammarLimitError(
                "the process that vets grammars did not start: is there memory for it?",
                limit="memory",
            )

    def ask(self, line: bytes, kind: str, seconds: float, memory_mb: int) -> dict[str, Any]:
        """The answer to one request. A process that gave none in time has been ended."""
        assert self.process.stdin is not None
        self.peak_mb = 0.0
        begun = time.monotonic()
        with contextlib.suppress(BrokenPipeError):  # it is gone; reading says so
            self.process.stdin.write(line + b"\n")
            self.process.stdin.flush()
        try:
            answer = self._read(seconds, memory_mb)
        except BaseException:
            self.end()
            raise
        if answer is not None and answer.get("error") not in ("memory", "crash"):
            if self.peak_mb > RETIRE_MB:
                self.end()
            return answer
        in_time = time.monotonic() - begun < seconds
        self.end()
        code = self.process.returncode
        if answer is None and (not in_time or code == -signal.SIGXCPU):
            raise GrammarTimeoutError(
                f"the {kind} was not translated, compiled and tried within {seconds:g} s; make it "
                "smaller or simpler",
                limit="time",
            )
        if answer is not None and answer["error"] == "crash":
            what = "broke the process that vetted it"
        elif code == -signal.SIGSEGV:
            what = "is nested too deeply for the stack of the process that vetted it"
        else:
            what = f"took more than {memory_mb} MiB to translate, compile and try"
        raise GrammarLimitError(f"the {kind} {what}; make it smaller or simpler", limit="memory")

    def end(self) -> None:
        """Kill the process, if it still runs."""
        for pipe in (self.process.stdin, self.process.stdout):
            if pipe is not None:
                with contextlib.suppress(OSError):  # what was not yet written is lost
                    pipe.close()
        self.process.kill()
        self.process.wait()

    @property
    def alive(self) -> bool:
        return self.process.poll() is None

    def _read(self, seconds: float, memory_mb: int | None) -> dict[str, Any] | None:
        """One line; None where the process ended, or went beyond its time or memory."""
        assert self.process.stdout is not None
        stream = self.process.stdout.fileno()
        deadline = time.monotonic() + seconds
        poll = select.poll()
        poll.register(stream, select.POLLIN)
        while b"\n" not in self._unread:
            left = deadline - time.monotonic()
            if left <= 0:
                return None
            ready = poll.poll(1e3 * min(left, POLL_SECONDS))
            if memory_mb is not None:
                self.peak_mb = max(self.peak_mb, _resident_mb(self.process.pid))
                if self.peak_mb > memory_mb:
                    return None
            if ready:
                data = os.read(stream, 1 << 16)
                if not data:
                    return None
                self._unread += data
        line, _, self._unread = self._unread.partition(b"\n")
        answer: dict[str, Any] = json.loads(line)
        return answer


def _resident_mb(pid: int) -> float:
    try:
        with open(f"/proc/{pid}/statm") as file:
            return int(file.read().split()[1]) * os.sysconf("SC_PAGE_SIZE") / (1 << 20)
    except (OSError, IndexError, ValueError):
        return 0.0  # gone, or a system without /proc


class Workers:
    """The processes that are kept; threads take turns."""

    def __init__(self) -> None:
        self._turn = threading.BoundedSemaphore(limits.VET_WORKERS)
        self._lock = threading.Lock()
        self._idle: list[Worker] = []

    def borrow(self, memory_mb: int) -> _Borrowed:
        return _Borrowed(self, memory_mb)

    def take(self, memory_mb: int) -> Worker:
        self._turn.acquire()
        try:
            with self._lock:
                fitting = [w for w in self._idle if w.memory_mb == memory_mb and w.alive]
                others = [w for w in self._idle if w not in fitting]
                self._idle = fitting[1:]
            for worker in others:
                worker.end()
            return fitting[0] if fitting else Worker(memory_mb)
        except BaseException:
            self._turn.release()
            raise

    def give(self, worker: Worker) -> None:
        with self._lock:
            if worker.alive:
                self._idle.append(worker)
        self._turn.release()

    def end(self) -> None:
        with self._lock:
            idle, self._idle = self._idle, []
        for worker in idle:
            worker.end()


class _Borrowed:
    def __init__(self, workers: Workers, memory_mb: int) -> None:
        self._workers = workers
        self._memory_mb = memory_mb

    def __enter__(self) -> Worker:
        self._worker = self._workers.take(self._memory_mb)
        return self._worker

    def __exit__(self, *_: object) -> None:
        self._workers.give(self._worker)
