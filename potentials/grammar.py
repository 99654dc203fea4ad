"""A language as a factor: ψ is 1 where the output is, or can become, a text of it, else 0.

Token masks come from llguidance, without forcing one spelling of a text: every token
sequence that spells a text of the language is allowed, so the language model's own
probabilities of spellings stay what they are.
"""

from __future__ import annotations

import functools
import math
import os
from collections import OrderedDict
from collections.abc import Iterable, Sequence
from typing import Any
from weakref import WeakKeyDictionary

import torch
from llguidance import LLExecutor, LLMatcher
from torch import Tensor

from smcprog.engine.vocab import Vocabulary
from smcprog.errors import GrammarError, PotentialError
from smcprog.grammars.engine import HEADER, byte_tokenizer, compile_text, error_reason, is_dead_end
from smcprog.grammars.json_schema import schema_grammar
from smcprog.grammars.lark import lark_grammar
from smcprog.grammars.python_types import is_type, type_schema
from smcprog.grammars.simple import choice_grammar, regex_grammar
from smcprog.grammars.text import CheckState, GrammarText
from smcprog.potentials.base import Potential, Request

__all__ = ["Grammar"]

MAX_VOCABULARIES = 4  # compiled forms that one Grammar keeps
MIN_PARALLEL = 4  # masks to compute at once before threads pay

DEAD, ENDED = -1, -2  # rows without a matcher: outside the language; complete


class Grammar(Potential):
    r"""Restrict the output to a language.

    Parameters
    ----------
    source
        What the output must be:

        - a built-in grammar (``from smcprog.grammars import json``);
        - a JSON Schema, as a dict or a bool: a JSON text of a valid value;
        - a pydantic model, dataclass, ``TypedDict`` or other type with a JSON Schema.

        See `regex`, `choice` and `lark` for the other kinds.
    key_order : {"declared", "any"}
        Order of the keys of JSON objects, for schemas and types. With any order, that the
        required keys are there is checked on the finished text only, which costs particles.
    whitespace : {"bounded", "none", "free"}
        White space inside a JSON value, for schemas and types. Bounded is at most one blank
        or one line break with up to 40 blanks of indentation per gap, so that generation
        cannot go on for ever in white space.

    Raises
    ------
    GrammarError
        If the source is invalid, or uses what cannot be enforced exactly; with the keyword,
        line or position.

    Notes
    -----
    A JSON value has many texts. The language of a schema holds one serialisation: keys in
    declared order, other keys after them; no white space before or after the value;
    integers without fraction or exponent; keys spelled without ``\uXXXX`` escapes where
    they can be. In strings without pattern, format or fixed value, ``\uXXXX`` is one
    character, and so is a surrogate pair. The page on grammars has the rest.

    Examples
    --------
    >>> person = Grammar({"type": "object", "properties": {"age": {"type": "integer"}}})
    >>> person.accepts('{"age": 7}')
    True
    """

    masks = True
    joins = True

    def __init__(
        self, source: Any, *, key_order: str = "declared", whitespace: str = "bounded"
    ) -> None:
        self.source = source
        options = {"key_order": key_order, "whitespace": whitespace}
        self._text = _grammar_text(source, options)
        self._compiled: OrderedDict[int, _Compiled] = OrderedDict()
        self._bytes = compile_text(self._text.lark, byte_tokenizer())
        self._check_compiled(self._bytes)
        first = self._bytes.deep_copy()
        possible = any(first.compute_bitmask()[: 256 // 8])
        if first.is_error() and not is_dead_end(first.get_error()):
            raise GrammarError(self._text.explain_error(first.get_error()))
        if first.is_error() or not (possible or first.is_accepting()):
            raise GrammarError(f"{self.name}: no text is in the language")

    @classmethod
    def regex(cls, pattern: Any) -> Grammar:
        r"""Texts that match a regular expression as a whole.

        Parameters
        ----------
        pattern : str or re.Pattern
            As for `re.fullmatch`. Back-references, look-around, word boundaries and
            possessive quantifiers have no equivalent and are refused.

        Examples
        --------
        >>> Grammar.regex(r"\d{4}-\d\d-\d\d").accepts("2024-02-29")
        True
        """
        return cls(regex_grammar(pattern))

    @classmethod
    def choice(cls, choices: Iterable[str]) -> Grammar:
        """One of some strings, exactly; one may begin another, and repeats count once."""
        return cls(choice_grammar(choices))

    @classmethod
    def lark(cls, text_or_path: Any) -> Grammar:
        """A context-free grammar in Lark's notation, with the rule ``start``.

        Parameters
        ----------
        text_or_path : str or os.PathLike
            The grammar, or the path of a file. A str is a path if it is one line that ends
            in ``.lark``.
        """
        text, name = _lark_source(text_or_path)
        return cls(lark_grammar(text, name))

    @property
    def name(self) -> str:
        return f"Grammar({self._text.name})"

    @property
    def lark_text(self) -> str:
        """The grammar as it is handed to the mask engine."""
        return HEADER + self._text.lark

    def __repr__(self) -> str:
        return self.name

    def accepts(self, text: str) -> bool:
        """Whether a complete text is in the language, whatever the model."""
        try:
            data = text.encode()
        except UnicodeEncodeError:  # half a surrogate pair
            return False
        matcher = self._bytes.deep_copy()
        consumed = matcher.try_consume_tokens(list(data))
        self._check_running(matcher)
        if consumed < len(data) or not matcher.is_accepting():
            return False
        checks = _feed(self._begin_checks(), data)
        return checks is not None and all(check.complete() for check in checks)

    def explain(self) -> str:
        """What the token mask covers, and what is checked besides."""
        checks = [f"checked {c.when}: {c.description}" for c in self._text.checks]
        return "\n  ".join(
            [
                self.name,
                f"masked, token by token: {self._text.covers}",
                *(checks or ["checked besides: nothing"]),
            ]
        )

    # ------------------------------------------------------------------ potential

    def start(self, request: Request, n: int) -> _State:
        compiled = self._compile(request.vocab)
        compiled.root.holders += 1
        return _State(compiled, [compiled.root], [0] * n)

    def advance(
        self, state: _State, tokens_N_T: Tensor, lengths_N: Tensor, ended_N: Tensor
    ) -> tuple[_State, Tensor]:
        known = state.compiled.tokens
        tokens, lengths, ended = tokens_N_T.tolist(), lengths_N.tolist(), ended_N.tolist()
        log_psi = [-math.inf] * len(state.rows)
        rows = [DEAD] * len(state.rows)
        # Rows with one history and the same new tokens share one successor.
        groups: list[dict[tuple[int, ...], list[int]]] = [{} for _ in state.nodes]
        for i, at in enumerate(state.rows):
            new = tuple(tokens[i][: lengths[i]])
            if at == ENDED and not new:
                rows[i], log_psi[i] = ENDED, 0.0
            if at < 0:
                continue
            if ended[i] and new and new[-1] in known.eos:
                new = new[:-1]
            if known.not_text.isdisjoint(new):
                groups[at].setdefault(new, []).append(i)
        nodes: list[_Node] = []
        for node, successors in zip(state.nodes, groups, strict=True):
            # The empty continuation needs the node as it is, so it comes last.
            order = sorted(successors, key=lambda new: not new)
            for k, new in enumerate(order):
                last = k == len(order) - 1
                after = self._successor(known, node, new, may_change=last)
                if after is None:
                    continue
                members = successors[new]
                complete = any(ended[i] for i in members) and self._is_complete(after)
                running = [i for i in members if not ended[i]]
                for i in members:
                    if not ended[i]:
                        rows[i], log_psi[i] = len(nodes), 0.0
                    elif complete:
                        rows[i], log_psi[i] = ENDED, 0.0
                if running:
                    after.holders += 1
                    nodes.append(after)
        state.release()
        return _State(state.compiled, nodes, rows), torch.tensor(log_psi, dtype=torch.float64)

    def fork(self, state: _State, ancestors_M: Tensor) -> _State:
        return state.select(ancestors_M.tolist())

    def join(self, states: Sequence[_State]) -> _State:
        return _State.joined(states)

    def release(self, state: _State) -> None:
        state.release()

    def mask(self, state: _State) -> Tensor:
        """int32 [N, ceil(V / 32)]; EOS ids are set exactly where the output is complete."""
        eos_W = state.compiled.tokens.eos_W
        missing = [node for node in state.nodes if node.mask_W is None]
        if missing:
            self._fill(state.compiled.tokens, missing)
        masks = [node.mask_W for node in state.nodes]
        table = torch.stack([*masks, eos_W, torch.zeros_like(eos_W)])  # type: ignore[list-item]
        # The last two rows of the table are those of ENDED and DEAD.
        return table[state.rows]

    # ------------------------------------------------------------------ inside

    def _compile(self, vocab: Vocabulary) -> _Compiled:
        compiled = self._compiled.get(id(vocab))
        if compiled is None:
            matcher = compile_text(self._text.lark, vocab.ll_tokenizer)
            self._check_compiled(matcher)
            compiled = _Compiled(vocab, matcher, self._begin_checks())
            self._compiled[id(vocab)] = compiled
            while len(self._compiled) > MAX_VOCABULARIES:
                self._compiled.popitem(last=False)
        self._compiled.move_to_end(id(vocab))
        return compiled

    def _successor(
        self, known: _Tokens, node: _Node, new: tuple[int, ...], may_change: bool
    ) -> _Node | None:
        """The node after `new`, or None where that leaves the language."""
        if not new:
            return node
        alone = may_change and node.holders == 1
        matcher = node.matcher if alone else node.matcher.deep_copy()
        consumed = matcher.try_consume_tokens(list(new))
        self._check_running(matcher)
        if consumed < len(new):
            return None
        checks = node.checks
        if checks:
            after = _feed(checks, b"".join(known.bytes_V[t] for t in new))
            if after is None:
                return None
            checks = after
        return _Node(matcher, checks)

    def _is_complete(self, node: _Node) -> bool:
        accepting = node.matcher.is_accepting()
        self._check_running(node.matcher)
        return accepting and all(check.complete() for check in node.checks)

    def _begin_checks(self) -> tuple[CheckState, ...]:
        return tuple(check.begin() for check in self._text.checks)

    def _fill(self, known: _Tokens, nodes: list[_Node]) -> None:
        width = known.eos_W.shape[0]
        masks_U_W = torch.zeros((len(nodes), width), dtype=torch.int32)
        at, stride = masks_U_W.data_ptr(), width * masks_U_W.element_size()
        if len(nodes) < MIN_PARALLEL:
            for i, node in enumerate(nodes):
                node.matcher.unsafe_compute_mask_ptr(at + i * stride, stride)
        else:
            jobs = [(node.matcher, i) for i, node in enumerate(nodes)]
            _executor().unsafe_compute_mask_ptr(jobs, at, stride, len(nodes))
        masks_U_W &= known.text_W
        for node, mask_W in zip(nodes, masks_U_W, strict=True):
            self._check_running(node.matcher)
            if node.matcher.is_error():
                mask_W.zero_()  # the vocabulary has no token that could follow
            elif node.matcher.is_accepting():
                mask_W |= known.eos_W
            node.mask_W = mask_W

    def _check_compiled(self, matcher: LLMatcher) -> None:
        if matcher.is_error():
            raise GrammarError(self._text.explain_error(matcher.get_error()))

    def _check_running(self, matcher: LLMatcher) -> None:
        """Leaving the language is no error of the engine; running into its limits is."""
        if matcher.is_error() and not is_dead_end(matcher.get_error()):
            reason, _, _ = error_reason(matcher.get_error())
            raise PotentialError(
                f"{self.name}: the mask engine gave up: {reason[:300]}", potential=self.name
            )


def _feed(checks: tuple[CheckState, ...], data: bytes) -> tuple[CheckState, ...] | None:
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


class _Tokens:
    """What the ids of a vocabulary are to a grammar.

    Attributes
    ----------
    bytes_V : list of bytes
    not_text : frozenset of int
        EOS ids, special tokens and ids without a token.
    text_W, eos_W : Tensor, int32, [W]
        Bit masks of the tokens that are text, and of the EOS ids.
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


_tokens_of: WeakKeyDictionary[Vocabulary, _Tokens] = WeakKeyDictionary()


@functools.lru_cache(maxsize=1)
def _executor() -> LLExecutor:
    """Threads that compute masks, shared by all grammars."""
    return LLExecutor()


class _Compiled:
    """A grammar over one vocabulary.

    Attributes
    ----------
    tokens : _Tokens
    root : _Node
        The start; never changed in place, since this object holds it too.
    """

    def __init__(
        self, vocab: Vocabulary, matcher: LLMatcher, checks: tuple[CheckState, ...]
    ) -> None:
        self.vocab = vocab  # as long as it lives, its id is not given to another
        if vocab not in _tokens_of:
            _tokens_of[vocab] = _Tokens(vocab)
        self.tokens = _tokens_of[vocab]
        self.root = _Node(matcher, checks)
        self.root.holders = 1


def _pack(bits: Tensor) -> Tensor:
    """Bool [32 W] to int32 [W], bit ``v % 32`` of word ``v // 32``."""
    weights = 1 << torch.arange(32, dtype=torch.int64)
    words = (bits.view(-1, 32) * weights).sum(1)
    return torch.where(words >= 2**31, words - 2**32, words).to(torch.int32)


class _Node:
    """What follows one history: a matcher, shared by all rows that have it.

    `holders` counts the states that refer to the node. A node with one holder may be
    advanced in place; otherwise its matcher is copied first.
    """

    __slots__ = ("checks", "holders", "mask_W", "matcher")

    def __init__(self, matcher: LLMatcher, checks: tuple[CheckState, ...]) -> None:
        self.matcher = matcher
        self.checks = checks  # what each of the grammar's checks knows of the text
        self.holders = 0
        self.mask_W: Tensor | None = None


class _State:
    """Rows of a population: `rows[i]` is the index of row i's node, or DEAD, or ENDED."""

    __slots__ = ("compiled", "nodes", "rows")

    def __init__(self, compiled: _Compiled, nodes: list[_Node], rows: list[int]) -> None:
        self.compiled = compiled
        self.nodes = nodes  # each is counted in its `holders`
        self.rows = rows

    def select(self, ancestors: list[int]) -> _State:
        rows = [self.rows[a] for a in ancestors]
        index: dict[int, int] = {}
        for at in rows:
            if at >= 0:
                index.setdefault(at, len(index))
        nodes = [self.nodes[at] for at in index]
        for node in nodes:
            node.holders += 1
        return _State(self.compiled, nodes, [index.get(at, at) for at in rows])

    @staticmethod
    def joined(states: Sequence[_State]) -> _State:
        nodes: list[_Node] = []
        rows: list[int] = []
        index: dict[int, int] = {}  # by identity: a history may be in several of them
        for state in states:
            for node in state.nodes:
                if id(node) not in index:
                    index[id(node)] = len(nodes)
                    nodes.append(node)
                    node.holders += 1
            rows += [at if at < 0 else index[id(state.nodes[at])] for at in state.rows]
        for state in states:
            state.release()
        return _State(states[0].compiled, nodes, rows)

    def release(self) -> None:
        for node in self.nodes:
            node.holders -= 1
        self.nodes = []
        self.rows = []

    def __del__(self) -> None:
        self.release()


def _grammar_text(source: Any, options: dict[str, str]) -> GrammarText:
    if isinstance(source, GrammarText):
        if options != {"key_order": "declared", "whitespace": "bounded"}:
            raise GrammarError("key_order and whitespace are options of schemas and types only")
        return source
    if isinstance(source, bool):
        return schema_grammar(source, f"schema {str(source).lower()}", **options)
    if isinstance(source, dict):
        title = source.get("title")
        name = f"schema {title}" if isinstance(title, str) else "schema"
        return schema_grammar(source, name, **options)
    if is_type(source):
        name = source.__name__ if isinstance(source, type) else str(source)
        return schema_grammar(type_schema(source), name, **options)
    if isinstance(source, (str, os.PathLike)):
        raise GrammarError(
            f"Grammar({source!r}): say what the text is: Grammar.lark(…), Grammar.regex(…), "
            "Grammar.choice([…]), or a JSON Schema as a dict"
        )
    raise GrammarError(
        "Grammar takes a built-in grammar, a JSON Schema (dict or bool) or a type, got "
        f"{type(source).__name__}; lists of strings go to Grammar.choice"
    )


def _lark_source(text_or_path: Any) -> tuple[str, str]:
    """Text of a Lark grammar, and what to call it."""
    is_path = isinstance(text_or_path, os.PathLike) or (
        isinstance(text_or_path, str)
        and "\n" not in text_or_path
        and text_or_path.endswith(".lark")
    )
    if is_path:
        path = os.fspath(text_or_path)
        try:
            with open(path, encoding="utf-8") as file:
                return file.read(), os.path.basename(path)
        except (OSError, UnicodeDecodeError) as error:
            raise GrammarError(f"cannot read the grammar file {path}: {error}") from error
    if not isinstance(text_or_path, str):
        raise GrammarError(f"a Lark grammar is a str or a path, got {type(text_or_path).__name__}")
    return text_or_path, "lark"
