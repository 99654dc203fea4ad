"""Pages of prompts that were run before, found again by the tokens that led to them.

Requests with a common prompt prefix share its full pages: the second one starts where the
prefix ends. The store is a tree of pages; a page lies under the page before it, so what
leads to a node is a whole prefix, compared token by token. Each node holds one reference to
its page. Pages that nobody else holds are *idle*: they count as free, and the longest unused
are given back when pages run short.
"""

from __future__ import annotations

import collections
import contextlib
import contextvars
import dataclasses
from collections.abc import Iterator, Sequence

import numpy as np
from numpy.typing import NDArray

from smcprog.engine.pages import PageAllocator

__all__ = ["PrefixStore", "sharing_allowed", "without_sharing"]

_unshared: contextvars.ContextVar[bool] = contextvars.ContextVar("unshared", default=False)


@contextlib.contextmanager
def without_sharing(off: bool = True) -> Iterator[None]:
    """Run every prompt whole while this lasts: its bits then depend on itself alone.

    What is found in a store was computed in passes of another shape, hence with another
    rounding.
    """
    token = _unshared.set(off)
    try:
        yield
    finally:
        _unshared.reset(token)


def sharing_allowed() -> bool:
    """False inside `without_sharing`."""
    return not _unshared.get()


@dataclasses.dataclass(eq=False)
class _Node:
    """One page: `tokens` are what it holds, `children` what follows it."""

    page: int
    tokens: tuple[int, ...]
    parent: _Node | None
    children: dict[tuple[int, ...], _Node] = dataclasses.field(default_factory=dict)


class PrefixStore:
    """Full pages of prompts, by their tokens. Not thread-safe: the engine's lock guards it.

    Parameters
    ----------
    pages : PageAllocator
        Is told to call `reclaim` when it runs short.
    limit : int
        Most pages to hold.
    """

    def __init__(self, pages: PageAllocator, limit: int) -> None:
        self._pages = pages
        self._limit = limit
        self._root = _Node(-1, (), None)
        self._nodes: collections.OrderedDict[int, _Node] = collections.OrderedDict()
        self._held = np.zeros(pages.num_pages, dtype=bool)
        self._claims: list[tuple[int, ...]] = []
        pages.reclaim = self.reclaim

    @property
    def idle(self) -> int:
        """Pages held by the store alone."""
        if not self._nodes:
            return 0
        return int(np.count_nonzero(self._held & (self._pages.refs == 1)))

    def held(self) -> NDArray[np.int32]:
        """Every page of the store, once."""
        return np.flatnonzero(self._held).astype(np.int32)

    def take(self, tokens: Sequence[int]) -> NDArray[np.int32]:
        """Pages of the longest stored prefix, one reference each for the caller.

        At least one token is left over: running it gives the logits after the prompt.
        """
        found = [node.page for node in self._walk(tokens)]
        pages = np.array(found, dtype=np.int32)
        self._pages.retain(pages)
        for page in reversed(found):  # a page is never older than what lies under it
            self._nodes.move_to_end(page)
        return pages

    def put(self, tokens: Sequence[int], pages: NDArray[np.int32]) -> None:
        """Keep the full pages of a prompt that was run; those known already are not kept."""
        size, node = self._pages.page_size, self._root
        for i in range(len(tokens) // size):
            key = tuple(tokens[i * size : (i + 1) * size])
            child = node.children.get(key)
            if child is None:
                page = int(pages[i])
                # A page has one place; this one may have another under a prefix of its own.
                if self._held[page] or not self._make_room(node):
                    break
                child = node.children[key] = _Node(page, key, node)
                self._nodes[page] = child
                self._held[page] = True
                self._pages.retain(np.array([page], dtype=np.int32))
            node = child
        while node.parent is not None:
            self._nodes.move_to_end(node.page)
            node = node.parent

    def reclaim(self, count: int) -> None:
        """Give back at least `count` idle pages, the longest unused first, if there are any."""
        goal = self._pages.free + count
        for page in list(self._nodes):
            if self._pages.free >= goal:
                return
            if self._held[page] and self._pages.refs[page] == 1:
                self._drop(self._nodes[page])

    def clear(self) -> None:
        """Forget everything."""
        for node in list(self._root.children.values()):
            self._drop(node)

    # A prompt that is being run is announced, so that whoever needs the same pages can wait
    # for them instead of running it a second time.

    def claim(self, tokens: Sequence[int]) -> tuple[int, ...]:
        """Announce that a prompt is being run; hand what is returned to `unclaim`."""
        claim = tuple(tokens)
        self._claims.append(claim)
        return claim

    def unclaim(self, claim: tuple[int, ...]) -> None:
        """The prompt was run, or it failed."""
        self._claims.remove(claim)

    def coming(self, tokens: Sequence[int]) -> bool:
        """Whether somebody runs the page that follows the longest stored prefix."""
        if not self._claims:
            return False
        size = self._pages.page_size
        end = (sum(1 for _ in self._walk(tokens)) + 1) * size
        if end >= len(tokens):
            return False
        wanted = tuple(tokens[:end])
        return any(claim[:end] == wanted for claim in self._claims)

    def _walk(self, tokens: Sequence[int]) -> Iterator[_Node]:
        size, node = self._pages.page_size, self._root
        for i in range((len(tokens) - 1) // size):
            child = node.children.get(tuple(tokens[i * size : (i + 1) * size]))
            if child is None:
                return
            yield child
            node = child

    def _make_room(self, spared: _Node) -> bool:
        """Whether one more page is within the limit, once the oldest has gone if need be.

        Pages on the way to `spared` stay.
        """
        if len(self._nodes) < self._limit:
            return True
        page = next(iter(self._nodes), None)
        if page is None:
            return False
        node: _Node | None = spared
        while node is not None:
            if node.page == page:
                return False
            node = node.parent
        self._drop(self._nodes[page])
        return True

    def _drop(self, node: _Node) -> None:
        """Forget a page and all that lies under it."""
        assert node.parent is not None
        del node.parent.children[node.tokens]
        gone = [node]
        for each in gone:
            gone.extend(each.children.values())
            del self._nodes[each.page]
            self._held[each.page] = False
        self._pages.release(np.array([each.page for each in gone], dtype=np.int32))
