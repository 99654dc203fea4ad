"""Validators of a schema and of its subschemas."""

from __future__ import annotations

import json
import re
from typing import Any
from urllib.parse import quote

import jsonschema_rs

from smcprog.errors import GrammarError
from smcprog.grammars.schema.formats import format_checks
from smcprog.grammars.schema.objects import key_matches
from smcprog.grammars.schema.patterns import mask_pattern
from smcprog.grammars.schema.references import References
from smcprog.grammars.schema.values import exact_number
from smcprog.grammars.schema.walk import Path, child_schemas

__all__ = ["Validators"]

_ROOT = "urn:smcprog:schema"
BACKTRACKS = 1_000_000  # of one match of a pattern that is not regular


class Validators:
    """Validators of a schema and of its subschemas, made when they are first asked for."""

    def __init__(self, references: References, assert_formats: bool) -> None:
        # Numbers mean what they look like, in the schema as in the text.
        schema = json.loads(json.dumps(references.root), parse_float=exact_number)
        schema["$schema"] = references.dialect.uri
        if not references.dynamic:
            _drop_unused(schema, references)
        _put_known_patterns(schema)
        self._class = references.dialect.validator
        self._options = {
            "validate_formats": assert_formats,
            "formats": format_checks() if assert_formats else None,
            "pattern_options": jsonschema_rs.FancyRegexOptions(backtrack_limit=BACKTRACKS),
            "offline": True,
        }
        try:
            self.whole = self._class(schema, **self._options)
        except (ValueError, jsonschema_rs.ReferencingError) as error:
            reason = re.sub(r"\s+", " ", getattr(error, "message", str(error)))
            raise GrammarError(f"schema: the validator does not take it: {reason[:300]}") from error
        drafts = {4: 4, 6: 6, 7: 7, 2019: 201909, 2020: 202012}
        draft = getattr(jsonschema_rs, f"Draft{drafts[references.dialect.year]}")
        self._registry = jsonschema_rs.Registry([(_ROOT, schema)], draft=draft)
        self._known: dict[Path, Any] = {}

    def of(self, path: Path) -> Any:
        """The validator of the subschema at `path`."""
        if path not in self._known:
            parts = (str(p).replace("~", "~0").replace("/", "~1") for p in path)
            pointer = "".join(f"/{quote(p, safe='~')}" for p in parts)
            schema = {"$ref": f"{_ROOT}#{pointer}"}
            self._known[path] = self._class(schema, registry=self._registry, **self._options)
        return self._known[path]


def _drop_unused(schema: dict[str, Any], references: References) -> None:
    """Drop definitions that are not referred to: what is wrong in them does not matter."""
    used = {path[:2] for path in references.reached()}
    for key in ("$defs", "definitions"):
        for name in list(schema.get(key, {})):
            if (key, name) not in used:
                del schema[key][name]


def _put_known_patterns(schema: Any) -> None:
    """Write patterns that the validator cannot read as the mask has them."""
    pending = [schema]
    while pending:
        at = pending.pop()
        if not isinstance(at, dict):
            continue
        if isinstance(at.get("pattern"), str) and key_matches(at["pattern"], "") is None:
            at["pattern"] = mask_pattern(at["pattern"], ("pattern",)) or at["pattern"]
        pending += [child for _, child in child_schemas(at)]
