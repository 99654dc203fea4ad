"""The comparison with genlm-control: its languages, its checks, what it says without the peer.

Set SMCPROG_PEER_PYTHON to a Python with genlm-control to run the whole comparison, too.
"""

from __future__ import annotations

import json
import os
import random
import re
import subprocess
import sys
from pathlib import Path

import pytest
from typer.testing import CliRunner

from smcprog import Grammar
from smcprog.bench import peers, peers_worker
from smcprog.bench.peers_regex import schema_regex
from smcprog.cli import app
from smcprog.errors import GrammarError, InputError, SettingError

PEER = os.environ.get("SMCPROG_PEER_PYTHON")
CLOSED = {"type": "object", "additionalProperties": False}


def matches(pattern: str, text: str) -> bool:
    return re.fullmatch(pattern, text.encode().decode("latin-1")) is not None


SCHEMAS = {
    "object": (
        CLOSED
        | {
            "properties": {
                "a-b": {"type": "string"},
                "n": {"type": "integer"},
                "x.y": {"type": ["number", "null"]},
                "on": {"type": "boolean"},
            },
            "required": ["n"],
        },
        [
            '{"n":1}',
            '{"a-b":"é","n":-0,"x.y":1.5e-3,"on":true}',
            '{ "n" : 1 , "on" : false }',
            '{\n  "n": 1,\r\n\t"x.y": null\n}',
        ],
    ),
    "optional keys only": (
        CLOSED | {"properties": {"p": {"enum": ["u", "v w", None]}, "q": {"const": True}}},
        ["{}", "{ }", '{"p":"v w"}', '{"q":true}', '{"p":null, "q": true}'],
    ),
    "no keys": (CLOSED, ["{}", "{\n}"]),
    "string": (
        {"type": "string"},
        [
            '""',
            r'"\"\\\b\f\n\r\t"',
            r'"\u00e9\uABCD\ud83d\ude00"',
            '"é€😀\x80\u2028\uffff\U0010ffff"',
            '"~\u0080"',
        ],
    ),
    "short string": (
        {"type": "string", "minLength": 1, "maxLength": 2},
        ['"a"', '"😀😀"', r'"\n\u0041"', r'"\ud83d\ude00a"'],
    ),
    "array": (
        {"type": "array", "items": {"type": "integer"}, "minItems": 1, "maxItems": 3},
        ["[1]", "[ 1 ,2,\n3]"],
    ),
    "any array": ({"type": "array", "items": {"type": "boolean"}}, ["[]", "[ ]", "[true, false]"]),
    "empty array": ({"type": "array", "items": {"type": "null"}, "maxItems": 0}, ["[]", "[ ]"]),
    "either": ({"anyOf": [{"type": "integer"}, CLOSED]}, ["12", "{}"]),
}
OUTSIDE = [
    '{"on":true,"n":1}', '{"n":1,}', '{"n":01}', '{"n":1.}', '{  "n":1}', '{"n":1} ', "[1,2,3,4]",
    '"\x7f"', '"\x1f"', r'"\/"', r'"\ud800"', r'"\udc00\ud800"', '"abc"', "[,1]", "{,}", "null",
    '{"q":false}', '{"p":"w"}', r'{"\u006e":1}', "", "-", "[\r1]",
]  # fmt: skip


@pytest.mark.parametrize("name", SCHEMAS)
def test_the_expression_is_the_language_of_the_grammar(name: str) -> None:
    schema, inside = SCHEMAS[name]
    pattern, grammar = schema_regex(schema), Grammar(schema)
    for text in inside:
        assert matches(pattern, text), text
        assert grammar.accepts(text), text
    pick = random.Random(0)
    changed = [peers._change(pick.choice(inside), pick) for _ in range(150)]
    verdicts = []
    for text in [*changed, *OUTSIDE]:
        verdicts.append(grammar.accepts(text))
        assert matches(pattern, text) == verdicts[-1], text
    assert not all(verdicts)


def test_bytes_that_are_no_text_are_outside() -> None:
    pattern = schema_regex({"type": "string"})
    for inner in (b"\xc0\x80", b"\xed\xa0\x80", b"\xf5\x80\x80\x80", b"\xe2\x82", b"\x80"):
        assert re.fullmatch(pattern, f'"{inner.decode("latin-1")}"') is None, inner


@pytest.mark.parametrize(
    ("schema", "said"),
    [
        ({"type": "object", "properties": {}}, "other keys"),
        (True, "a schema that is True at $"),
        ({"type": "string", "pattern": "a"}, "pattern at $ "),
        ({"type": "integer", "minimum": 2}, "minimum at $ "),
        (CLOSED | {"properties": {"k": {}}}, r"type None at $.properties.k"),
        (CLOSED | {"properties": {"é": {"type": "null"}}}, "the key 'é'"),
        (CLOSED | {"required": ["k"]}, "undeclared"),
        ({"enum": [1]}, "the constant 1"),
        ({"enum": ["a"], "type": "null"}, "of another type"),
        ({"$ref": "#"}, "$ref"),
        ({"type": "array", "items": {"type": "null"}, "minItems": 2, "maxItems": 1}, "maxItems is"),
    ],
)
def test_what_is_not_covered_is_named(schema: object, said: str) -> None:
    with pytest.raises(GrammarError, match=re.escape(said)):
        schema_regex(schema)


def test_schemas_are_spread_over_the_file_and_uncovered_ones_left_out() -> None:
    good = [
        (f"s{i}", {"type": "array", "items": {"type": "null"}, "maxItems": i}) for i in range(9)
    ]
    rows = [("bad", {"type": "object"}), *good, ("bad", {"type": "string", "pattern": "(a"})]
    chosen, able = peers.choose(rows, 3)
    assert able == 9
    assert [name for name, _, _ in chosen] == ["s0", "s3", "s6"]
    assert len(peers.choose(rows, 50)[0]) == 9
    with pytest.raises(InputError, match="no schema"):
        peers.choose(rows[:1], 3)


def test_read_schemas(tmp_path: Path) -> None:
    path = tmp_path / "s.jsonl"
    path.write_text('{"schema": {}, "name": "a"}\n\n{"schema": true}\n')
    assert peers.read_schemas(path) == [("a", {}), ("line 3", True)]
    for text, said in (("{", "line 1: not JSON"), ('{"a": 1}', '"schema" is needed')):
        path.write_text(text)
        with pytest.raises(InputError, match=said):
            peers.read_schemas(path)
    with pytest.raises(InputError, match="cannot read"):
        peers.read_schemas(tmp_path / "none.jsonl")


def test_without_the_peer_it_says_how_to_get_it(tmp_path: Path) -> None:
    with pytest.raises(SettingError, match="no such program"):
        peers.Peer(str(tmp_path / "python"))
    # -S: an interpreter that has nothing installed, whatever this one has
    bare = tmp_path / "bare"
    bare.write_text(f'#!/bin/sh\nexec "{sys.executable}" -S "$@"\n')
    bare.chmod(0o755)
    with pytest.raises(SettingError, match=r"pip install genlm-control==0\.4\.1"):
        peers.Peer(str(bare))
    result = CliRunner().invoke(
        app, ["bench", "peers", "--schemas", "x.jsonl", "--peer-python", str(bare)]
    )
    assert result.exit_code == 3
    assert "pip install genlm-control==0.4.1" in result.stderr


def test_the_worker_answers_a_failing_order_and_goes_on() -> None:
    done = subprocess.run(
        [sys.executable, "-S", peers_worker.__file__],
        input='{"do": "load"}\n{"do": "fly"}\n',
        capture_output=True,
        text=True,
        check=True,
    )
    first, second = map(json.loads, done.stdout.splitlines())
    assert "ModuleNotFoundError" in first["error"]
    assert "KeyError" in second["error"]


def row(ours: list[dict], peer: list[dict]) -> dict:
    checks = {"texts": 2, "texts_differing": [], "texts_invalid": 0, "log_target_gap": None}
    return peers._rates(ours, peer) | checks | {"ours": ours, "peer": peer}


def call(seconds: float, tokens: int, log_z: float | None) -> dict:
    return {"seconds": seconds, "tokens": tokens, "complete": True, "log_evidence": log_z}


def test_rates_and_summary() -> None:
    first = row([call(1, 100, -2.0)], [call(10, 50, -3.0)])
    assert first["ratio"] == pytest.approx(20)
    assert first["seconds_ratio"] == pytest.approx(10)
    assert not first["at_least"]
    broken = row([call(1, 30, -1.0)], [{"seconds": 10, "tokens": 100, "complete": False}])
    assert broken["at_least"]
    dead = row([call(1, 40, -2.0)], [call(2, 10, None)])
    more = row([call(1, 100, -2.0)], [call(10, 50, -2.5)])
    summary = peers.summarise([first, broken, dead, more])
    assert summary["median_ratio"] == pytest.approx((8 + 20) / 2)
    assert summary["least_ratio"] == pytest.approx(3)
    assert summary["broken_off"] == 1
    # the broken-off call has no log Ẑ, and a dead population's is minus infinity: two are left
    assert summary["log_evidence_difference"] == pytest.approx(0.75)
    assert summary["log_evidence_difference_se"] == pytest.approx(0.25)
    assert peers.summarise([broken])["log_evidence_difference"] is None


@pytest.mark.skipif(PEER is None, reason="SMCPROG_PEER_PYTHON names no Python with genlm-control")
@pytest.mark.parametrize("tuned", [True, False])
def test_both_do_the_same_job(tuned: bool) -> None:
    from smcprog import LM

    assert PEER is not None
    schema = CLOSED | {"properties": {"on": {"type": "boolean"}}, "required": ["on"]}
    peer = peers.Peer(PEER)
    try:
        (found,) = peers.compare(
            LM(), peer, [("on", schema, schema_regex(schema))], max_tokens=16, tuned=tuned
        )
    finally:
        peer.close()
    assert found["texts"] > 40
    assert found["texts_differing"] == []
    assert found["texts_invalid"] == 0
    assert found["log_target_gap"] < 1e-3
    assert abs(found["ours"][0]["log_evidence"] - found["peer"][0]["log_evidence"]) < 3
