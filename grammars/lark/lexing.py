"""Making a Lark grammar safe for a lexer that takes the longest match.

The mask engine reads terminals: of those that may come next it takes the longest match, and
does not come back to a shorter one. With ``NAME "in" NAME`` and the text ``xin``, it reads a
name of three letters. The grammar derives more than such a lexer can see wherever

- a terminal may be complete while another (or the same one) that may stand at the same
  place can still go on, and
- the character it would go on with may also begin what follows the complete one.

Terminals that may go on in this way are replaced by rules over smaller terminals, down to
single characters, until there are none left. What can follow what is computed on sets that
are never too small, so that a grammar may be taken apart further than it needs to be, but
never too little.
"""

from __future__ import annotations

from collections.abc import Callable, Hashable, Iterator, Mapping

from smcprog.grammars.lark.ast import (
    Alternatives,
    Char,
    Definition,
    Expression,
    JsonSchema,
    Name,
    Not,
    Pattern,
    Range,
    Repeat,
    Sequence,
    Text,
    fail,
)
from smcprog.grammars.lark.automaton import Lexeme, automaton
from smcprog.grammars.lark.chars import by_letter
from smcprog.grammars.lark.tree import map_leaves, walk

__all__ = ["take_apart"]

MAX_STEPS = 2_000_000  # of the search for conflicts
MAX_ROUNDS = 64
MAX_PLACES = 1_500  # of terminals in rules, for each to be looked at by itself
MAX_PAIRS = 100_000

Key = Hashable


def take_apart(
    rules: Mapping[str, Expression],
    terminals: Mapping[str, Definition],
    start: str,
    fresh: Callable[[str], str],
    apart: frozenset[tuple[str, str]] = frozenset(),
) -> dict[str, Expression]:
    """Rules with the same language, on which the longest match is never wrong.

    Parameters
    ----------
    rules : mapping of name to expression
        The leaves are rules, terminals, literals and ``%json``.
    terminals : mapping of name to definition
    start : str
    fresh : callable
        Makes a new name from a proposal.
    apart : set of pairs of terminals
        Where it is known that the first never ends where the second could go on.

    Raises
    ------
    GrammarError
        At a terminal that would have to be taken apart and cannot: ``~``, ``&``, ``%json``.
    """
    out = dict(rules)
    replaced: dict[str, str] = {}  # terminal → the rule that replaces it
    for _ in range(MAX_ROUNDS):
        conflicts = _conflicts(out, terminals, start, apart)
        if not conflicts:
            return out

        def replace(leaf: Expression, conflicts: set[Key] = conflicts) -> Expression:
            if _key(leaf) not in conflicts or (isinstance(leaf, Name) and leaf.name in rules):
                return leaf
            if isinstance(leaf, Name):
                if leaf.name not in replaced:
                    replaced[leaf.name] = fresh(leaf.name.lower())
                return Name(leaf.place, replaced[leaf.name])
            if isinstance(leaf, (Not, JsonSchema)):
                what = "%json" if isinstance(leaf, JsonSchema) else "a terminal with & or ~"
                fail(
                    leaf.place,
                    f"{what} cannot be told from what may stand beside it or follow it; put a "
                    "delimiter between them",
                )
            return by_letter(leaf)

        out = {name: map_leaves(body, replace) for name, body in out.items()}
        for terminal, rule in replaced.items():
            if rule not in out:
                out[rule] = terminals[terminal].body
    fail(rules[start].place, "the terminals of the grammar cannot be told apart")


def _conflicts(
    rules: Mapping[str, Expression],
    terminals: Mapping[str, Definition],
    start: str,
    apart: frozenset[tuple[str, str]],
) -> set[Key]:
    """Terminals that may go on where another one ends; in large grammars less exactly."""
    leaves = (Sequence, Alternatives, Repeat)
    places = sum(not isinstance(n, leaves) for body in rules.values() for n in walk(body))
    if places <= MAX_PLACES:
        found = _Analysis(rules, terminals, start, by_place=True).conflicts(apart)
        if found is not None:
            return found
    found = _Analysis(rules, terminals, start, by_place=False).conflicts(apart)
    if found is None:
        fail(
            rules[start].place,
            "too many terminals may stand at the same place and begin alike; make one terminal "
            "of them",
        )
    return found


def _key(leaf: Expression) -> Key:
    """What makes two leaves the same terminal (or rule)."""
    if isinstance(leaf, Name):
        return leaf.name
    if isinstance(leaf, Text):
        return Text, leaf.value, leaf.ignore_case
    if isinstance(leaf, Range):
        return Range, leaf.low, leaf.high
    if isinstance(leaf, Pattern):
        return Pattern, leaf.value, leaf.flags
    if isinstance(leaf, Char):
        return Char, leaf.text
    return type(leaf), leaf.place


class _Analysis:
    """What may follow what, and where the longest match goes wrong.

    Each place of a terminal in the rules has a number (or each terminal, which is quicker and
    less exact); sets are integers with the bits of their numbers.
    """

    def __init__(
        self,
        rules: Mapping[str, Expression],
        terminals: Mapping[str, Definition],
        start: str,
        *,
        by_place: bool,
    ) -> None:
        self._rules = rules
        self._by_place = by_place
        self._number: dict[int, int] = {}  # by the leaf's identity
        numbers: dict[Key, int] = {}
        self._keys: list[Key] = []
        self._lexemes: list[Lexeme] = []
        automata: dict[Key, Lexeme] = {}
        for body in rules.values():
            for leaf in walk(body):
                if isinstance(leaf, (Sequence, Alternatives, Repeat)) or id(leaf) in self._number:
                    continue
                key = _key(leaf)
                if key not in rules:
                    if key not in automata:
                        automata[key] = automaton(leaf, terminals)
                    if not by_place and key in numbers:
                        self._number[id(leaf)] = numbers[key]
                        continue
                    self._number[id(leaf)] = numbers[key] = len(self._lexemes)
                    self._keys.append(key)
                    self._lexemes.append(automata[key])
        self._begins = [lexeme.begins_with() for lexeme in self._lexemes]
        self._nullable: set[str] = set()
        self._first: dict[str, int] = dict.fromkeys(rules, 0)
        self._rule_follow: dict[str, int] = dict.fromkeys(rules, 0)
        self._follow = [0] * len(self._lexemes)
        self._settle()
        self._at_start = self._first[start]
        self._budget = MAX_STEPS
        self._pairs_left = MAX_PAIRS if by_place else 5 * MAX_PAIRS
        self._clashes: dict[tuple[Key, Key, int], bool] = {}

    def conflicts(self, apart: frozenset[tuple[str, str]]) -> set[Key] | None:
        """Terminals that may go on where another one ends and something else begins.

        None where there are too many places to look at.
        """
        going_on: set[Key] = set()
        all_beside = self._beside()
        if all_beside is None:
            return None
        for ending, others in enumerate(all_beside):
            follows = 0
            for following in _bits(self._follow[ending]):
                follows |= self._begins[following]
            if not follows:
                continue
            for going in _bits(others):
                pair = self._keys[ending], self._keys[going]
                if (
                    pair[1] not in going_on
                    and pair not in apart
                    and self._clash(ending, going, follows)
                ):
                    going_on.add(pair[1])
        return going_on

    def _beside(self) -> list[int] | None:
        """For each terminal those that may stand at the same place and begin alike.

        At the start, or after the same terminal, or after two that may stand at the same
        place and match the same text.
        """
        alike = self._alike()
        beside = [0] * len(self._lexemes)
        pending: list[tuple[int, int]] = []

        met: set[tuple[int, int]] = set()

        def together(some: int, others: int) -> None:
            if (some, others) in met:
                return
            met.add((some, others))
            for one in _bits(some):
                new = others & alike[one] & ~beside[one]
                beside[one] |= new
                self._pairs_left -= new.bit_count()
                if self._pairs_left < 0:
                    return
                pending.extend((one, two) for two in _bits(new))

        together(self._at_start, self._at_start)
        for follow in set(self._follow):
            together(follow, follow)
        while pending:
            if self._pairs_left < 0:
                return None
            one, two = pending.pop()
            if one < two and self._clash(one, two, 0):
                together(self._follow[one], self._follow[two])
                together(self._follow[two], self._follow[one])
        return None if self._pairs_left < 0 else beside

    def _alike(self) -> list[int]:
        """For each terminal those that may begin with the same character."""
        by_char = [0] * 129
        for number, chars in enumerate(self._begins):
            for char in _bits(chars):
                by_char[char] |= 1 << number
        out = []
        for chars in self._begins:
            same = 0
            for char in _bits(chars):
                same |= by_char[char]
            out.append(same)
        return out

    def _clash(self, ending: int, going: int, follows: int) -> bool:
        """Whether `going` can continue, by a character of `follows`, a text of `ending`.

        With nothing that follows: whether the two have a text in common.
        """
        key = self._keys[ending], self._keys[going], follows
        if key not in self._clashes:
            self._clashes[key] = self._find_clash(ending, going, follows)
        return self._clashes[key]

    def _find_clash(self, ending: int, going: int, follows: int) -> bool:
        one, two = self._lexemes[ending], self._lexemes[going]
        if one.json and two.json:
            same = self._keys[ending] == self._keys[going]
            return bool(one.tail & follows) if same else not follows
        if one.json or two.json:
            return bool(one.begins_with() & two.begins_with())
        seen: set[tuple[int, int]] = set()
        pending = [(p, q) for p in one.first for q in two.first]
        while pending:
            pair = pending.pop()
            p, q = pair
            if pair in seen or not one.chars[p] & two.chars[q]:
                continue
            seen.add(pair)
            self._budget -= 1 + len(one.after[p]) * len(two.after[q])
            if self._budget < 0:
                return True
            if p in one.last:
                if any(two.chars[r] & follows for r in two.after[q]):
                    return True
                if not follows and q in two.last:
                    return True
            pending.extend((a, b) for a in one.after[p] for b in two.after[q])
        return False

    # -- what may come first and next

    def _settle(self) -> None:
        changed = True
        while changed:
            changed = False
            for name, body in self._rules.items():
                empty, first = self._begin(body)
                if (empty and name not in self._nullable) or first != self._first[name]:
                    changed = True
                    self._first[name] = first
                    if empty:
                        self._nullable.add(name)
        pending = dict.fromkeys(self._rules)
        while pending:
            name = next(iter(pending))
            del pending[name]
            self._pass_on(self._rules[name], self._rule_follow[name], pending)

    def _begin(self, node: Expression) -> tuple[bool, int]:
        """Whether an expression of a rule is nullable, and the terminals it may begin with."""
        if isinstance(node, Sequence):
            first = 0
            for part in node.parts:
                empty, begin = self._begin(part)
                first |= begin
                if not empty:
                    return False, first
            return True, first
        if isinstance(node, Alternatives):
            nullable, first = False, 0
            for option in node.options:
                empty, begin = self._begin(option)
                nullable, first = nullable or empty, first | begin
            return nullable, first
        if isinstance(node, Repeat):
            empty, first = self._begin(node.inner)
            return empty or node.low == 0, first if node.high != 0 else 0
        if isinstance(node, Name) and node.name in self._rules:
            return node.name in self._nullable, self._first[node.name]
        number = self._number[id(node)]
        return self._lexemes[number].nullable, 1 << number

    def _pass_on(self, node: Expression, after: int, pending: dict[str, None]) -> None:
        """`after` may follow an expression: note it at the leaves that may be its end."""
        if isinstance(node, Sequence):
            for part in reversed(node.parts):
                self._pass_on(part, after, pending)
                empty, begin = self._begin(part)
                after = begin | after if empty else begin
        elif isinstance(node, Alternatives):
            for option in node.options:
                self._pass_on(option, after, pending)
        elif isinstance(node, Repeat):
            if node.high != 0:
                again = 0 if node.high == 1 else self._begin(node.inner)[1]
                self._pass_on(node.inner, after | again, pending)
        elif isinstance(node, Name) and node.name in self._rules:
            if after & ~self._rule_follow[node.name]:
                self._rule_follow[node.name] |= after
                pending[node.name] = None
        else:
            self._follow[self._number[id(node)]] |= after


def _bits(mask: int) -> Iterator[int]:
    """Numbers of the bits that are set."""
    while mask:
        low = mask & -mask
        yield low.bit_length() - 1
        mask ^= low
