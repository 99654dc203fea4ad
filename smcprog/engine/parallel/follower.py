"""A process that holds a part of each split model and repeats what its leader's engine does.

Started by `smcprog.engine.parallel.crew` on a leash, and ended with the leader: when it closes the
pipe, or is gone.
"""

from __future__ import annotations

import contextlib
import os
import sys
from collections.abc import Iterator
from multiprocessing.connection import Connection
from pathlib import Path
from typing import Any

import torch
import torch.distributed as dist
import transformers

from smcprog.engine import LM, loading
from smcprog.engine.engine import Engine
from smcprog.engine.parallel import group
from smcprog.engine.parallel.mirror import read_batch
from smcprog.engine.parallel.split import follow
from smcprog.engine.parallel.wire import Array, decode, encode
from smcprog.errors import SMCError

__all__ = ["Follower", "main"]


class Follower:
    """Does what the leader says, with the parts that this process holds.

    It also stands for the processes, where `LM` loads a part.

    Parameters
    ----------
    pipe : Connection
        To the leader.
    device : torch.device
    size : int
        Processes, the leader included.
    """

    follows = False

    def __init__(self, pipe: Connection, device: torch.device, size: int) -> None:
        self._pipe = pipe
        self.device = device
        self.size = size
        self._control = group.control_group()
        self._engines: dict[int, Engine] = {}

    def obey(self, head: dict[str, Any], arrays: list[Array]) -> None:
        """One command."""
        getattr(self, f"_{head.pop('op')}")(head, arrays)

    def _load(self, head: dict[str, Any], arrays: list[Array]) -> None:
        try:
            lm = LM(
                head["folder"],
                device=self.device,
                dtype=head["dtype"],
                tensor_parallel=self.size,
                **head["options"],
            )
        except SMCError as error:
            # Most likely the leader says the same; if not, it ends this process.
            self._pipe.send_bytes(encode({"refused": _words(error)}))
        else:
            self._engines[head["model"]] = lm.engine

    @contextlib.contextmanager
    def loading(self, folder: Path, dtype: Any, options: dict[str, Any]) -> Iterator[Any]:
        """The part of a model that is held here, and its tokenizer."""
        with group.on_this_machine():
            part = loading.load(folder, self.device, dtype, shards=self.size)
        yield part

    def adopt(self, engine: Engine) -> None:
        """Nothing to do: the leader says what becomes of it."""

    def _count_pages(self, head: dict[str, Any], arrays: list[Array]) -> None:
        group.least(self._control, self._engines[head["model"]].capacity)

    def _resize(self, head: dict[str, Any], arrays: list[Array]) -> None:
        engine = self._engines[head["model"]]
        assert engine.pool_size is not None
        engine.pool_size.set(head["pages"])
        engine.resize(head["pages"])

    def _forget(self, head: dict[str, Any], arrays: list[Array]) -> None:
        self._engines.pop(head["model"], None)

    @torch.inference_mode()
    def _clear_pages(self, head: dict[str, Any], arrays: list[Array]) -> None:
        self._engines[head["model"]].attention.clear_pages(arrays[0])

    @torch.inference_mode()
    def _copy_pages(self, head: dict[str, Any], arrays: list[Array]) -> None:
        self._engines[head["model"]].attention.copy_pages(*arrays)

    @torch.inference_mode()
    def _forward(self, head: dict[str, Any], arrays: list[Array]) -> None:
        engine = self._engines[head["model"]]
        ids_M_T = self._shared(head["ids"])
        keep = head["keep"] if head["columns"] is None else self._shared([head["columns"]])
        batch, positions_M_T = read_batch(head, arrays, engine.attention)
        engine.call_model(ids_M_T, positions_M_T, batch, keep)

    def _shared(self, shape: list[int]) -> torch.Tensor:
        values = torch.empty(shape, dtype=torch.int64, device=self.device)
        dist.broadcast(values, src=0)
        return values


def main(arguments: list[str]) -> int:
    """Follow until the leader closes the pipe.

    Parameters
    ----------
    arguments : list of str
        Descriptor of the pipe, port, rank, size, kind of device, threads.
    """
    descriptor, port, rank, size, kind, threads = arguments
    transformers.utils.logging.disable_progress_bar()
    torch.set_num_threads(int(threads))
    pipe = Connection(int(descriptor))
    try:
        device = torch.device(kind) if kind == "cpu" else torch.device(kind, int(rank))
        torch.empty(1, device=device)  # there is one, and it works
        pipe.send_bytes(encode({"ready": True}))
        store = dist.TCPStore("127.0.0.1", int(port), int(size), is_master=False)
        with group.on_this_machine():
            group.begin(device, int(size), int(rank), store)
            follower = Follower(pipe, device, int(size))
        follow(follower)
        while True:
            follower.obey(*decode(pipe.recv_bytes()))
    except (EOFError, ConnectionError):
        return 0
    except BaseException as error:
        try:
            pipe.send_bytes(encode({"error": _words(error)}))
        except OSError:
            return 0  # the leader is gone, which is what the error is about
        return 1


def _words(error: BaseException) -> str:
    return f"{type(error).__name__}: {error}"


if __name__ == "__main__":
    code = main(sys.argv[1:])
    os._exit(code)  # nothing of the process group is to be waited for
