"""A language as a factor: ψ is 1 where the output is, or can become, a text of it, else 0.

Token masks come from llguidance, without forcing one spelling of a text: every token
sequence that spells a text of the language is allowed, so the language model's own
probabilities of spellings stay what they are.
"""

from __future__ import annotations

import math
import os
from collections.abc import Iterable, Sequence
from typing import Any
from weakref import WeakValueDictionary

import lark
import torch
from torch import Tensor

from smcprog.engine.vocab import Vocabulary
from smcprog.errors import GrammarError, GrammarLimitError, PotentialError
from smcprog.grammars.cost import walk_cost
from smcprog.grammars.engine import HEADER, error_reason, is_dead_end, is_limit
from smcprog.grammars.guards import guard_choices
from smcprog.grammars.lark.object import object_grammar
from smcprog.grammars.schema.python_types import is_type, type_schema
from smcprog.grammars.sources import build
from smcprog.grammars.text import GrammarText
from smcprog.grammars.vetting import vet
from smcprog.potentials.base import Potential, Request
from smcprog.potentials.matchers import (
    DEAD,
    ENDED,
    Compiled,
    Node,
    Rows,
    compiled_bytes,
    compute_ahead,
    feed,
    fill_masks,
    is_complete,
    last_mask,
    successor,
    tokens_of,
)

__all__ = ["Grammar"]


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
        required keys are there is checked when the object is closed, which costs particles.
    whitespace : {"bounded", "none", "free"}
        White space inside a JSON value, for schemas and types. Bounded is at most one blank
        or one line break with up to 40 blanks of indentation per gap, so that generation
        cannot go on for ever in white space.
    formats : {"assert", "annotate"}
        Whether ``format`` restricts strings, for schemas and types. Formats that no
        standard defines never do.
    trusted : bool
        False for what comes from a stranger: the source is first tried out in another
        process, which is ended after 5 s or at 512 MiB (`smcprog.grammars.vet`).

    Raises
    ------
    GrammarError
        If the source is invalid, or uses what cannot be enforced exactly; with the keyword,
        line or position.
    GrammarLimitError
        If it is too large, or costs too much.

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
    indicator = True
    max_checks = 64
    masks_ahead = True  # where a core is free, masks are computed while the model runs

    def __init__(
        self,
        source: Any,
        *,
        key_order: str = "declared",
        whitespace: str = "bounded",
        formats: str = "assert",
        trusted: bool = True,
    ) -> None:
        self.source = source
        options = {"key_order": key_order, "whitespace": whitespace, "formats": formats}
        self._text = _grammar_text(source, options, trusted)
        self._compiled: WeakValueDictionary[tuple[bytes, str], Compiled] = WeakValueDictionary()
        self.joins = not self._text.follows_prompt  # what follows other prompts may differ
        self.rejects = any(check.rejects for check in self._text.checks)
        first = compiled_bytes(self._text).deep_copy()
        possible = any(first.compute_bitmask()[: 256 // 8])
        if first.is_error() and not is_dead_end(first.get_error()):
            reason = self._text.explain_error(first.get_error())
            if is_limit(first.get_error()):
                raise GrammarLimitError(reason, limit="fuel")
            raise GrammarError(reason)
        if first.is_error() or not (possible or first.is_accepting()):
            raise GrammarError(f"{self.name}: no text is in the language")

    @classmethod
    def regex(cls, pattern: Any, *, trusted: bool = True) -> Grammar:
        r"""Texts that match a regular expression as a whole.

        Parameters
        ----------
        pattern : str or re.Pattern
            As for `re.fullmatch`. Back-references, look-around, word boundaries and
            possessive quantifiers have no equivalent and are refused.
        trusted : bool
            As for `Grammar`.

        Examples
        --------
        >>> Grammar.regex(r"\d{4}-\d\d-\d\d").accepts("2024-02-29")
        True
        """
        return cls(_built("regex", pattern, trusted=trusted))

    @classmethod
    def choice(cls, choices: Iterable[str], *, trusted: bool = True) -> Grammar:
        """One of some strings, exactly; one may begin another, and repeats count once."""
        return cls(_built("choice", choices, trusted=trusted))

    @classmethod
    def lark(
        cls,
        source: Any,
        *,
        start: str | None = None,
        parser: str | None = None,
        lexer: str = "auto",
        import_paths: Iterable[str | os.PathLike[str]] = (),
        trusted: bool = True,
    ) -> Grammar:
        """A context-free grammar in Lark's notation, or a `lark.Lark` object.

        Parameters
        ----------
        source : str, os.PathLike or lark.Lark
            The grammar, or the path of a file. A str is a path if it is one line that ends
            in ``.lark``. A `lark.Lark` object means what its own parser takes.
        start : str, optional
            The start rule; by default ``start``, or the one that the object has.
        parser : {"lalr", "earley", "cyk"}, optional
            Take exactly what ``lark.Lark(…, parser=…, lexer=…)`` parses. By default the
            language is every text that the grammar derives.
        lexer : str
            Lark's, where `parser` is given.
        import_paths : iterable of str or os.PathLike
            Folders where ``%import`` looks first.
        trusted : bool
            As for `Grammar`; a str is the grammar itself then. What Lark has to check is not
            taken from strangers, since Python's `re` has no limit on its time.

        Notes
        -----
        The page on Lark grammars says what is masked, what is checked, and what is refused.
        """
        if isinstance(source, lark.Lark):
            if parser is not None or lexer != "auto" or import_paths or not trusted:
                raise GrammarError(
                    "a lark.Lark object has its own parser, lexer and import_paths, and is "
                    "always trusted: only start=… goes with it"
                )
            return cls(object_grammar(source, "lark.Lark", start))
        text, name, path = _lark_source(source, trusted)
        options: dict[str, Any] = {"start": start or "start", "parser": parser, "lexer": lexer}
        options |= {"path": path, "import_paths": [os.fspath(p) for p in import_paths]}
        built = _built("lark", text, trusted=trusted, name=name, **options)
        if built.checks and not trusted:
            raise GrammarError(
                f"{name}: Lark would have to check this grammar ({built.checks[0].description}), "
                "and Python's re has no limit on its time: not for what comes from a stranger"
            )
        return cls(built)

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
        matcher = compiled_bytes(self._text).deep_copy()
        consumed = matcher.try_consume_tokens(list(data))
        if matcher.is_error() and not is_dead_end(matcher.get_error()):
            reason, _, _ = error_reason(matcher.get_error())
            raise PotentialError(
                f"{self.name}: the mask engine gave up: {reason[:300]}", potential=self.name
            )
        if consumed < len(data) or not matcher.is_accepting():
            return False
        checks = feed(tuple(check.begin() for check in self._text.checks), data)
        return checks is not None and all(check.complete() for check in checks)

    def explain(self) -> str:
        """What the token mask covers, what is checked besides, and what it costs.

        The cost is counted in the mask engine's own fuel, along some random texts; the times
        beside it are what that much fuel takes by its makers' figures.
        """
        try:
            cost = str(walk_cost(self._text.lark))
        except GrammarLimitError as error:
            cost = str(error)
        checks = [f"checked {c.when}: {c.description}" for c in self._text.checks]
        return "\n  ".join(
            [
                self.name,
                f"masked, token by token: {self._text.covers}",
                *(checks or ["checked besides: nothing"]),
                f"cost, estimated: {cost}",
            ]
        )

    # ------------------------------------------------------------------ potential

    def start(self, request: Request, n: int) -> Rows:
        text = self._text
        if text.follows_prompt:
            text = text.after(_plain_prompt(request))
        compiled = self._compile(text, request.vocab)
        compiled.root.holders += 1
        room = request.max_tokens if request.truncate else request.max_tokens - 1
        return Rows(compiled, [compiled.root], [0] * n, [room] * n)

    def advance(
        self, state: Rows, tokens_N_T: Tensor, lengths_N: Tensor, ended_N: Tensor
    ) -> tuple[Rows, Tensor]:
        known = state.compiled.tokens
        tokens, lengths, ended = tokens_N_T.tolist(), lengths_N.tolist(), ended_N.tolist()
        log_psi = [-math.inf] * len(state.rows)
        rows = [DEAD] * len(state.rows)
        room = [left - length for left, length in zip(state.room, lengths, strict=True)]
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
        nodes: list[Node] = []
        for node, successors in zip(state.nodes, groups, strict=True):
            # The empty continuation needs the node as it is, so it comes last.
            order = sorted(successors, key=lambda new: not new)
            for k, new in enumerate(order):
                last = k == len(order) - 1
                after = successor(state.compiled, node, new, may_change=last)
                if after is None:
                    continue
                members = successors[new]
                finished = any(ended[i] or room[i] <= 0 for i in members)
                complete = finished and is_complete(state.compiled, after)
                # Where no more text fits, a text that is not complete can never be.
                running = [i for i in members if not ended[i] and (room[i] > 0 or complete)]
                for i in running:
                    rows[i], log_psi[i] = len(nodes), 0.0
                for i in members:
                    if ended[i] and complete:
                        rows[i], log_psi[i] = ENDED, 0.0
                if running:
                    after.holders += 1
                    nodes.append(after)
        state.release()
        if self.masks_ahead:
            compute_ahead(state.compiled, nodes)
        return Rows(state.compiled, nodes, rows, room), torch.tensor(log_psi, dtype=torch.float64)

    def admits(
        self, state: Rows, rows: Sequence[int], tokens: Sequence[int], ended: Sequence[bool]
    ) -> list[bool]:
        known: dict[tuple[int, int, bool], bool] = {}  # rows of one history share an answer
        out = []
        for row, token, end in zip(rows, tokens, ended, strict=True):
            at = state.rows[row]
            finished = end or state.room[row] <= 1
            if at >= 0 and (at, token, finished) not in known:
                eos = end and token in state.compiled.tokens.eos
                new = () if eos else (token,)
                known[at, token, finished] = self._admits(state, at, new, finished)
            out.append(at >= 0 and known[at, token, finished])
        return out

    def _admits(self, state: Rows, at: int, new: tuple[int, ...], finished: bool) -> bool:
        if not state.compiled.tokens.not_text.isdisjoint(new):
            return False
        after = successor(state.compiled, state.nodes[at], new, may_change=False)
        return after is not None and (not finished or is_complete(state.compiled, after))

    def fork(self, state: Rows, ancestors_M: Tensor) -> Rows:
        return state.select(ancestors_M.tolist())

    def join(self, states: Sequence[Rows]) -> Rows:
        return Rows.joined(states)

    def release(self, state: Rows) -> None:
        state.release()

    def mask(self, state: Rows) -> Tensor:
        """int32 [N, ceil(V / 32)]; EOS ids are set exactly where the output is complete.

        Where `max_tokens` leaves room for one more token of text, only those that complete the
        output are set.
        """
        eos_W = state.compiled.tokens.eos_W
        for node in state.nodes:
            node.settle()
        missing = [node for node in state.nodes if node.mask_W is None]
        if missing:
            fill_masks(state.compiled, missing)
        masks = [node.mask_W for node in state.nodes]
        table = torch.stack([*masks, eos_W, torch.zeros_like(eos_W)])  # type: ignore[list-item]
        # The last two rows of the table are those of ENDED and DEAD.
        masks_N_W = table[state.rows]
        for i, (at, left) in enumerate(zip(state.rows, state.room, strict=True)):
            if at >= 0 and left == 1:
                masks_N_W[i] = last_mask(state.compiled, state.nodes[at])
        return masks_N_W

    def _compile(self, text: GrammarText, vocab: Vocabulary) -> Compiled:
        """Starts that overlap in time share a root, so that their rows share histories."""
        key = (tokens_of(vocab).key, text.name)
        compiled = self._compiled.get(key)
        if compiled is None:
            compiled = self._compiled[key] = Compiled(text, vocab)
        return compiled


def _plain_prompt(request: Request) -> str | None:
    """The text of a prompt; None if it is a conversation."""
    if isinstance(request.prompt, str):
        return request.prompt
    if all(isinstance(part, int) for part in request.prompt):
        return request.vocab.to_bytes(request.prompt_tokens).decode("utf-8", errors="replace")
    return None


def _built(kind: str, source: Any, *, trusted: bool, **options: Any) -> GrammarText:
    """Translate a source; a stranger's is tried out in another process first."""
    if not trusted:
        if kind == "choice":
            source = guard_choices(source)  # may be an iterator
        vet(kind, source, **options)
    return build(kind, source, **options)


def _grammar_text(source: Any, options: dict[str, str], trusted: bool) -> GrammarText:
    if isinstance(source, GrammarText):
        if options != {"key_order": "declared", "whitespace": "bounded", "formats": "assert"}:
            raise GrammarError(
                "key_order, whitespace and formats are options of schemas and types only"
            )
        return source
    if isinstance(source, (bool, dict)):
        return _built("schema", source, trusted=trusted, **options)
    if is_type(source):
        name = source.__name__ if isinstance(source, type) else str(source)
        return _built("schema", type_schema(source), trusted=trusted, name=name, **options)
    if isinstance(source, (str, os.PathLike)):
        raise GrammarError(
            f"Grammar({source!r}): say what the text is: Grammar.lark(…), Grammar.regex(…), "
            "Grammar.choice([…]), or a JSON Schema as a dict"
        )
    raise GrammarError(
        "Grammar takes a built-in grammar, a JSON Schema (dict or bool) or a type, got "
        f"{type(source).__name__}; lists of strings go to Grammar.choice"
    )


def _lark_source(source: Any, trusted: bool) -> tuple[str, str, str | None]:
    """Text of a Lark grammar, what to call it, and its path if it is a file.

    A stranger's str is a grammar, and names no file to be read here.
    """
    is_path = isinstance(source, os.PathLike) or (
        trusted and isinstance(source, str) and "\n" not in source and source.endswith(".lark")
    )
    if is_path:
        path = os.fspath(source)
        try:
            with open(path, encoding="utf-8") as file:
                return file.read(), os.path.basename(path), path
        except (OSError, UnicodeDecodeError) as error:
            raise GrammarError(f"cannot read the grammar file {path}: {error}") from error
    if not isinstance(source, str):
        raise GrammarError(
            f"a Lark grammar is a str, a path or a lark.Lark object, got {type(source).__name__}"
        )
    return source, "lark", None
