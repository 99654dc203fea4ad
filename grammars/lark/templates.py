"""Templates of a Lark grammar, written out: one rule for each use with other arguments."""

from __future__ import annotations

import dataclasses
from collections.abc import Mapping

from smcprog.grammars.lark.ast import (
    Definition,
    Expression,
    Name,
    Not,
    Pattern,
    Range,
    Template,
    Text,
    fail,
)
from smcprog.grammars.lark.tree import map_leaves, walk

__all__ = ["expand_templates"]

MAX_INSTANCES = 2_000
MAX_NODES = 200_000  # of all instances together


def expand_templates(definitions: Mapping[str, Definition]) -> dict[str, Definition]:
    """The same language without templates.

    Raises
    ------
    GrammarError
        Naming the use: another number of arguments, a name that is no template, or more
        instances than can be written out.
    """
    templates = {n: d for n, d in definitions.items() if d.parameters}
    for template in templates.values():
        for k, parameter in enumerate(template.parameters):
            if parameter in definitions:
                fail(template.place, f"{template.name}: the parameter {parameter} is a rule, too")
            if parameter in template.parameters[:k]:
                fail(template.place, f"{template.name}: the parameter {parameter} occurs twice")
    for definition in definitions.values():
        for use in walk(definition.body) if definition.is_terminal else ():
            if isinstance(use, Template):
                fail(use.place, f"{use.name}{{…}}: templates are for rules, not for terminals")
    expander = _Expander(definitions, templates)
    out = {
        name: dataclasses.replace(d, body=expander.body(d.body, {}))
        for name, d in definitions.items()
        if not d.parameters
    }
    expander.finish(out)
    return out


class _Expander:
    def __init__(
        self, definitions: Mapping[str, Definition], templates: Mapping[str, Definition]
    ) -> None:
        self._definitions = definitions
        self._templates = templates
        self._instances: dict[tuple[object, ...], str] = {}
        self._pending: list[tuple[str, Definition, dict[str, Expression]]] = []
        self._nodes = 0

    def finish(self, out: dict[str, Definition]) -> None:
        """Write out all instances that are used."""
        while self._pending:
            name, template, given = self._pending.pop()
            body = self.body(template.body, given)
            out[name] = Definition(template.place, name, body)

    def body(self, node: Expression, given: Mapping[str, Expression]) -> Expression:
        """An expression with parameters replaced by what is given for them."""

        def change(leaf: Expression) -> Expression:
            if isinstance(leaf, Not):
                return Not(leaf.place, tuple(self.body(p, given) for p in leaf.parts))
            if isinstance(leaf, Name):
                if leaf.name in given:
                    return given[leaf.name]
                if leaf.name in self._templates:
                    fail(leaf.place, f"{leaf.name} is a template, and needs arguments in braces")
            if isinstance(leaf, Template):
                return self._use(leaf, given)
            return leaf

        if given:
            self._nodes += sum(1 for _ in walk(node))
            if self._nodes > MAX_NODES:
                fail(node.place, f"the templates become more than {MAX_NODES} parts")
        return map_leaves(node, change)

    def _use(self, use: Template, given: Mapping[str, Expression]) -> Expression:
        name = use.name
        if name in given:  # a template may be an argument
            passed = given[name]
            if not isinstance(passed, Name):
                fail(use.place, f"{name}{{…}}: what is given for {name} is no template")
            name = passed.name
        template = self._templates.get(name)
        if template is None:
            what = "is not defined" if name not in self._definitions else "is no template"
            fail(use.place, f"{name}{{…}}: {name} {what}")
        if len(use.arguments) != len(template.parameters):
            fail(
                use.place,
                f"{name}{{…}}: {len(use.arguments)} arguments, but the template has "
                f"{len(template.parameters)} parameters",
            )
        arguments = [self._argument(a, given) for a in use.arguments]
        key = (name, *map(_key, arguments))
        if key not in self._instances:
            if len(self._instances) >= MAX_INSTANCES:
                fail(use.place, f"{name}{{…}}: more than {MAX_INSTANCES} uses of templates")
            instance = f"{name}_{len(self._instances)}"
            while instance in self._definitions:
                instance += "_"
            self._instances[key] = instance
            self._pending.append(
                (instance, template, dict(zip(template.parameters, arguments, strict=True)))
            )
        return Name(use.place, self._instances[key])

    def _argument(self, node: Expression, given: Mapping[str, Expression]) -> Expression:
        if isinstance(node, Name) and node.name in self._templates and node.name not in given:
            return node
        return self.body(node, given)


def _key(node: Expression) -> object:
    if isinstance(node, Name):
        return Name, node.name
    if isinstance(node, Text):
        return Text, node.value, node.ignore_case
    if isinstance(node, Pattern):
        return Pattern, node.value, node.flags
    assert isinstance(node, Range)
    return Range, node.low, node.high
