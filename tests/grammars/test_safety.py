"""Hostile grammars: each costs a bounded amount and ends in one typed error."""

from __future__ import annotations

import gc
import os
import re
import threading

import pytest

from smcprog import (
    Grammar,
    GrammarError,
    GrammarLimitError,
    GrammarTimeoutError,
    PotentialError,
    Scheduler,
    SettingError,
    Target,
    limits,
)
from smcprog.engine import Vocabulary
from smcprog.grammars import vet, vetting
from smcprog.grammars.cache import ByteCache
from smcprog.grammars.cost import walk_cost
from smcprog.grammars.engine import compile_text
from smcprog.grammars.guards import guard_schema
from smcprog.grammars.sources import build
from smcprog.potentials import Request, matchers
from smcprog.testing import TabularLM

from ..exactness.toys import CASE_A, REGEX_A


def nested(levels):
    schema: dict = {"type": "array"}
    for _ in range(levels):
        schema = {"type": "array", "items": schema}
    return schema


def endless():
    schema: dict = {"type": "object"}
    schema["properties"] = {"a": schema, "b": schema}
    return schema


DOUBLING = "start: A0\n" + "".join(f"A{i}: A{i + 1} A{i + 1}\n" for i in range(40)) + 'A40: "x"\n'
STRINGS = [f"{i * 2654435761 % 2**32:08x}" for i in range(10_000)]

REFUSED = {
    "no such type": ("schema", {"type": "stsring"}, r'"stsring" at \$\.type'),
    "open class": ("regex", "[.*", "position 0"),
    "open group in a pattern": ("schema", {"type": "string", "pattern": "("}, r"\$\.pattern"),
    "open groups": ("regex", "(" * 30_000, "nested"),
    "groups": ("regex", "(" * 30_000 + "a" + ")" * 30_000, "nested"),
    "groups in a pattern": ("schema", {"type": "string", "pattern": "(" * 30_000}, "group"),
    "groups in a grammar": ("lark", "start: " + "(" * 30_000 + '"a"\n', "nested|line 1"),
    "brackets in a grammar": ("lark", "start: " + "[" * 30_000 + "\n", "nested|line 1"),
    "repeats": ("regex", "((a{0,100}){0,100}){0,100}", "fuel"),
    "repeats of repeats": ("regex", "(((a{1,999}){1,999}){1,999}){1,999}", "."),
    "a count": ("lark", 'start: "a"~1000000\n', "repeat"),
    "doubling terminals": ("lark", DOUBLING, "too big"),
    "an undefined symbol": ("lark", "start: a b\na: 'x'\n", "."),
    "never ending": ("lark", "start: start start\n", "."),
    "a schema on the net": ("schema", {"$ref": "http://127.0.0.1:9/schema.json"}, "ref|127"),
    "a schema in a file": ("schema", {"$ref": "file:///etc/hostname"}, "ref|etc"),
    "deep": ("schema", nested(250), "more than 200 levels"),
    "a schema in itself": ("schema", endless(), "more than 200 levels"),
    "wide": ("schema", {"allOf": [{"minimum": i} for i in range(10_001)]}, "10,000 objects"),
    "long": ("regex", "a" * 1_000_001, "characters; at most"),
    "long grammar": ("lark", 'start: "a"\n' + " " * 1_000_000, "characters; at most"),
    "long strings": ("schema", {"enum": ["x" * 1_000, "y" * 999_999]}, "characters"),
    "many choices": ("choice", [str(i) for i in range(100_001)], "more than 100,000 choices"),
}  # fmt: skip


@pytest.mark.parametrize("name", REFUSED)
def test_an_attack_is_refused_with_one_typed_error(name):
    kind, source, message = REFUSED[name]
    with pytest.raises(GrammarError, match=message) as caught:
        vet(kind, source, seconds=60)  # the fuel is what is tried here, however slow the machine
    assert len(str(caught.value)) < 5_000


HARMLESS = {
    "recursion through nothing": ("lark", 'start: a\na: a a | "x" |\n'),
    "itself or nothing": ("lark", "start: start |\n"),
    "an enum eight times": (
        "schema",
        {
            "$defs": {"e": {"enum": STRINGS}},
            "properties": {name: {"$ref": "#/$defs/e"} for name in "abcdefgh"},
            "type": "object",
        },
    ),
    "references that double": (
        "schema",
        {
            "$defs": {
                **{f"d{i}": {"items": {"$ref": f"#/$defs/d{i + 1}"},
                             "contentSchema": {"$ref": f"#/$defs/d{i + 1}"}} for i in range(30)},
                "d30": {"type": "null"},
            },
            "$ref": "#/$defs/d0",
        },
    ),
    "an automaton that would explode": ("regex", "(a|b)*a(a|b){200}"),
    "a wild card and repeats": ("regex", ".*a.{60}b.{60}"),
    "long multiples": ("schema", {"type": "integer", "multipleOf": 999_999_937}),
    "a long minimum": ("schema", {"type": "string", "minLength": 1_000_000}),
    "a very long maximum": ("schema", {"type": "array", "maxItems": 10_000_000}),
}  # fmt: skip


@pytest.mark.parametrize("name", HARMLESS)
def test_what_only_looks_dangerous_is_taken(name):
    kind, source = HARMLESS[name]
    report = vet(kind, source, seconds=60)
    assert report.cost.masks > 0
    assert 0 <= report.memory_mb < limits.VET_MEMORY_MB


def test_the_clock_stops_the_work_while_requests_are_served():
    """The process is killed in the middle of a compilation; sampling never waits for it."""
    target = Target(CASE_A.lm()) * Grammar.regex(REGEX_A)
    options = {"particles": 8, "max_tokens": 12}
    alone = target.sample([0], seed=1, **options)
    caught: list[BaseException] = []

    def attack():
        try:
            Grammar.lark(DOUBLING, trusted=False)
        except BaseException as error:
            caught.append(error)

    def vet_quickly(*arguments, **more):
        return vet(*arguments, seconds=0.2, **more)

    with pytest.MonkeyPatch.context() as patch, Scheduler() as scheduler:
        patch.setattr("smcprog.potentials.grammar.vet", vet_quickly)
        thread = threading.Thread(target=attack)
        thread.start()
        served = 0
        while thread.is_alive():
            post = scheduler.submit(target, [0], seed=1, **options).result()
            assert [p.tokens for p in post] == [p.tokens for p in alone]
            served += thread.is_alive()
    assert served >= 1
    (error,) = caught
    assert isinstance(error, GrammarTimeoutError)
    assert isinstance(error, (GrammarLimitError, ValueError))
    assert isinstance(error, TimeoutError)
    assert error.limit == "time"


def test_a_process_that_was_ended_is_replaced():
    with pytest.raises(GrammarTimeoutError, match=r"within 0\.05 s"):
        vet("lark", DOUBLING, seconds=0.05)
    assert vet("regex", "a+").cost.masks > 1


def test_memory_is_limited():
    with pytest.raises(GrammarLimitError, match="64 MiB") as caught:
        vet("lark", DOUBLING, memory_mb=64)
    assert caught.value.limit == "memory"
    assert not isinstance(caught.value, TimeoutError)


def test_an_untrusted_source_is_vetted_before_anything_else(monkeypatch):
    seen = []

    def refuse(kind, source, **options):
        seen.append((kind, options))
        raise GrammarTimeoutError("no", limit="time")

    monkeypatch.setattr("smcprog.potentials.grammar.vet", refuse)
    monkeypatch.setattr("smcprog.potentials.grammar.build", None)  # never reached
    for make in (
        lambda: Grammar({"type": "null"}, whitespace="none", trusted=False),
        lambda: Grammar(list[int], trusted=False),
        lambda: Grammar.regex("a", trusted=False),
        lambda: Grammar.choice(iter(["a", "b"]), trusted=False),
        lambda: Grammar.lark('start: "a"', trusted=False),
    ):
        with pytest.raises(GrammarTimeoutError):
            make()
    assert [kind for kind, _ in seen] == ["schema", "schema", "regex", "choice", "lark"]
    assert seen[0][1]["whitespace"] == "none"


@pytest.mark.parametrize(
    "grammar",
    [
        lambda **o: Grammar({"type": "object", "properties": {"a": {"type": "integer"}}}, **o),
        lambda **o: Grammar(dict[str, int], whitespace="none", **o),
        lambda **o: Grammar.regex(re.compile("a.+", re.DOTALL), **o),
        lambda **o: Grammar.choice(iter(["yes", "no"]), **o),
        lambda **o: Grammar.lark('start: "(" start ")" | "x"', **o),
    ],
)
def test_vetting_changes_nothing(grammar):
    assert grammar(trusted=False).lark_text == grammar().lark_text


def test_a_stranger_names_no_files(tmp_path):
    (tmp_path / "secret.lark").write_text('start: A\nA: "a"\n')
    with pytest.raises(GrammarError, match="line 1"):
        Grammar.lark(str(tmp_path / "secret.lark"), trusted=False)
    with pytest.raises(GrammarError, match="line 1"):
        Grammar.lark("%import .secret.A\nstart: A\n", trusted=False)


def test_what_cannot_be_sent_is_refused():
    with pytest.raises(GrammarError, match="dicts, lists"):
        vet("schema", {"const": object()})
    with pytest.raises(GrammarError, match="given as a str, got bytes"):
        vet("regex", b"a")
    with pytest.raises(SettingError, match="kind must be one of"):
        vet("xml", "<a/>")
    for setting in ({"seconds": 0}, {"seconds": "1"}, {"memory_mb": 1.5}, {"memory_mb": 0}):
        with pytest.raises(SettingError):
            vet("regex", "a", **setting)


def test_two_processes_at_most_and_all_get_their_turn():
    results: list[object] = []

    def one(i):
        results.append(vet("regex", f"[ab]{{{i},30}}"))

    threads = [threading.Thread(target=one, args=(i,)) for i in range(6)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert len(results) == 6
    assert len(vetting._workers._idle) <= limits.VET_WORKERS


# ---------------------------------------------------------------------- at run time


def test_running_out_of_fuel_spares_other_requests():
    """One of two requests has a grammar whose automaton explodes; the other is served."""
    tokens = [b"a", b"b", b"a" * 200, b"<eos>"]
    lm = TabularLM.from_conditionals(tokens, [3], lambda h: (0.1, 0.1, 0.7, 0.1), 0, "toy")
    hostile = Target(lm) * Grammar.lark('start: x*\nx: "a" x | x "a" | "a" "b"?\n')
    harmless = Target(lm) * Grammar.regex("[ab]*")
    with Scheduler() as scheduler:
        bad = scheduler.submit(hostile, [0], particles=4, max_tokens=8, seed=0)
        good = scheduler.submit(harmless, [0], particles=4, max_tokens=8, seed=0)
        assert len(good.result().particles) == 4
        with pytest.raises(PotentialError, match="the mask engine gave up"):
            bad.result()


# ---------------------------------------------------------------------- compiled grammars


def test_the_cache_is_bounded_by_bytes():
    cache: ByteCache[str] = ByteCache(100)
    for i in range(50):
        assert cache.get(i, lambda i=i: (str(i), 30)) == str(i)
    assert cache.total_bytes == 90
    assert [i in cache for i in (46, 47, 48, 49)] == [False, True, True, True]
    cache.get(47, lambda: ("again", 30))  # used: not the next to go
    assert cache.get("large", lambda: ("large", 1_000)) == "large"
    assert len(cache) == 1  # what is used last stays, whatever its size
    cache.get("a", lambda: ("a", 10))
    assert "large" not in cache
    cache.get("b", lambda: ("b", 10))
    cache.grow("a", 85)
    assert "a" not in cache
    assert cache.total_bytes == 10
    cache.grow("a", 85)
    cache.discard("a")
    cache.discard("b")
    assert cache.total_bytes == len(cache) == 0


def test_the_cache_makes_a_thing_once_and_different_things_at_once():
    cache: ByteCache[int] = ByteCache(100)
    both = threading.Barrier(2)
    made = []

    def make(value):
        made.append(value)
        both.wait(30)  # passes only if two different values are made at one time
        return value, 1

    threads = [
        threading.Thread(target=lambda v=v: cache.get(v, lambda: make(v))) for v in (0, 1, 0, 1)
    ]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(60)
    assert sorted(made) == [0, 1]

    def fail():
        raise GrammarError("no")

    for _ in range(2):  # a failure is no value
        with pytest.raises(GrammarError):
            cache.get("failing", fail)


def test_equal_grammars_are_compiled_once(monkeypatch):
    compiled = []

    def counted(lark, tokenizer):
        compiled.append(lark)
        return compile_text(lark, tokenizer)

    monkeypatch.setattr(matchers, "compile_text", counted)
    monkeypatch.setattr(matchers, "_cache", ByteCache(1 << 30))
    schema = {"type": "object", "properties": {"once": {"type": "integer"}}}
    requests = [
        Request("", (), Vocabulary.from_tokens([b"{", b"}", b"<eos>"], [2]), 4) for _ in range(2)
    ]
    for request in requests:
        for _ in range(3):
            grammar = Grammar(schema)
            assert grammar.accepts("{}")
            grammar.mask(grammar.start(request, 2))
    assert len(compiled) == 2  # over the bytes, and over the vocabulary
    Grammar(schema, whitespace="none")
    assert len(compiled) == 3


def test_endless_unique_schemas_take_bounded_memory(monkeypatch):
    """The accounted bytes stay below the cap, and what is dropped is really freed."""
    monkeypatch.setattr(matchers, "_cache", ByteCache(4 << 20))
    vocab = Vocabulary.from_tokens([bytes([c]) for c in range(128)] + [b"<eos>"], [128])
    request = Request("", (), vocab, 8)

    def many(first, count):
        for i in range(first, first + count):
            grammar = Grammar({"type": "object", "properties": {f"key{i}": {"type": "string"}}})
            grammar.start(request, 1)
        gc.collect()
        return resident_mb()

    warm = many(0, 50)
    assert matchers._cache.total_bytes <= 4 << 20
    assert 0 < len(matchers._cache) <= 32
    # Kept, each would add some 100 kB (measured), 15 MB in all.
    assert many(1_000, 150) - warm < 8


def resident_mb():
    with open("/proc/self/statm") as file:
        return int(file.read().split()[1]) * os.sysconf("SC_PAGE_SIZE") / (1 << 20)


# ---------------------------------------------------------------------- cost


def test_the_cost_is_counted_not_timed():
    one, two = (walk_cost(build("regex", r"\w{1,50}").lark) for _ in range(2))
    assert one == two
    assert walk_cost(build("regex", r"\w{1,500}").lark).build > one.build
    assert "cost, estimated: " in Grammar.regex("a+").explain()
    with pytest.raises(GrammarLimitError, match="gave up") as caught:
        walk_cost(build("regex", "((a{0,100}){0,100}){0,100}").lark)
    assert caught.value.limit == "fuel"
    assert "gave up" in Grammar.regex("((a{0,100}){0,100}){0,100}").explain()


def test_guards_look_at_shared_parts_once_each_place():
    shared: dict = {"type": "null"}
    for _ in range(30):
        shared = {"anyOf": [shared, shared]}
    with pytest.raises(GrammarLimitError, match="more than"):
        guard_schema(shared)
    guard_schema({"enum": [None, True, 1.5, "x", [1, [2]]]})
