"""The states of a grammar: which rows share a history, what may follow each, and its masks.

A history has one matcher, however many rows have it; it is copied only where rows part.
Matchers of one grammar share the automaton of its terminals, which grows as texts need it.
"""

from __future__ import annotations

import functools
import hashlib
import os
import time
from collections.abc import Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from typing import TYPE_CHECKING
from weakref import WeakKeyDictionary

import torch
from llguidance import LLMatcher
from torch import Tensor

from smcprog import limits
from smcprog.engine.vocab import Vocabulary
from smcprog.errors import GrammarError, GrammarLimitError, PotentialError
from smcprog.grammars.cache import ByteCache
from smcprog.grammars.engine import (
    byte_tokenizer,
    compile_text,
    error_reason,
    is_dead_end,
    is_limit,
)
from smcprog.grammars.text import CheckState, GrammarText
from smcprog.potentials.ending import Endings

if TYPE_CHECKING:
    from llguidance import LLTokenizer

__all__ = [
    "DEAD",
    "ENDED",
    "Compiled",
    "Node",
    "Rows",
    "Tokens",
    "check_running",
    "compiled_bytes",
    "compute_ahead",
    "feed",
    "fill_masks",
    "is_complete",
    "last_mask",
    "successor",
    "tokens_of",
]

DEAD, ENDED = -1, -2  # rows without a matcher: outside the language; complete

BASE_BYTES, BYTES_PER_CHARACTER = 128 << 10, 40  # of a compiled grammar, measured
FREE_SECONDS, GROWTH_PER_SECOND = 1e-4, 100e6  # a mask that takes longer grows the automaton


class Tokens:
    """What the ids of a vocabulary are to a grammar.

    Attributes
    ----------
    bytes_V : list of bytes
    not_text : frozenset of int
        EOS ids, special tokens and ids without a token.
    text_W, eos_W : Tensor, int32, [W]
        Bit masks of the tokens that are text, and of the EOS ids.
    key : bytes
        Equal for vocabularies that are the same to every grammar.
    """

    def __init__(self, vocab: Vocabulary) -> None:
        self.bytes_V = vocab.token_bytes
        self.eos = frozenset(vocab.eos_ids)
        self.not_text = frozenset(
            v for v, text in enumerate(self.bytes_V) if not text or v in self.eos
        )
        is_text = torch.ones(-(-vocab.size // 32) * 32, dtype=torch.bool)
        is_text[vocab.size :] = False
        is_text[list(self.not_text)] = False
        is_eos = torch.zeros_like(is_text)
        is_eos[list(self.eos)] = True
        self.text_W, self.eos_W = _pack(is_text), _pack(is_eos)
        digest = hashlib.sha256(repr((vocab.size, sorted(self.eos))).encode())
        for text in self.bytes_V:
            digest.update(len(text).to_bytes(4, "little"))
            digest.update(text)
        self.key = digest.digest()


_tokens_of: WeakKeyDictionary[Vocabulary, Tokens] = WeakKeyDictionary()


def tokens_of(vocab: Vocabulary) -> Tokens:
    """The `Tokens` of a vocabulary, made once."""
    if vocab not in _tokens_of:
        _tokens_of[vocab] = Tokens(vocab)
    return _tokens_of[vocab]


def _pack(bits: Tensor) -> Tensor:
    """Bool [32 W] to int32 [W], bit ``v % 32`` of word ``v // 32``."""
    weights = 1 << torch.arange(32, dtype=torch.int64)
    words = (bits.view(-1, 32) * weights).sum(1)
    return torch.where(words >= 2**31, words - 2**32, words).to(torch.int32)


# ---------------------------------------------------------------------- compiling

_cache: ByteCache[LLMatcher] = ByteCache(limits.COMPILED_BYTES)
"""Matchers at the start of their grammar, by its text and the vocabulary."""


def _matcher(text: GrammarText, tokenizer: LLTokenizer, key: tuple[bytes, bytes]) -> LLMatcher:
    def make() -> tuple[LLMatcher, int]:
        matcher = compile_text(text.lark, tokenizer)
        if matcher.is_error():
            message = matcher.get_error()
            if is_limit(message):
                raise GrammarLimitError(text.explain_error(message), limit="fuel")
            raise GrammarError(text.explain_error(message))
        return matcher, BASE_BYTES + BYTES_PER_CHARACTER * len(text.lark)

    return _cache.get(key, make)


def _ending_matcher(key: tuple[bytes, bytes], lark: str, tokenizer: LLTokenizer) -> LLMatcher:
    def make() -> tuple[LLMatcher, int]:
        return compile_text(lark, tokenizer), BASE_BYTES + BYTES_PER_CHARACTER * len(lark)

    return _cache.get((*key, b"endings"), make)


def _digest(text: GrammarText) -> bytes:
    return hashlib.sha256(text.lark.encode()).digest()


def compiled_bytes(text: GrammarText) -> LLMatcher:
    """A matcher at the start of a grammar, over the 256 bytes. Copy it before use.

    Raises
    ------
    GrammarError
        If the mask engine does not take the grammar.
    """
    return _matcher(text, byte_tokenizer(), (_digest(text), b"bytes"))


class Compiled:
    """A grammar over one vocabulary.

    Attributes
    ----------
    name : str
    tokens : Tokens
    key
        Of the cache of compiled grammars.
    root : Node
        The start; never changed in place, since this object holds it too.
    endings : Endings
        Masks for the last token of a text.

    Raises
    ------
    GrammarError
        If the mask engine does not take the grammar.
    PotentialError
        If it gives up on the very first mask.
    """

    __slots__ = ("__weakref__", "endings", "key", "name", "root", "tokens")

    def __init__(self, text: GrammarText, vocab: Vocabulary) -> None:
        self.name = f"Grammar({text.name})"
        self.tokens = tokens_of(vocab)
        self.key = (_digest(text), self.tokens.key)
        matcher = _matcher(text, vocab.ll_tokenizer, self.key).deep_copy()
        self.endings = Endings(text, vocab, functools.partial(_ending_matcher, self.key))
        self.root = Node(matcher, tuple(check.begin() for check in text.checks), b"")
        self.root.holders = 1  # this object: so it is never advanced in place
        fill_masks(self, [self.root])  # now, while no other thread can be at the matcher


# ---------------------------------------------------------------------- rows


class Node:
    """What follows one history: a matcher, shared by all rows that have it.

    `holders` counts the states that refer to the node. A node with one holder may be
    advanced in place; otherwise its matcher is copied first.
    """

    __slots__ = ("_matcher", "checks", "holders", "last_W", "mask_W", "pending", "text")

    def __init__(self, matcher: LLMatcher, checks: tuple[CheckState, ...], text: bytes) -> None:
        self._matcher = matcher
        self.checks = checks  # what each of the grammar's checks knows of the text
        self.text = text
        self.holders = 0
        self.mask_W: Tensor | None = None
        self.last_W: Tensor | None = None  # the mask where one more token is the last
        self.pending: Future[None] | None = None  # its mask is being computed

    @property
    def matcher(self) -> LLMatcher:
        """The matcher, when nothing else is at work on it."""
        self.settle()
        return self._matcher

    def settle(self) -> None:
        """Wait for a mask that is being computed; raises what that raised."""
        pending = self.pending
        if pending is not None:
            pending.result()
            self.pending = None

    def copy(self) -> Node:
        """The same history, with a matcher of its own and no masks yet."""
        return Node(self.matcher.deep_copy(), self.checks, self.text)


class Rows:
    """Rows of a population: `rows[i]` is the index of row i's node, or DEAD, or ENDED.

    `room[i]` is how many tokens of text row i may still get.
    """

    __slots__ = ("compiled", "nodes", "room", "rows")

    def __init__(
        self, compiled: Compiled, nodes: list[Node], rows: list[int], room: list[int]
    ) -> None:
        self.compiled = compiled
        self.nodes = nodes  # each is counted in its `holders`
        self.rows = rows
        self.room = room

    def select(self, ancestors: list[int]) -> Rows:
        """Row i of the result continues row ``ancestors[i]``."""
        rows = [self.rows[a] for a in ancestors]
        index: dict[int, int] = {}
        for at in rows:
            if at >= 0:
                index.setdefault(at, len(index))
        nodes = [self.nodes[at] for at in index]
        for node in nodes:
            node.holders += 1
        room = [self.room[a] for a in ancestors]
        return Rows(self.compiled, nodes, [index.get(at, at) for at in rows], room)

    @staticmethod
    def joined(states: Sequence[Rows]) -> Rows:
        """All rows of some states of one grammar, which are released."""
        nodes: list[Node] = []
        rows: list[int] = []
        index: dict[int, int] = {}  # by identity: a history may be in several of them
        for state in states:
            for node in state.nodes:
                if id(node) not in index:
                    index[id(node)] = len(nodes)
                    nodes.append(node)
                    node.holders += 1
            rows += [at if at < 0 else index[id(state.nodes[at])] for at in state.rows]
        room = [left for state in states for left in state.room]
        for state in states:
            state.release()
        return Rows(states[0].compiled, nodes, rows, room)

    def release(self) -> None:
        """Give the nodes back; twice does no harm."""
        for node in self.nodes:
            node.holders -= 1
        self.nodes = []
        self.rows = []
        self.room = []

    def __del__(self) -> None:
        self.release()


def successor(
    grammar: Compiled, node: Node, new: tuple[int, ...], *, may_change: bool
) -> Node | None:
    """The node after `new`, or None where that leaves the language.

    Parameters
    ----------
    grammar : Compiled
    node : Node
    new : tuple of int
        Tokens that are text.
    may_change : bool
        Whether nobody needs the node as it is any more.
    """
    if not new:
        return node
    alone = may_change and node.holders == 1
    matcher = node.matcher if alone else node.matcher.deep_copy()
    consumed = matcher.try_consume_tokens(list(new))
    check_running(grammar, matcher)
    if consumed < len(new):
        return None
    data = b"".join([grammar.tokens.bytes_V[t] for t in new])
    checks = feed(node.checks, data)
    return None if checks is None else Node(matcher, checks, node.text + data)


def is_complete(grammar: Compiled, node: Node) -> bool:
    """Whether the text so far is one of the language."""
    accepting = node.matcher.is_accepting()
    check_running(grammar, node.matcher)
    return accepting and all(check.complete() for check in node.checks)


def feed(checks: tuple[CheckState, ...], data: bytes) -> tuple[CheckState, ...] | None:
    """The checks after more text; None where one of them sees a dead end."""
    if not data:
        return checks
    fed = []
    for check in checks:
        after = check.feed(data)
        if after is None:
            return None
        fed.append(after)
    return tuple(fed)


def check_running(grammar: Compiled, matcher: LLMatcher) -> None:
    """Leaving the language is no error of the engine; running into its limits is.

    A grammar that ran into one is compiled afresh next time: its automaton may be what is
    full.

    Raises
    ------
    PotentialError
    """
    if matcher.is_error() and not is_dead_end(matcher.get_error()):
        _cache.discard(grammar.key)
        reason, _, _ = error_reason(matcher.get_error())
        raise PotentialError(
            f"{grammar.name}: the mask engine gave up: {reason[:300]}", potential=grammar.name
        )


# ---------------------------------------------------------------------- masks


def fill_masks(grammar: Compiled, nodes: Sequence[Node]) -> None:
    """Compute the masks of nodes that have none; EOS ids are set where the text is complete.

    One after the other: matchers of one grammar share an automaton under a lock, so threads
    would only wait for each other.

    Raises
    ------
    PotentialError
        If the engine gives up on one of them.
    """
    known = grammar.tokens
    width = known.eos_W.shape[0]
    masks_U_W = torch.empty((len(nodes), width), dtype=torch.int32)
    at, stride = masks_U_W.data_ptr(), width * masks_U_W.element_size()
    begun = time.thread_time()
    matchers = [node._matcher for node in nodes]
    for i, matcher in enumerate(matchers):
        matcher.unsafe_compute_mask_ptr(at + i * stride, stride)
    slow = time.thread_time() - begun - FREE_SECONDS * len(nodes)
    if slow > 0:
        _cache.grow(grammar.key, int(slow * GROWTH_PER_SECOND))
    masks_U_W &= known.text_W
    for node, matcher, mask_W in zip(nodes, matchers, masks_U_W.unbind(), strict=True):
        if matcher.is_error():
            check_running(grammar, matcher)
            mask_W.zero_()  # the vocabulary has no token that could follow
        elif matcher.is_accepting():
            mask_W |= known.eos_W
        node.mask_W = mask_W


@functools.lru_cache(maxsize=1)
def _background() -> ThreadPoolExecutor:
    return ThreadPoolExecutor(1, thread_name_prefix="smcprog-masks")


def _spare_core() -> bool:
    """Whether a thread may run beside the model without taking a core from it."""
    return torch.cuda.is_available() or (os.cpu_count() or 1) > torch.get_num_threads()


def compute_ahead(grammar: Compiled, nodes: Sequence[Node]) -> None:
    """Begin to compute masks that will be asked for, while the model runs.

    Where the model takes all cores this does nothing: the masks wait until they are needed.
    """
    missing = [node for node in nodes if node.mask_W is None and node.pending is None]
    if missing and _spare_core():
        pending = _background().submit(fill_masks, grammar, missing)
        for node in missing:
            node.pending = pending


def last_mask(grammar: Compiled, node: Node) -> Tensor:
    """int32 [W]: the mask where one more token is the last one of text; EOS as in `mask_W`."""
    if node.last_W is None:
        assert node.mask_W is not None
        finishing_W = grammar.endings.mask(node.text)
        if finishing_W is None:
            node.last_W = node.mask_W
        else:
            finishing_W = finishing_W[: grammar.tokens.eos_W.shape[0]] | grammar.tokens.eos_W
            node.last_W = node.mask_W & finishing_W
    return node.last_W
