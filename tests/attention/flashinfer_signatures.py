"""Signatures of the installed FlashInfer, read from its source: importing it takes seconds."""

from __future__ import annotations

import ast
import functools
import importlib.util
import inspect
from collections import Counter
from pathlib import Path
from typing import Any

BOUND: Counter[str] = Counter()
"""How many calls of each entry point were bound to the package's signature."""
FILES = {
    "append_paged_kv_cache": "page.py",
    "merge_state_in_place": "cascade.py",
    "BatchDecodeWithPagedKVCacheWrapper": "decode.py",
    "BatchPrefillWithPagedKVCacheWrapper": "prefill.py",
}


@functools.cache
def package_folder() -> Path | None:
    """Where FlashInfer is installed; looking does not import it, which would take seconds."""
    spec = importlib.util.find_spec("flashinfer")
    if spec is None or not spec.submodule_search_locations:
        return None
    return Path(spec.submodule_search_locations[0])


@functools.cache
def source_tree(file: str) -> ast.Module:
    folder = package_folder()
    assert folder is not None
    return ast.parse((folder / file).read_text())


@functools.cache
def package_signature(path: str) -> inspect.Signature:
    """Signature of a function, or of a method of a class, as its source says."""
    node: Any = source_tree(FILES[path.split(".")[0]])
    for name in path.split("."):
        # Overloads come before what they describe.
        node = [n for n in node.body if getattr(n, "name", None) == name][-1]
    kinds, empty = inspect._ParameterKind, inspect.Parameter.empty
    arguments = node.args
    assert not arguments.posonlyargs
    plain = [None] * (len(arguments.args) - len(arguments.defaults)) + arguments.defaults
    found = [
        inspect.Parameter(a.arg, kinds.POSITIONAL_OR_KEYWORD, default=empty if d is None else d)
        for a, d in zip(arguments.args, plain, strict=True)
    ]
    if arguments.vararg:
        found.append(inspect.Parameter(arguments.vararg.arg, kinds.VAR_POSITIONAL))
    found += [
        inspect.Parameter(a.arg, kinds.KEYWORD_ONLY, default=empty if d is None else d)
        for a, d in zip(arguments.kwonlyargs, arguments.kw_defaults, strict=True)
    ]
    assert not arguments.kwarg
    return inspect.Signature(found)


def as_in_package(path: str) -> Any:
    """Bind every call to the signature of the package's function of that name."""

    def decorate(function: Any) -> Any:
        @functools.wraps(function)
        def call(*args: Any, **kwargs: Any) -> Any:
            if package_folder() is not None:
                package_signature(path).bind(*args, **kwargs)
                BOUND[path] += 1
            return function(*args, **kwargs)

        return call

    return decorate
