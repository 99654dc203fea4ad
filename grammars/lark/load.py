"""A Lark grammar with everything that it imports, as one set of definitions.

Names are told apart as Lark does it: what an imported rule needs from its own file gets the
file's name in front. Paths of relative imports are looked up beside the grammar's file.
"""

from __future__ import annotations

import dataclasses
import os
import pkgutil
from collections.abc import Iterable, Mapping

from smcprog.errors import GrammarError
from smcprog.grammars.lark.ast import (
    Alternatives,
    Definition,
    Expression,
    Import,
    LarkFile,
    Name,
    Not,
    Template,
    fail,
)
from smcprog.grammars.lark.common import COMMON
from smcprog.grammars.lark.parser import parse_lark
from smcprog.grammars.lark.tree import map_leaves, walk
from smcprog.grammars.text import require_unicode

__all__ = ["Loaded", "load_lark"]

MAX_TEXT = 500_000  # characters, of one file
MAX_DEFINITIONS = 2_000
MAX_FILES = 100
MAX_CHAIN = 20  # files that import each other, one inside the other


@dataclasses.dataclass(frozen=True)
class Loaded:
    """Definitions by name, templates among them, and what is ignored."""

    definitions: dict[str, Definition]
    ignored: tuple[Expression, ...]


def load_lark(text: str, path: str | None = None, import_paths: Iterable[str] = ()) -> Loaded:
    """A grammar with its imports.

    Parameters
    ----------
    text : str
    path : str, optional
        File of the text; relative imports start in its folder.
    import_paths : iterable of str
        Folders that are searched first.

    Raises
    ------
    GrammarError
        With line and column.
    """
    loader = _Loader(tuple(import_paths))
    file = loader.parse(text, "")
    folder = os.path.dirname(os.path.abspath(path)) if path is not None else None
    chain = (os.path.abspath(path),) if path is not None else ()
    return Loaded(loader.definitions(file, folder, chain), file.ignored)


@dataclasses.dataclass
class _Loader:
    import_paths: tuple[str, ...]
    files: int = 0

    def parse(self, text: str, file: str) -> LarkFile:
        what = f"grammar {file}" if file else "grammar"
        if len(text) > MAX_TEXT:
            raise GrammarError(f"{what}: {len(text)} characters; at most {MAX_TEXT} are taken")
        require_unicode(what, text)
        parsed = parse_lark(text, file)
        _check_number(len(parsed.definitions), what)
        return parsed

    def definitions(
        self, file: LarkFile, folder: str | None, chain: tuple[str, ...]
    ) -> dict[str, Definition]:
        """What a file defines and imports, by the names that it has there."""
        out: dict[str, Definition] = {}
        for module in _by_module(file.imports):
            for name, definition in self._imported(module, folder, chain).items():
                if name in out:
                    fail(module.place, f"{name} is defined twice")
                out[name] = definition
        for definition in file.definitions:
            name, before = definition.name, out.get(definition.name)
            if definition.how in ("define", "declare"):
                if before is not None:
                    fail(definition.place, f"{name} is defined twice")
                out[name] = definition
                continue
            if before is None:
                fail(definition.place, f"%{definition.how} {name}: it is not defined before")
            if definition.how == "override":
                out[name] = dataclasses.replace(definition, how="define")
                continue
            if before.how == "declare":
                fail(definition.place, f"%extend {name}: it is only declared")
            if before.parameters != definition.parameters:
                fail(definition.place, f"%extend {name}: other parameters than in its definition")
            both = Alternatives(definition.place, (definition.body, before.body))
            out[name] = dataclasses.replace(before, body=both)
        _check_number(len(out), "grammar")
        return out

    def _imported(
        self, wanted: Import, folder: str | None, chain: tuple[str, ...]
    ) -> dict[str, Definition]:
        shown = ("." if wanted.relative else "") + ".".join(wanted.path)
        found, text, inside = self._find(wanted, shown, folder)
        if found in chain:
            fail(wanted.place, f"%import {shown}: the files import each other in a circle")
        self.files += 1
        if self.files > MAX_FILES or len(chain) >= MAX_CHAIN:
            fail(
                wanted.place,
                f"%import {shown}: more than {MAX_FILES} files, or {MAX_CHAIN} inside each other",
            )
        file = self.parse(text, os.path.basename(found))
        if found == _COMMON:
            own = parse_lark(COMMON, os.path.basename(found))
            names = {d.name for d in own.definitions}
            others = tuple(d for d in file.definitions if d.name not in names)
            file = dataclasses.replace(own, definitions=own.definitions + others)
        definitions = self.definitions(file, inside, (*chain, found))
        for name in wanted.names:
            if name not in definitions:
                kind = "terminal" if name.lstrip("_")[:1].isupper() else "rule"
                fail(wanted.place, f"%import {shown}.{name}: there is no such {kind}")
        return _renamed(definitions, wanted)

    def _find(self, wanted: Import, shown: str, folder: str | None) -> tuple[str, str, str | None]:
        """Path, text and folder of an imported file."""
        relative = os.path.join(*wanted.path) + ".lark"
        folders = list(self.import_paths)
        if wanted.relative and folder is not None:
            folders.append(folder)
        for place in folders:
            path = os.path.abspath(os.path.join(place, relative))
            if not os.path.isfile(path):
                continue
            try:
                if os.path.getsize(path) > 4 * MAX_TEXT:
                    fail(wanted.place, f"%import {shown}: {path} is too large")
                with open(path, encoding="utf-8") as file:
                    return path, file.read(), os.path.dirname(path)
            except (OSError, UnicodeDecodeError) as error:
                fail(wanted.place, f"%import {shown}: cannot read {path}: {error}")
        try:
            data = pkgutil.get_data("lark", "grammars/" + "/".join(wanted.path) + ".lark")
        except OSError:
            data = None
        if data is not None:
            return f"lark/{'/'.join(wanted.path)}.lark", data.decode(), None
        if wanted.relative and folder is None:
            fail(
                wanted.place,
                f"%import {shown}: relative imports need the grammar to be a file, or import_paths",
            )
        looked = ", ".join([*folders, "lark's own grammars"])
        fail(wanted.place, f"%import {shown}: there is no {relative} in {looked}")


_COMMON = "lark/common.lark"


def _check_number(number: int, what: str) -> None:
    if number > MAX_DEFINITIONS:
        raise GrammarError(f"{what}: {number} definitions; at most {MAX_DEFINITIONS} are taken")


def _by_module(imports: Iterable[Import]) -> list[Import]:
    """Imports with all that is wanted of one file together."""
    out: dict[tuple[bool, tuple[str, ...]], Import] = {}
    for one in imports:
        key = one.relative, one.path
        if key not in out:
            out[key] = dataclasses.replace(one, names={})
        for name, alias in one.names.items():
            before = out[key].names.setdefault(name, alias)
            if before != alias:
                fail(one.place, f"%import: {name} is imported twice, as {before} and as {alias}")
            if name.lstrip("_")[:1].isupper() != alias.lstrip("_")[:1].isupper():
                fail(one.place, f"%import: {name} cannot be called {alias}: one is a terminal")
    return list(out.values())


def _renamed(definitions: Mapping[str, Definition], wanted: Import) -> dict[str, Definition]:
    """What the wanted names need, with the names that it has in the importing file."""
    module = "__".join(wanted.path)
    needed: dict[str, None] = {}
    pending = list(wanted.names)
    while pending:
        name = pending.pop()
        if name not in needed and name in definitions:
            needed[name] = None
            for node in walk(definitions[name].body):
                if isinstance(node, (Name, Template)):
                    pending.append(node.name)

    def called(name: str) -> str:
        if name in wanted.names:
            return wanted.names[name]
        terminal = name.lstrip("_")[:1].isupper()
        front = module.upper() if terminal else module
        return f"_{front}__{name[1:]}" if name[0] == "_" else f"{front}__{name}"

    out = {}
    for name in needed:
        definition = definitions[name]
        kept = frozenset(definition.parameters)

        def change(leaf: Expression, kept: frozenset[str] = kept) -> Expression:
            if isinstance(leaf, Not):
                return Not(leaf.place, tuple(map_leaves(p, change) for p in leaf.parts))
            if isinstance(leaf, Template):
                name = leaf.name if leaf.name in kept else called(leaf.name)
                arguments = tuple(map_leaves(a, change) for a in leaf.arguments)
                return Template(leaf.place, name, arguments)
            if isinstance(leaf, Name) and leaf.name not in kept:
                return Name(leaf.place, called(leaf.name))
            return leaf

        out[called(name)] = dataclasses.replace(
            definition, name=called(name), body=map_leaves(definition.body, change)
        )
    return out
