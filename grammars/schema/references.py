"""Where the references of a JSON Schema lead."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any
from urllib.parse import unquote, urldefrag, urljoin

from smcprog.errors import GrammarError
from smcprog.grammars.schema.validity import Dialect
from smcprog.grammars.schema.walk import Path, child_schemas, show_path

__all__ = ["References"]

_IN_PLACE = frozenset({
    "allOf", "anyOf", "dependencies", "dependentSchemas", "else", "if", "not", "oneOf", "then",
})  # fmt: skip


class References:
    """Base URIs and anchors of a schema, and what its references mean.

    Parameters
    ----------
    root : dict
    dialect : Dialect
    """

    def __init__(self, root: dict[str, Any], dialect: Dialect) -> None:
        self.root = root
        self.dialect = dialect
        self._bases: dict[Path, str] = {}
        self._resources: dict[str, Path] = {"": ()}
        self._anchors: dict[tuple[str, str], Path] = {}
        self.dynamic: dict[str, list[Path]] = {}
        self.resources = 0  # subschemas with a URI of their own
        pending: list[tuple[Path, Any, str]] = [((), root, "")]
        while pending:
            path, schema, base = pending.pop()
            if not isinstance(schema, dict):
                continue
            base = self._enter(path, schema, base)
            pending.extend(((*path, *at), child, base) for at, child in child_schemas(schema))

    def _enter(self, path: Path, schema: dict[str, Any], base: str) -> str:
        lone = self.dialect.lone_references and "$ref" in schema
        name = None if lone else schema.get(self.dialect.id_keyword)
        if isinstance(name, str) and name:
            if name.startswith("#"):
                self._anchors.setdefault((base, name[1:]), path)
            else:
                base = _join(base, urldefrag(name)[0])
                self._resources.setdefault(base, path)
                self.resources += bool(path)
        if not self.dialect.lone_references:
            for keyword in ("$anchor", "$dynamicAnchor"):
                if isinstance(schema.get(keyword), str):
                    self._anchors.setdefault((base, schema[keyword]), path)
            if isinstance(schema.get("$dynamicAnchor"), str):
                self.dynamic.setdefault(schema["$dynamicAnchor"], []).append(path)
        self._bases[path] = base
        return base

    def _base(self, path: Path) -> str:
        while path not in self._bases:
            path = path[:-1]
        return self._bases[path]

    def target(self, path: Path, keyword: str = "$ref") -> Path | None:
        """Where the reference at `path` leads; None if to a meta-schema.

        Raises
        ------
        GrammarError
            If it leads out of the schema or nowhere.
        """
        reference = self.at(path)[keyword]
        where = f"schema: {keyword} at {show_path((*path, keyword))}"
        uri, fragment = urldefrag(reference)
        base = self._base(path)
        full = _join(base, uri) if uri else base
        if full not in self._resources:
            if full.rstrip("#") == self.dialect.uri.rstrip("#"):
                return None
            raise GrammarError(
                f"{where}: only references within the schema are supported, and to the "
                f"meta-schema of its draft; got {reference!r}"
            )
        start = self._resources[full]
        fragment = unquote(fragment)
        found: Path | None = start
        if fragment.startswith("/"):
            found = self._pointer(start, fragment)
        elif fragment:
            found = self._anchors.get((full, fragment))
        if found is None or not isinstance(self.at(found), (dict, bool)):
            raise GrammarError(f"{where}: there is no such place in the schema: {reference!r}")
        return found

    def at(self, path: Path) -> Any:
        """What stands at a path of the schema."""
        at: Any = self.root
        for part in path:
            at = at[part]
        return at

    def _pointer(self, start: Path, pointer: str) -> Path | None:
        path, at = list(start), self.at(start)
        for part in pointer[1:].split("/"):
            part = part.replace("~1", "/").replace("~0", "~")
            if isinstance(at, list) and part.isdigit() and int(part) < len(at):
                path.append(int(part))
                at = at[int(part)]
            elif isinstance(at, dict) and part in at:
                path.append(part)
                at = at[part]
            else:
                return None
        return tuple(path)

    def follow(self, path: Path, schema: dict[str, Any]) -> Iterator[tuple[str, Path | None]]:
        """References of one schema that are fixed: keyword and target.

        A dynamic reference that can only ever mean one place is fixed, too; one that
        depends on the way it was reached is left out.
        """
        if isinstance(schema.get("$ref"), str):
            yield "$ref", self.target(path)
        if self.dialect.knows("$dynamicRef") and isinstance(schema.get("$dynamicRef"), str):
            target = self.target(path, "$dynamicRef")
            name = urldefrag(schema["$dynamicRef"])[1]
            anchors = self.dynamic.get(name, [])
            if target not in anchors or len(anchors) == 1:
                yield "$dynamicRef", target
        recursive = self.dialect.knows("$recursiveRef") and "$recursiveRef" in schema
        if recursive and not self.resources:
            yield "$recursiveRef", self.target(path, "$recursiveRef")

    def reached(self) -> dict[Path, dict[str, Any]]:
        """The subschemas (objects only) that the root reaches, itself first."""
        out: dict[Path, dict[str, Any]] = {}
        pending: list[Path] = [()]
        while pending:
            path = pending.pop()
            schema = self.at(path)
            if path in out or not isinstance(schema, dict):
                continue
            if self.dialect.lone_references and isinstance(schema.get("$ref"), str):
                schema = {"$ref": schema["$ref"]}
            out[path] = schema
            pending += self._targets(path, schema)
            pending += [
                (*path, *at)
                for at, _ in child_schemas(schema)
                if at[0] not in ("$defs", "definitions")
            ]
        return out

    def _targets(self, path: Path, schema: dict[str, Any]) -> list[Path]:
        found = [target for _, target in self.follow(path, schema)]
        if self.dialect.knows("$dynamicRef") and isinstance(schema.get("$dynamicRef"), str):
            found.append(self.target(path, "$dynamicRef"))
        return [target for target in found if target is not None]

    def circle(self) -> Path | None:
        """A schema that is applied to a value whenever it is applied to it, if there is one."""
        reached = self.reached()
        done: set[Path] = set()
        for start in reached:
            trail: dict[Path, None] = {start: None}
            stack = [iter(self._in_place(start, reached))] if start not in done else []
            while stack:
                after = next(stack[-1], None)
                if after is None:
                    stack.pop()
                    done.add(trail.popitem()[0])
                elif after in trail:
                    return after
                elif after in reached and after not in done:
                    trail[after] = None
                    stack.append(iter(self._in_place(after, reached)))
        return None

    def _in_place(self, path: Path, reached: dict[Path, dict[str, Any]]) -> list[Path]:
        """Schemas that are applied to the same value as the one at `path`."""
        schema = reached[path]
        inside = [(*path, *at) for at, _ in child_schemas(schema) if at[0] in _IN_PLACE]
        return inside + self._targets(path, schema)


def _join(base: str, uri: str) -> str:
    if not uri:
        return base
    return uri if ":" in uri.split("/")[0] else urljoin(base, uri)
