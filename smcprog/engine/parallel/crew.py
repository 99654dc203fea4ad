"""A process that decides alone, and its followers: told, watched, ended.

`LM(path, tensor_parallel=n)` outside of a launcher starts n − 1 processes beside this one, the
leader. Each holds a part of every split model and repeats what the leader's engine does to pages
and model, so that everything else (requests, threads, rewards) stays as it is with one process.
Commands go through a pipe to each; tensors through the process group.
"""

from __future__ import annotations

import atexit
import collections
import contextlib
import os
import threading
import time
import weakref
from collections.abc import Iterable, Iterator, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

import torch
import torch.distributed as dist
from torch import Tensor

from smcprog.engine import loading
from smcprog.engine.parallel import group
from smcprog.engine.parallel.mirror import Mirror, MirroredAttention
from smcprog.engine.parallel.plans import shard_device
from smcprog.engine.parallel.processes import Processes
from smcprog.engine.parallel.wire import Array, encode
from smcprog.errors import ParallelError, SettingError, SMCError

if TYPE_CHECKING:
    from smcprog.engine.engine import Engine

__all__ = ["Crew", "crew_of"]

LAST_WORDS = 5.0
"""Seconds to wait for the error of a follower, once something went wrong."""


class Crew:
    """The followers of this process; there is one crew at a time.

    Attributes
    ----------
    size : int
        Processes, the leader included.
    rank : int
        0: the leader.
    device : torch.device
        Where the leader keeps its parts.
    follows : bool
        True: what engines do is repeated in other processes.
    error : ParallelError or None
        What ended it.
    """

    follows = True
    _current: Crew | None = None
    _making = threading.Lock()

    def __init__(self, size: int, device: torch.device) -> None:
        self.size = size
        self.rank = 0
        self.device = device
        self.error: ParallelError | None = None
        self._turn = threading.RLock()
        self._models = 0
        # Finalizers may run anywhere: they only append here.
        self._dropped: collections.deque[int] = collections.deque()
        self._processes = Processes(size, device.type)
        self._refusals: dict[int, tuple[str, float]] = {}  # rank → error in loading, and when
        try:
            self._processes.start()
            with group.on_this_machine():
                group.begin(device, size, 0, self._processes.store)
                self._control = group.control_group()
        except BaseException:
            self.close()
            raise
        threading.Thread(target=self._watch, name="smcprog-crew", daemon=True).start()
        atexit.register(self.close)

    @classmethod
    def check_size(cls, size: int) -> None:
        """Raise SettingError if there is a crew of another size."""
        current = cls._current
        if current is not None and current.error is None and current.size != size:
            raise SettingError(
                f"tensor_parallel={size}, and this process has loaded a model with "
                f"tensor_parallel={current.size}: all split models of a process are split over "
                "the same number"
            )

    @classmethod
    def of(cls, size: int, device: torch.device) -> Crew:
        """The crew of this process, started if there is none.

        Raises
        ------
        SettingError
            There are not enough devices.
        ParallelError
            A follower did not start.
        """
        with cls._making:
            cls.check_size(size)
            current = cls._current
            place = shard_device(device, 0, size)
            if current is not None and current.error is None:
                return current
            if os.name != "posix":
                raise SettingError("tensor_parallel starts processes as POSIX systems do")
            shard_device(torch.device(place.type), size - 1, size)  # the last one has one, too
            if current is not None:
                current.close()
            cls._current = cls(size, place)
            return cls._current

    @classmethod
    def here(cls) -> bool:
        """Whether this process has, or had, a crew."""
        return cls._current is not None

    # ---------------------------------------------------------------- loading

    @contextlib.contextmanager
    def loading(self, folder: Path, dtype: Any, options: dict[str, Any]) -> Iterator[Any]:
        """The leader's part of a model, and its tokenizer; the followers load theirs.

        Parameters
        ----------
        folder : Path
        dtype : str or torch.dtype or None
        options : dict
            Of `LM`, as JSON has them.
        """
        name = str(dtype).removeprefix("torch.") if dtype is not None else None
        refusal: Exception | None = None
        with self.turn():
            head = {"op": "load", "model": self._models, "folder": str(folder), "dtype": name}
            self.send({**head, "options": options})
            try:
                with group.on_this_machine():
                    part = loading.load(folder, self.device, dtype, shards=self.size)
                yield part
            except Exception as error:
                refusal = error
                if not self._all_refuse():
                    raise
        if refusal is not None:  # all saw what is wrong, and none waits for another
            raise refusal

    def _all_refuse(self) -> bool:
        """Whether the followers have come to an error in loading, too; waits a little for it."""
        end = time.monotonic() + LAST_WORDS
        while len(self._refusals) < self.size - 1 and time.monotonic() < end:
            time.sleep(0.01)
        refused = len(self._refusals) == self.size - 1
        self._refusals = {}
        return refused

    def adopt(self, engine: Engine) -> None:
        """From now on, followers repeat what an engine does; to be called while `loading`."""
        number, self._models = self._models, self._models + 1
        mirror = Mirror(self, number)
        engine.attention = MirroredAttention(engine.attention, mirror)
        engine.mirror = mirror
        weakref.finalize(engine, self._dropped.append, number)
        group.agree_on_pages(engine, lambda pages: self._least_pages(number, pages))

    def _least_pages(self, number: int, pages: int) -> int:
        """As many pages of a model as every process can hold."""
        with self.turn():
            self.send({"op": "count_pages", "model": number})
            return group.least(self._control, pages)

    # --------------------------------------------------------------- commands

    @contextlib.contextmanager
    def turn(self) -> Iterator[None]:
        """What is sent and run inside belongs together.

        Raises
        ------
        ParallelError
            The crew is gone, or a follower failed meanwhile.
        """
        with self._turn:
            if self.error is not None:
                raise ParallelError(str(self.error)) from self.error
            try:
                yield
            except BaseException as error:
                if isinstance(error, ParallelError) and self.error is not None:
                    raise
                self._hear_last_words(error)
                if self.error is not None and isinstance(error, Exception):
                    raise ParallelError(str(self.error)) from error
                # The followers wait in the middle of something, and cannot be called back.
                self.fail(f"the leader failed in the middle of a pass: {_words(error)}")
                raise

    def send(self, head: dict[str, Any], arrays: Sequence[Array] = ()) -> None:
        """A command to every follower; inside of a `turn`."""
        while self._dropped:
            message = encode({"op": "forget", "model": self._dropped.popleft()})
            self._processes.write(message)
        self._processes.write(encode(head, arrays))

    def share(self, values: Tensor) -> None:
        """Integers that followers receive on their devices; inside of a `turn`."""
        dist.broadcast(values, src=0)

    # --------------------------------------------------------------- failures

    def fail(self, what: str) -> None:
        """The crew has ended; the first word counts. From any thread."""
        if self.error is None:
            self.error = ParallelError(
                f"{what}. Models that are split over these processes cannot be used any more: "
                "load them again"
            )
        self._end()

    def close(self) -> None:
        """End the followers, and leave the process group."""
        atexit.unregister(self.close)
        self.fail("the processes that held parts of the model were ended")
        _leave_group(abort=self.device.type == "cuda")

    def check(self) -> None:
        """Raise ParallelError if a follower failed."""
        if self.error is not None:
            raise ParallelError(str(self.error)) from self.error

    def _end(self) -> None:
        """Whoever waits for a follower that is gone is woken by it, but for kernels."""
        self._processes.kill()
        if self.device.type == "cuda":
            _leave_group(abort=True)

    def _hear_last_words(self, error: BaseException) -> None:
        """Wait a little: the error of a follower may be the reason, and be heard of after it."""
        if isinstance(error, (RuntimeError, OSError)) and not isinstance(error, SMCError):
            end = time.monotonic() + LAST_WORDS
            while self.error is None and time.monotonic() < end:
                time.sleep(0.01)

    def _watch(self) -> None:
        """Listen to the followers, in a thread of its own, until one has failed."""
        while self.error is None:
            for rank, told in self._processes.listen(1.0 if self._refusals else None):
                if "refused" not in told:
                    self.fail(f"process {rank} of {self.size} failed: {told['error']}")
                    return
                self._refusals[rank] = (str(told["refused"]), time.monotonic())
            for rank, (what, when) in list(self._refusals.items()):
                # The leader would have refused as well by now: it waits for this follower.
                if time.monotonic() > when + LAST_WORDS:
                    self.fail(f"process {rank} of {self.size} failed: {what}")


def crew_of(models: Iterable[Any]) -> Crew | None:
    """The followers that hold parts of one of some models, if there are any."""
    for model in models:
        mirror = getattr(getattr(model, "engine", None), "mirror", None)
        if mirror is not None:
            crew: Crew = mirror.crew
            return crew
    return None


def _leave_group(abort: bool) -> None:
    """Give the process group up, whoever waits in it."""
    if dist.is_initialized():
        with contextlib.suppress(Exception):
            if abort:
                dist.distributed_c10d._abort_process_group()
            else:
                dist.destroy_process_group()


def _words(error: BaseException) -> str:
    return f"{type(error).__name__}: {error}"
