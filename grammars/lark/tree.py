"""Questions about a parsed Lark grammar: what refers to what, what is recursive or regular."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping

from smcprog.grammars.lark.ast import (
    Alternatives,
    Definition,
    Expression,
    JsonSchema,
    Name,
    Not,
    Repeat,
    Sequence,
    Template,
    fail,
)

__all__ = [
    "check_references",
    "expansions",
    "map_leaves",
    "productive_names",
    "reachable",
    "regular_names",
    "walk",
]


def walk(expression: Expression) -> Iterator[Expression]:
    """The expression and everything in it."""
    pending = [expression]
    while pending:
        node = pending.pop()
        yield node
        if isinstance(node, (Sequence, Not)):
            pending.extend(node.parts)
        elif isinstance(node, Alternatives):
            pending.extend(node.options)
        elif isinstance(node, Repeat):
            pending.append(node.inner)
        elif isinstance(node, Template):
            pending.extend(node.arguments)


def map_leaves(expression: Expression, change: Callable[[Expression], Expression]) -> Expression:
    """The expression with every leaf replaced by what `change` makes of it."""
    if isinstance(expression, Sequence):
        parts = tuple(map_leaves(p, change) for p in expression.parts)
        return Sequence(expression.place, parts)
    if isinstance(expression, Alternatives):
        options = tuple(map_leaves(o, change) for o in expression.options)
        return Alternatives(expression.place, options)
    if isinstance(expression, Repeat):
        inner = map_leaves(expression.inner, change)
        return Repeat(expression.place, inner, expression.low, expression.high)
    return change(expression)


def expansions(node: Expression) -> int:
    """How many sequences of symbols Lark makes of an expression; not exact beyond a million."""
    if isinstance(node, Sequence):
        number = 1
        for part in node.parts:
            number = min(number * expansions(part), _MANY)
        return number
    if isinstance(node, Alternatives):
        return min(sum(map(expansions, node.options)), _MANY)
    if isinstance(node, Repeat):
        inner = expansions(node.inner)
        if node.high is None or node.high >= 50:  # a rule of its own
            return max(inner, 2)
        total = 0
        for times in range(node.low, node.high + 1):
            total = min(total + inner**times, _MANY)
        return total
    return 1


_MANY = 1_000_000


def references(expression: Expression) -> list[Name]:
    """Names used in an expression."""
    return [node for node in walk(expression) if isinstance(node, Name)]


def reachable(
    definitions: Mapping[str, Definition], start: str, ignored: Iterable[Expression] = ()
) -> list[str]:
    """Names that `start` and what is ignored need, `start` included."""
    found: dict[str, None] = {}
    pending = [start, *(n.name for e in ignored for n in references(e))]
    while pending:
        name = pending.pop()
        if name not in found:
            found[name] = None
            pending.extend(n.name for n in references(definitions[name].body))
    return list(found)


def check_references(definitions: Mapping[str, Definition], ignored: Iterable[Expression]) -> None:
    """Refuse undefined names, and terminals that contain what only rules may."""
    for definition in definitions.values():
        what = f"the terminal {definition.name}" if definition.is_terminal else ""
        _check_expression(definition.body, definitions, what)
    for expression in ignored:
        _check_expression(expression, definitions, "%ignore")
    for circular in recursive_names(definitions):
        if definitions[circular].is_terminal:
            fail(definitions[circular].place, f"the terminal {circular} refers to itself")


def _check_expression(
    expression: Expression, definitions: Mapping[str, Definition], terminal: str
) -> None:
    """`terminal` says what the expression is the terminal of; empty for a rule."""
    for node in walk(expression):
        if isinstance(node, Name):
            if node.name not in definitions:
                fail(node.place, f"{node.name} is not defined")
            if terminal and not definitions[node.name].is_terminal:
                fail(
                    node.place,
                    f"{terminal} refers to the rule {node.name}; a terminal is made of terminals",
                )
        elif isinstance(node, Template):
            what = terminal or "%ignore"
            fail(node.place, f"{node.name}{{…}}: templates are for rules, not for {what}")
        elif isinstance(node, JsonSchema) and terminal:
            fail(node.place, "%json is a rule and cannot be part of a terminal")
        elif isinstance(node, Not):
            for name in references(node):
                if name.name in definitions and not definitions[name.name].is_terminal:
                    fail(name.place, "& and ~ are for terminals, not for rules")


def recursive_names(definitions: Mapping[str, Definition]) -> set[str]:
    """Names that refer to themselves, directly or through others."""
    out: set[str] = set()
    for group in _groups(definitions):
        own = {n.name for n in references(definitions[group[0]].body)}
        if len(group) > 1 or group[0] in own:
            out.update(group)
    return out


def _groups(definitions: Mapping[str, Definition]) -> list[list[str]]:
    """Names that refer to each other in a circle, together; what a group needs comes before it.

    Tarjan's strongly connected components, without recursion.
    """
    order: dict[str, int] = {}
    low: dict[str, int] = {}
    trail: list[str] = []
    on_trail: set[str] = set()
    groups: list[list[str]] = []

    def enter(name: str) -> tuple[str, Iterator[str]]:
        order[name] = low[name] = len(order)
        trail.append(name)
        on_trail.add(name)
        after = (n.name for n in references(definitions[name].body) if n.name in definitions)
        return name, after

    for root in definitions:
        stack = [] if root in order else [enter(root)]
        while stack:
            name, rest = stack[-1]
            after = next(rest, None)
            if after is not None:
                if after not in order:
                    stack.append(enter(after))
                elif after in on_trail:
                    low[name] = min(low[name], order[after])
                continue
            stack.pop()
            if stack:
                low[stack[-1][0]] = min(low[stack[-1][0]], low[name])
            if low[name] == order[name]:
                at = trail.index(name)
                groups.append(trail[at:])
                on_trail.difference_update(trail[at:])
                del trail[at:]
    return groups


def regular_names(definitions: Mapping[str, Definition]) -> set[str]:
    """Names whose language is regular on the face of it: no recursion and no ``%json``."""
    recursive = recursive_names(definitions)
    regular: set[str] = set()
    for group in _groups(definitions):
        name = group[0]
        if name not in recursive and is_regular(definitions[name].body, regular):
            regular.add(name)
    return regular


def is_regular(expression: Expression, regular: set[str]) -> bool:
    """Whether an expression is made of regular names, strings and patterns."""
    return all(
        not isinstance(node, JsonSchema)
        and not (isinstance(node, Name) and node.name not in regular)
        for node in walk(expression)
    )


def productive_names(definitions: Mapping[str, Definition]) -> set[str]:
    """Names that derive at least one text."""
    productive: set[str] = set()

    def derives(node: Expression) -> bool:
        if isinstance(node, Name):
            return node.name in productive
        if isinstance(node, Sequence):
            return all(derives(p) for p in node.parts)
        if isinstance(node, Alternatives):
            return any(derives(o) for o in node.options)
        if isinstance(node, Repeat):
            return node.low == 0 or derives(node.inner)
        return True

    ordered = [name for group in _groups(definitions) for name in group]
    while True:
        before = len(productive)
        for name in ordered:
            if name not in productive and derives(definitions[name].body):
                productive.add(name)
        if len(productive) == before:
            return productive
