"""What a schema's mask covers and what is left to the check, in words."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from smcprog.grammars.schema.walk import Path, show_path

if TYPE_CHECKING:
    from smcprog.grammars.schema.mask import MaskBuilder

__all__ = ["covered", "left_over", "takes_free_keys"]

MAX_PLACES = 3  # of a keyword that are named


def covered(builder: MaskBuilder, whitespace: str) -> str:
    """The language of the mask."""
    order = "any order" if builder.any_order else "declared order, others after them"
    extent = "values that may still be valid" if builder.left else "the schema's valid values"
    out = f"JSON texts of {extent}; keys in {order}; white space {whitespace}"
    if builder.ignored_formats:
        names = ", ".join(sorted(set(builder.ignored_formats.values())))
        places = _places(list(builder.ignored_formats), "format")
        out += f"; formats that no standard defines restrict nothing: {names} at {places}"
    return out


def left_over(left: dict[Path, dict[str, str]]) -> str:
    """Keywords with their places and why the mask does not hold them."""
    groups: dict[tuple[str, str], list[Path]] = {}
    for path, keywords in left.items():
        for keyword, why in keywords.items():
            groups.setdefault((keyword, why), []).append(path)
    return "; ".join(
        f"{'all keywords' if keyword == '*' else keyword} at {_places(paths, keyword)} ({why})"
        for (keyword, why), paths in groups.items()
    )


def _places(paths: list[Path], keyword: str) -> str:
    tail = () if keyword == "*" else (keyword,)
    shown = ", ".join(show_path((*path, *tail)) for path in paths[:MAX_PLACES])
    return shown + (f" and {len(paths) - MAX_PLACES} more" if len(paths) > MAX_PLACES else "")


def takes_free_keys(mask: Any) -> bool:
    """Whether some object of a mask's schema may have keys that are not spelled out in it."""
    pending = [mask]
    while pending:
        node = pending.pop()
        if node is False:
            continue
        if node is True or _is_open(node):
            return True
        pending += _children(node)
    return False


def _children(node: dict[str, Any]) -> list[Any]:
    out: list[Any] = [node[k] for k in ("items", "additionalProperties") if k in node]
    for key in ("allOf", "anyOf", "oneOf", "prefixItems"):
        out += node.get(key, [])
    for key in ("properties", "patternProperties", "$defs"):
        out += node.get(key, {}).values()
    return out


def _is_open(node: dict[str, Any]) -> bool:
    if "enum" in node or "$ref" in node:
        return False
    kinds = node.get("type", ["object", "array"])
    kinds = [kinds] if isinstance(kinds, str) else kinds
    in_parts = any(key in node for key in ("allOf", "anyOf", "oneOf"))
    spelled = "patternProperties" not in node and node.get("additionalProperties", True) is False
    if "object" in kinds and not in_parts and not spelled:
        return True
    return (
        "array" in kinds
        and not in_parts
        and "items" not in node
        and not ("maxItems" in node and node["maxItems"] <= len(node.get("prefixItems", [])))
    )
