"""Public schemas with valid and invalid instances, against the language of each.

`schema_ratchet.json` lists by name what is not as the instances say, each with its reason: a
schema that is refused, a valid instance that is out of the language, an invalid one that is
in it. A test fails where something goes wrong that is not listed, and where something listed
goes right. To write the file anew after an improvement::

    SMCPROG_UPDATE_RATCHET=1 python -m pytest tests/grammars/test_schema_data.py

Reasons are kept; a new entry has the reason "?", which the tests do not accept.
"""

from __future__ import annotations

import json
import os
import warnings
from pathlib import Path

import pytest

from smcprog import Grammar, GrammarError
from tests.grammars.serialise import in_declared_order, spellings

pytestmark = pytest.mark.filterwarnings("ignore::DeprecationWarning")

RATCHET = Path(__file__).with_name("schema_ratchet.json")
DRAFT7 = "http://json-schema.org/draft-07/schema#"


def measure(rows: list[dict]) -> tuple[dict[str, set[str]], dict[str, int]]:
    """Names of what is not as the instances say, and counts of everything."""
    wrong: dict[str, set[str]] = {"refused": set(), "rejected": set(), "accepted": set()}
    counts = {"schemas": 0, "valid": 0, "invalid": 0, "unchecked": 0}
    for row in rows:
        schema, name = row["schema"], row_name(row)
        if isinstance(schema, dict) and row.get("draft") == "draft7":
            schema = {"$schema": DRAFT7, **schema}
        counts["schemas"] += 1
        valid = [test for test in row["tests"] if test["valid"]]
        try:
            with warnings.catch_warnings():
                warnings.simplefilter("ignore")
                grammar = Grammar(schema)
        except GrammarError as error:
            assert "$" in str(error), f"{name} is refused without a place: {error}"
            if valid or "no value can satisfy it" not in str(error):
                wrong["refused"].add(name)
            continue
        counts["unchecked"] += "checked besides: nothing" in grammar.explain()
        for test in row["tests"]:
            counts["valid" if test["valid"] else "invalid"] += 1
            if test["valid"]:
                texts = spellings(in_declared_order(schema, test["data"]))
            else:
                texts = spellings(test["data"])[:1]
            if any(grammar.accepts(text) != test["valid"] for text in texts):
                kind = "rejected" if test["valid"] else "accepted"
                wrong[kind].add(f"{name}: {test.get('description', '')}")
    return wrong, counts


def row_name(row: dict) -> str:
    return row.get("name") or f"{row['draft']} {row['file']}: {row['description']}"


def compare(data: str, wrong: dict[str, set[str]]) -> None:
    ratchet = json.loads(RATCHET.read_text(encoding="utf-8"))
    known = ratchet.setdefault(data, {})
    if os.environ.get("SMCPROG_UPDATE_RATCHET"):
        ratchet[data] = {
            kind: {name: known.get(kind, {}).get(name, "?") for name in sorted(names)}
            for kind, names in wrong.items()
        }
        text = json.dumps(ratchet, indent=1, ensure_ascii=False, sort_keys=True)
        RATCHET.write_text(text + "\n", encoding="utf-8")
        return
    for kind, names in wrong.items():
        listed = known.get(kind, {})
        assert names - listed.keys() == set(), f"{kind}: not in the ratchet file"
        assert listed.keys() - names == set(), f"{kind}: right now; update the ratchet file"
        assert all(len(reason) > 5 for reason in listed.values()), "a reason is missing"


def test_real_schemas(data_rows):
    rows = data_rows("maskbench_dev")
    wrong, counts = measure(rows)
    compare("maskbench_dev", wrong)
    assert len(wrong["refused"]) <= 0.01 * counts["schemas"]
    assert not wrong["accepted"]
    assert len(wrong["rejected"]) <= 0.002 * counts["valid"]


def test_the_official_suite(data_rows):
    wrong, _ = measure(data_rows("json_schema_test_suite"))
    compare("json_schema_test_suite", wrong)
