"""The coverage benchmark: how instances are written, what is counted, processes that are ended.

Set SMCPROG_ENGINES_PYTHON to a Python with xgrammar and outlines-core to run those, too.
"""

from __future__ import annotations

import gzip
import json
import os
import sys

import pytest
from typer.testing import CliRunner

from smcprog.bench import coverage
from smcprog.bench.coverage_cases import Case, read_cases, spellings
from smcprog.cli import app
from smcprog.errors import InputError, SettingError

PEER = os.environ.get("SMCPROG_ENGINES_PYTHON")
PERSON = {
    "type": "object",
    "properties": {"name": {"type": "string"}, "age": {"type": "integer", "minimum": 0}},
    "required": ["name"],
    "additionalProperties": False,
}
LINES = [
    {
        "name": "person",
        "schema": PERSON,
        "tests": [
            {"data": {"age": 7, "name": "é"}, "valid": True},
            {"data": {"age": -7, "name": "é"}, "valid": False},
            {"data": {"age": 7}, "valid": False},
        ],
    },
    {
        "name": "dependent",
        "schema": {"type": "object", "not": {"required": ["a"]}},
        "tests": [{"data": {"a": 1}, "valid": False}, {"data": {"b": "\u2028"}, "valid": True}],
    },
    {
        "draft": "draft7",
        "file": "type.json",
        "description": "integers",
        "schema": {"type": "integer"},
        "tests": [{"data": 1.0, "valid": True}, {"data": 1.5, "valid": False}],
    },
]


@pytest.fixture
def schemas(tmp_path):
    path = tmp_path / "schemas.jsonl.gz"
    path.write_bytes(
        gzip.compress("\n".join(json.dumps(line, ensure_ascii=False) for line in LINES).encode())
    )
    return path


def test_instances_are_written_in_declared_order():
    value = {"z": 1.0, "age": 7, "name": "é", "more": [1e300, 0.5]}
    assert spellings(PERSON, value) == [
        '{"name": "é", "age": 7, "z": 1, "more": [1e+300, 0.5]}',
        '{"name":"é","age":7,"z":1,"more":[1e+300,0.5]}',
    ]
    nested = {"items": {"$ref": "#/$defs/p"}, "$defs": {"p": PERSON}}
    assert spellings(nested, [{"age": 1, "name": "a"}])[1] == '[{"name":"a","age":1}]'
    assert spellings(True, {"b": 1, "a": 2})[1] == '{"b":1,"a":2}'


def test_reading(schemas, tmp_path):
    cases = read_cases(schemas)
    assert [case.name for case in cases] == ["person", "dependent", "draft7 type.json integers"]
    assert cases[0].instances[1] == ({"age": -7, "name": "é"}, False)
    assert cases[2].schema["$schema"].endswith("draft-07/schema#")
    for text, said in (
        ("{", "line 1: an object with"),
        ('\n{"schema": {}}', "line 2: an object with"),
        ('{"schema": {}, "tests": [3]}', "line 1"),
        ("", "no schemas"),
    ):
        path = tmp_path / "bad.jsonl"
        path.write_text(text)
        with pytest.raises(InputError, match=said):
            read_cases(path)
    with pytest.raises(InputError, match="--suite"):
        read_cases(tmp_path / "none", "--suite")


def test_what_is_counted():
    rows = [
        {"valid": [True, False, True], "accepted": [True, True, False], "seconds": 0.002},
        {"valid": [False], "accepted": [False], "seconds": 0.004},
        {"valid": [True], "accepted": [], "kind": "time", "error": ""},
        {"valid": [True], "accepted": [], "kind": "crash", "error": ""},
        {"valid": [True], "accepted": [], "kind": "refused", "error": ""},
    ]
    found = coverage.summarise({"engine": "e", "version": "1", "rows": rows})
    assert found == {
        "engine": "e",
        "version": "1",
        "schemas": 5,
        "compile_errors": 3,
        "timeouts": 1,
        "crashes": 1,
        "invalid": 2,
        "invalid_accepted": 1,
        "valid": 2,
        "valid_rejected": 1,
        "faulty_schemas": 1,
        "median_ms": pytest.approx(3),
        "p99_ms": pytest.approx(4),
    }


def test_ours_and_the_mask_engine_alone(schemas):
    """As the command prints it, in processes of their own."""
    result = CliRunner().invoke(
        app, ["bench", "coverage", "--schemas", str(schemas), "--engines", "smcprog,llguidance",
              "--json"],
    )  # fmt: skip
    assert result.exit_code == 0, result.output
    (found,) = json.loads(result.stdout)["files"]
    ours, alone = found["engines"]
    assert (ours["compile_errors"], ours["invalid_accepted"], ours["valid_rejected"]) == (0, 0, 0)
    assert (ours["invalid"], ours["valid"]) == (4, 3)
    assert alone["compile_errors"] == 1  # "not" is none of its keywords
    assert (alone["invalid_accepted"], alone["valid_rejected"]) == (0, 0)
    assert 0 < alone["median_ms"] <= alone["p99_ms"]


def test_an_engine_that_is_too_slow_is_ended_and_started_again():
    slow = {"type": "array", "items": {"type": "string"}}
    engine = coverage.Engine("llguidance", sys.executable, limit_s=20, memory_mb=4096)
    try:
        assert engine.try_case(slow, ["[]", "3"])["accepts"] == [True, False]
        first = engine._process
        engine.limit_s = 0.0
        assert engine.try_case(slow, ['["' + "a" * 200_000 + '"]'])["kind"] == "time"
        assert first.poll() is not None  # it is gone, not left to run
        engine.limit_s = 20
        assert engine.try_case(slow, ["[]"])["accepts"] == [True]
        engine._process.kill()
        assert engine.try_case(slow, ["[]"])["kind"] == "crash"
        refused = engine.try_case({"type": "nothing"}, ["1"])
        assert refused["kind"] == "refused"
        assert "nothing" in refused["error"]
    finally:
        engine.close()
    assert engine._process is None


def test_what_is_absent_is_said(schemas):
    cases = [Case("any", True, ((1, True),))]
    if PEER is None:
        (found,) = coverage.measure(["xgrammar"], cases)
        assert found["version"] is None
        assert "xgrammar" in found["absent"]
        printed = CliRunner().invoke(
            app, ["bench", "coverage", "--schemas", str(schemas), "--engines", "outlines-core"]
        )
        assert printed.exit_code == 0
        assert "outlines-core is absent: No module named" in printed.output
    with pytest.raises(SettingError, match="no engine 'guidance'; there are smcprog"):
        list(coverage.measure(["guidance"], cases))
    with pytest.raises(SettingError, match="cannot start it"):
        list(coverage.measure(["xgrammar"], cases, peer_python="/no/such/python"))


@pytest.mark.skipif(PEER is None, reason="needs SMCPROG_ENGINES_PYTHON")
@pytest.mark.parametrize(
    ("engine", "refused", "person"),
    [
        ("xgrammar", 0, [True, False, False]),
        ("xgrammar strict", 0, [True, False, False]),
        ("outlines-core", 0, [True, True, False]),  # it knows no minimum
    ],
)
def test_the_other_engines(schemas, engine, refused, person):
    (found,) = coverage.measure([engine], read_cases(schemas), peer_python=PEER)
    assert found["version"], found["absent"]
    assert coverage.summarise(found)["compile_errors"] == refused
    assert found["rows"][0]["accepted"] == person
