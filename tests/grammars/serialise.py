"""Values as the language of a schema writes them: keys in declared order, whole numbers."""

from __future__ import annotations

import json
from typing import Any

from smcprog.bench.coverage_order import in_declared_order

__all__ = ["in_declared_order", "spellings"]


def spellings(value: Any) -> list[str]:
    """The forms of `json.dumps`: default, indented, compact."""
    return [
        json.dumps(value, ensure_ascii=False),
        json.dumps(value, ensure_ascii=False, indent=2),
        json.dumps(value, ensure_ascii=False, separators=(",", ":")),
    ]
