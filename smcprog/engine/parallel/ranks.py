"""One program in several processes under a launcher: every rank takes the same decisions.

`torchrun` starts the same script n times. Each process holds a part of the model, computes
the same logits, and draws the same tokens, since uniforms are a function of the seed. What
could differ (a fresh seed, a measured time, free memory) is decided by one for all, and what
came out is compared after each round.
"""

from __future__ import annotations

import contextlib
import datetime
import hashlib
import os
import threading
from collections.abc import Iterable, Iterator
from pathlib import Path
from typing import TYPE_CHECKING, Any

import torch
import torch.distributed as dist

from smcprog.engine import loading
from smcprog.engine.parallel import group
from smcprog.engine.parallel.plans import shard_device
from smcprog.errors import ParallelError, RanksDivergedError, SettingError

if TYPE_CHECKING:
    from smcprog.engine.engine import Engine

__all__ = ["Ranks", "launched", "ranks_of"]

LAUNCHER = ("RANK", "WORLD_SIZE", "MASTER_ADDR", "MASTER_PORT")
"""What a launcher sets in the environment."""
WORD = 256
"""Bytes that a rank says at a comparison: a flag, a digest, and the beginning of an error."""
DIGEST = 16
GROUP_ERRORS = (RuntimeError, dist.DistBackendError, dist.DistNetworkError, dist.DistError)
"""Types of what operations of a process group raise."""
PATIENCE = datetime.timedelta(seconds=60)
"""How long a rank with an error waits for the others to hear of it."""


def launched() -> bool:
    """Whether this process is one of several that run the same script."""
    return dist.is_initialized() or all(name in os.environ for name in LAUNCHER)


class Ranks:
    """The processes of a launcher, which hold every split model together.

    Made by `Ranks.of`, once a process.

    Attributes
    ----------
    size, rank : int
    device : torch.device
        Where this process keeps its parts.
    follows : bool
        False: every process decides, and nothing is repeated for others.
    """

    follows = False
    _joined: Ranks | None = None

    def __init__(self, size: int, rank: int, device: torch.device) -> None:
        self.size = size
        self.rank = rank
        self.device = device
        self._control = group.control_group()
        self._turn = threading.RLock()

    @classmethod
    def check_size(cls, size: int) -> None:
        """Raise SettingError unless the launcher has started so many processes."""
        world = dist.get_world_size() if dist.is_initialized() else int(os.environ["WORLD_SIZE"])
        if world != size:
            raise SettingError(
                f"tensor_parallel={size}, and the launcher has started {world} "
                f"process{'es' * (world != 1)}: a model is split over all of them; give "
                f"tensor_parallel={world}, or start with --nproc-per-node {size}"
            )

    @classmethod
    def of(cls, size: int, device: torch.device) -> Ranks:
        """Those that this process belongs to, after starting the process group if nobody has.

        Raises
        ------
        SettingError
            If there is no device for this process.
        """
        initialised = dist.is_initialized()
        rank = dist.get_rank() if initialised else int(os.environ["RANK"])
        place = shard_device(device, int(os.environ.get("LOCAL_RANK", rank)), size)
        if cls._joined is None:
            if not initialised:
                group.begin(place, size, rank)
            cls._joined = cls(size, rank, place)
        return cls._joined

    @classmethod
    def joined(cls) -> Ranks | None:
        """Those that this process belongs to, if it has loaded a split model under a launcher."""
        return cls._joined

    # ---------------------------------------------------------------- loading

    @contextlib.contextmanager
    def loading(self, folder: Path, dtype: Any, options: dict[str, Any]) -> Iterator[Any]:
        """The part of a model that is held here, and its tokenizer."""
        yield loading.load(folder, self.device, dtype, shards=self.size)

    def adopt(self, engine: Engine) -> None:
        """The engine runs a part of a model of these ranks."""
        engine.ranks = self
        group.agree_on_pages(engine, self.least)

    # --------------------------------------------------------------- agreeing

    @contextlib.contextmanager
    def turn(self) -> Iterator[None]:
        """One thread of a process at a time: who comes first is not the same everywhere.

        Raises
        ------
        SettingError
            Another thread is at work.
        """
        if not self._turn.acquire(blocking=False):
            raise SettingError(
                "two threads sample from models that are split over the processes of a launcher, "
                "and which comes first is not the same in all of them: sample in one thread"
            )
        try:
            yield
        finally:
            self._turn.release()

    def agree(self, values: Iterable[int]) -> list[int]:
        """The integers of rank 0, in the place of one's own."""
        shared = torch.tensor(list(values), dtype=torch.int64)
        if len(shared):
            dist.broadcast(shared, src=0, group=self._control)
        return [int(v) for v in shared]

    def least(self, value: int) -> int:
        """The smallest of the ranks' values."""
        return group.least(self._control, value)

    def compare(self, parts: Iterable[bytes], where: str) -> None:
        """Raise unless all ranks say the same.

        Parameters
        ----------
        parts : iterable of bytes
            What must be equal.
        where : str
            For the message, such as "in round 3".

        Raises
        ------
        RanksDivergedError
            In every rank.
        """
        digest = hashlib.blake2b(digest_size=DIGEST)
        for part in parts:
            digest.update(part)
        words = self._say(b"\0" + digest.digest())
        self._check_failures(words, where)
        others = [r for r, word in enumerate(words) if word != words[0]]
        if others:
            raise RanksDivergedError(
                f"{where}, the ranks have diverged: {_listed(others)} of {self.size} "
                f"{'has' if len(others) == 1 else 'have'} other prompts, tokens or weights than "
                "rank 0. All ranks must be given the same prompts, settings and seeds; rewards, "
                "checks and other functions must answer alike in all of them; and a draft that "
                "is not split must run on the same kind of device in each"
            )

    @contextlib.contextmanager
    def in_step(self) -> Iterator[None]:
        """If this rank fails meanwhile, the others hear of it at their next comparison.

        Raises
        ------
        RanksDivergedError
            In every rank, unless all have failed in the same way.
        """
        with self.turn():
            try:
                yield
            except RanksDivergedError:
                raise  # all of them know
            except Exception as error:
                told = f"{type(error).__name__}: {error}".encode()[: WORD - 1]
                try:
                    words = self._say(b"\1" + told, PATIENCE)
                except ParallelError as gone:  # then this one fails alone ...
                    if type(error) in GROUP_ERRORS:  # ... and that may be why
                        raise gone from error
                    raise error from None
                if len({word.partition(b":")[0] for word in words}) > 1:
                    self._check_failures(words, "in the same round", error)
                raise

    def _check_failures(
        self, words: list[bytes], where: str, cause: Exception | None = None
    ) -> None:
        """Raise in all ranks what some of them said of their failure."""
        failed = {r: word[1:].rstrip(b"\0") for r, word in enumerate(words) if word[0]}
        if failed:
            told = "; ".join(f"rank {r}: {e.decode(errors='replace')}" for r, e in failed.items())
            raise RanksDivergedError(
                f"{where}, {_listed(list(failed))} of {self.size} failed, and the others did "
                f"not, or not in the same way, so none goes on ({told})"
            ) from cause

    def _say(self, word: bytes, timeout: datetime.timedelta | None = None) -> list[bytes]:
        try:
            return group.words_of_all(self._control, word, WORD, timeout)
        except RuntimeError as error:
            raise ParallelError(
                f"another of the {self.size} ranks is gone, or does not answer: "
                f"{str(error).splitlines()[0]}"
            ) from error

    def __repr__(self) -> str:
        return f"Ranks(size={self.size}, rank={self.rank})"


def ranks_of(models: Iterable[Any]) -> Ranks | None:
    """The ranks that hold one of some models, if one of them is split under a launcher."""
    for model in models:
        ranks = getattr(getattr(model, "engine", None), "ranks", None)
        if isinstance(ranks, Ranks):
            return ranks
    return None


def _listed(ranks: list[int]) -> str:
    return f"rank{'s' * (len(ranks) != 1)} " + ", ".join(map(str, ranks))
