"""Public schemas with valid and invalid instances, against the language of each."""

from __future__ import annotations

import json
import warnings

import pytest

from smcprog import Grammar, GrammarError

pytestmark = pytest.mark.filterwarnings("ignore::DeprecationWarning")

MIN_COMPILED = 266  # of the 294 schemas; a rise is welcome, a fall is a regression
DRAFT7 = "http://json-schema.org/draft-07/schema#"


def spellings(value) -> list[str]:
    return [
        json.dumps(value, ensure_ascii=False),
        json.dumps(value, ensure_ascii=False, indent=2),
        json.dumps(value, ensure_ascii=False, separators=(",", ":")),
    ]


def test_real_schemas(data_rows):
    rows = data_rows("maskbench_dev")
    compiled = 0
    for row in rows:
        try:
            grammar = Grammar(row["schema"])
        except GrammarError as error:
            assert "at $" in str(error), f"{row['name']} is refused without a place: {error}"
            continue
        compiled += 1
        for test in row["tests"]:
            for text in spellings(test["data"]):
                assert grammar.accepts(text) == test["valid"], (row["name"], text)
    assert compiled >= MIN_COMPILED


# Annotations, not assertions, in every draft that makes them more than advice.
ANNOTATIONS = {"optional/content.json"}


def test_no_invalid_instance_of_the_official_suite_is_accepted(data_rows):
    compiled = 0
    for row in data_rows("json_schema_test_suite"):
        schema = row["schema"]
        if isinstance(schema, dict) and row["draft"] == "draft7":
            schema = {"$schema": DRAFT7, **schema}
        try:
            with warnings.catch_warnings():
                warnings.simplefilter("ignore")
                grammar = Grammar(schema)
        except GrammarError:
            continue
        compiled += 1
        if row["file"] in ANNOTATIONS:
            continue
        for test in row["tests"]:
            if not test["valid"]:
                for text in spellings(test["data"]):
                    assert not grammar.accepts(text), (row["file"], row["description"], text)
    assert compiled >= 449


# Why a valid instance may be out of the language.
POLICY = {"allOf", "allOf with base schema", "const with object"}  # order of keys
POLICY_FILES = {
    # whole numbers written as 1.0 or with an exponent
    "const.json", "enum.json", "type.json", "optional/float-overflow.json",
    # formats are asserted in every draft; leap seconds are written in UTC; no A-labels
    "format.json", "optional/format/", "vocabulary.json", "format-assertion",
}  # fmt: skip


def test_valid_instances_of_the_official_suite_are_accepted_but_for_the_policy(data_rows):
    for row in data_rows("json_schema_test_suite"):
        schema = row["schema"]
        if isinstance(schema, dict) and row["draft"] == "draft7":
            schema = {"$schema": DRAFT7, **schema}
        if row["description"] in POLICY or any(f in row["file"] for f in POLICY_FILES):
            continue
        try:
            with warnings.catch_warnings():
                warnings.simplefilter("ignore")
                grammar = Grammar(schema)
        except GrammarError:
            continue
        for test in row["tests"]:
            if test["valid"]:
                text = json.dumps(test["data"], ensure_ascii=False)
                assert grammar.accepts(text), (row["file"], row["description"], text)
