"""Processes of followers: started on a leash, each with a pipe to the leader."""

from __future__ import annotations

import os
import socket
import subprocess
import sys
import time
from collections.abc import Iterator
from multiprocessing.connection import Connection, Pipe, wait
from pathlib import Path
from typing import Any

import torch
import torch.distributed as dist

from smcprog.engine.parallel.wire import decode
from smcprog.errors import ParallelError

__all__ = ["Processes"]

START = 300.0
"""Seconds that a follower may take to start: the imports of torch and transformers."""


class Processes:
    """The followers of a leader, ranks 1 to ``size - 1`` of its process group.

    Parameters
    ----------
    size : int
        Processes, the leader included.
    kind : str
        Type of their devices.

    Attributes
    ----------
    store : torch.distributed.Store
        Where the members of the group meet: a port that only this machine reaches.
    """

    def __init__(self, size: int, kind: str) -> None:
        self.size = size
        self._kind = kind
        self._pipes: list[Connection] = []
        self._processes: list[subprocess.Popen[bytes]] = []
        with socket.create_server(("127.0.0.1", 0)) as server:
            port = server.getsockname()[1]
            self.store = dist.TCPStore(
                "127.0.0.1",
                port,
                size,
                is_master=True,
                wait_for_workers=False,
                master_listen_fd=server.detach(),
            )

    def start(self) -> None:
        """Start them, and wait until all have loaded what they need and found their device.

        Raises
        ------
        ParallelError
        """
        for rank in range(1, self.size):
            self._start(rank)
        end = time.monotonic() + START
        for rank, pipe in enumerate(self._pipes, 1):
            while not pipe.poll(0.1):
                if time.monotonic() > end:
                    raise ParallelError(
                        f"process {rank} of {self.size} did not start in {START:g} seconds"
                    )
            told = self._told(rank)
            if "error" in told:
                raise ParallelError(f"process {rank} of {self.size} did not start: {told['error']}")

    def write(self, message: bytes) -> None:
        """Send something to all of them."""
        for pipe in self._pipes:
            pipe.send_bytes(message)

    def listen(self, timeout: float | None) -> Iterator[tuple[int, dict[str, Any]]]:
        """Ranks that say something, or have ended, and what they say; waits for one."""
        for pipe in wait(self._pipes, timeout=timeout):
            assert isinstance(pipe, Connection)
            rank = self._pipes.index(pipe) + 1
            yield rank, self._told(rank)

    def kill(self) -> None:
        """End them at once."""
        for process in self._processes:
            process.kill()
        for process in self._processes:
            process.wait()

    @property
    def running(self) -> list[bool]:
        """Which of them have not ended."""
        return [process.poll() is None for process in self._processes]

    def _start(self, rank: int) -> None:
        ours, theirs = Pipe()
        home = Path(__file__).parents[3]  # of the package, wherever this process found it
        paths = [str(home), *filter(None, [os.environ.get("PYTHONPATH")])]
        environment = {
            **os.environ,
            "PYTHONPATH": os.pathsep.join(paths),
            "RANK": str(rank),
            "LOCAL_RANK": str(rank),
            "WORLD_SIZE": str(self.size),
        }
        leash = Path(__file__).with_name("leash.py")
        follower = ("smcprog.engine.parallel.follower", theirs.fileno(), self.store.port)
        settings = (rank, self.size, self._kind, torch.get_num_threads())
        self._pipes.append(ours)
        with theirs:
            self._processes.append(
                subprocess.Popen(
                    [sys.executable, *map(str, (leash, os.getpid(), *follower, *settings))],
                    env=environment,
                    stdin=subprocess.DEVNULL,
                    pass_fds=[theirs.fileno()],
                )
            )

    def _told(self, rank: int) -> dict[str, Any]:
        """What one of them says, or how it ended without a word."""
        try:
            return decode(self._pipes[rank - 1].recv_bytes())[0]
        except (EOFError, OSError):
            return {"error": f"it ended with code {self._processes[rank - 1].wait()}"}
