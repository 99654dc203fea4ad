"""The built-in SQL grammar against SQLite itself."""

from __future__ import annotations

import random
import re
import sqlite3

import pytest

from smcprog import Grammar, GrammarError, PotentialError
from smcprog.engine.vocab import Vocabulary
from smcprog.grammars import sql
from smcprog.grammars.builtin.files import file_text
from smcprog.grammars.builtin.sql_grammar import schema_grammar_text
from smcprog.grammars.builtin.sql_schema import read_schema
from smcprog.potentials.base import Request
from smcprog.testing import check_potential
from tests.grammars.draw import Drawer

SYNTAX_ERROR = re.compile(r"near \"|incomplete input|unrecognized token|clause should come")
SCHEMA = {"people": ["id", "name", "age", "order"], "jobs": ["id", "person_id", "my title"]}


def plainly(sampler):
    """Samplers that keep drawn statements short and their names few."""
    return {
        "WS": lambda rng: rng.choice([" "] * 9 + ["\n  "]),
        "INTEGER": lambda rng: str(rng.randrange(1, 4)),
        "STRING": lambda rng: rng.choice(["''", "'x'", "'a''b'", "'(\"'"]),
        **sampler,
    }


def empty_database() -> sqlite3.Connection:
    database = sqlite3.connect(":memory:")
    for table, columns in SCHEMA.items():
        listed = ", ".join(f'"{c}"' for c in columns)
        database.execute(f'CREATE TABLE "{table}" ({listed})')
    return database


def error_of(database: sqlite3.Connection, statement: str) -> str | None:
    try:
        database.execute(f"EXPLAIN {statement}").close()
    except sqlite3.Error as error:
        return str(error)
    return None


VALID = [
    "SELECT 1", "select a from t", "SELECT a FROM t;", "SELECT * FROM t WHERE a = 1 AND b <> 'x'",
    "SELECT DISTINCT a, count(*) AS n FROM t GROUP BY a HAVING count(*) > 2 ORDER BY n "
    "DESC LIMIT 3",
    "SELECT t.*, u.a FROM t JOIN u ON t.a = u.a LEFT JOIN v USING (b)",
    "SELECT a-1, a - -1, -a, +2, ~3 FROM t",
    "SELECT CASE WHEN a < 3 THEN 'few' ELSE 'many' END FROM t", "SELECT CAST(a AS INTEGER) FROM t",
    "SELECT a FROM (SELECT b AS a FROM t) AS x",
    "SELECT a FROM t WHERE b IN (1, 2) OR b IN (SELECT c FROM u)",
    "SELECT a FROM t WHERE NOT EXISTS (SELECT 1 FROM u WHERE u.a = t.a)",
    "WITH RECURSIVE n(i) AS (SELECT 1 UNION ALL SELECT i + 1 FROM n WHERE i < 9) SELECT i FROM n",
    "SELECT sum(a) OVER (PARTITION BY b ORDER BY c ROWS BETWEEN 1 PRECEDING AND CURRENT "
    "ROW) FROM t",
    "SELECT a FROM t WHERE b LIKE '%x' ESCAPE '!' AND c IS NOT NULL AND d BETWEEN 1 AND 2",
    "INSERT INTO t (a, b) VALUES (1, 'it''s'), (2, NULL)",
    "INSERT OR IGNORE INTO t SELECT * FROM u", "UPDATE t SET a = a + 1, b = 'x' WHERE c = 2",
    "DELETE FROM t", "VALUES (1), (2)",
    "CREATE TABLE t (a INTEGER PRIMARY KEY AUTOINCREMENT, b VARCHAR(20) NOT NULL UNIQUE, "
    "c REAL DEFAULT -1.5 CHECK (c < 3), FOREIGN KEY (b) REFERENCES u (b) ON DELETE CASCADE)",
    "CREATE VIEW v AS SELECT a FROM t",
    "CREATE UNIQUE INDEX i ON t (a COLLATE NOCASE DESC) WHERE a > 1", "DROP TABLE IF EXISTS t",
    'SELECT "a b" FROM "t"', "SELECT X'00ff', 1.5e-3, ''", "SELECT a\nFROM t\n  WHERE b",
]  # fmt: skip
INVALID = [
    "", ";", "SELECT", "SELECT a,", "SELECTa", "SELECT a FROM", "SELECT select FROM t",
    "SELECT a FROM from", "SELECT a FROM t WHERE", "SELECT a FROM t GROUP a", "SELECT (a",
    "SELECT a)", "SELECT 'x", "SELECT \"x", "SELECT a--1", "SELECT a -- b", "SELECT 1a",
    "SELECT a FROM t; SELECT b", "SELECT a FROM t LIMIT", "INSERT t VALUES (1)", "UPDATE t a = 1",
    "DELETE t", "CREATE TABLE t ()", "SELECT a FROM t WHERE b = ", "SELECT CASE END",
    "SELECT a IN 1", "SELECT x'0'", "ſELECT a", "SELECT a LIKE", "SELECT * ",
    "SELECT a ORDER BY b UNION SELECT c",
]  # fmt: skip


@pytest.fixture(scope="module")
def any_names() -> Grammar:
    return Grammar(sql)


@pytest.fixture(scope="module")
def on_schema() -> Grammar:
    return Grammar(sql(SCHEMA))


@pytest.mark.parametrize("text", VALID)
def test_valid_statements(any_names, text):
    assert not SYNTAX_ERROR.search(error_of(empty_database(), text) or "")
    assert any_names.accepts(text)
    changed = text.swapcase() if "'" not in text else text
    assert any_names.accepts(changed)


@pytest.mark.parametrize("text", INVALID)
def test_invalid_statements(any_names, text):
    assert not any_names.accepts(text)


@pytest.mark.parametrize(
    "text", ["SELECT  a", " SELECT a", "SELECT a ", "SELECT(1)", "a", "PRAGMA x"]
)
def test_valid_elsewhere_but_not_in_this_serialisation(any_names, text):
    assert not any_names.accepts(text)


def test_keywords_of_the_file_are_those_of_sqlite():
    """No keyword of this SQLite may be taken for a name."""
    listed = set(re.findall('"([A-Z_]+)"i', file_text("sql").partition("KEYWORD:")[2]))
    database = empty_database()
    used = re.findall('"([A-Z_]+)"i', file_text("sql"))
    reserved = {w for w in used if "syntax" in (error_of(database, f"SELECT 1 AS {w}") or "")}
    assert "SELECT" in reserved and reserved <= listed


def test_drawn_statements_are_never_a_syntax_error(any_names):
    names = ["people", "jobs", "id", "name", "abs"]
    drawer = Drawer(
        file_text("sql"),
        plainly(
            {
                "NAME": lambda rng: rng.choice(names),
                "QUOTED": lambda rng: rng.choice(['"people"', '"id"', '"x ""y"']),
            }
        ),
    )
    database, rng = empty_database(), random.Random(0)
    prepared = 0
    for i in range(400):
        text = drawer.draw(rng, rng.choice([14, 17, 20]))
        error = error_of(database, text)
        assert error is None or not SYNTAX_ERROR.search(error), f"{error}: {text}"
        prepared += error is None
        if i % 6 == 0:
            assert any_names.accepts(text), text
    assert prepared > 40  # else SQLite might have stopped before it saw most of the syntax


ON_SCHEMA = [
    "SELECT name FROM people", "SELECT NAME, Age FROM People WHERE id = 3;",
    'SELECT "order" FROM people', 'SELECT "my title" FROM jobs',
    "SELECT p.name FROM people AS p JOIN jobs j ON p.id = j.person_id",
    "SELECT age, count(*) AS n FROM people GROUP BY age HAVING n > 1 ORDER BY n",
    "WITH old AS (SELECT name AS who FROM people WHERE age > 80) SELECT who FROM old",
    "SELECT x.name FROM (SELECT name FROM people) AS x",
    "INSERT INTO people (id, name) VALUES (1, 'order')",
    "UPDATE people SET age = age + 1 WHERE name LIKE 'A%'",
    "DELETE FROM jobs WHERE person_id IN (SELECT id FROM people)",
    "SELECT people.id FROM people, jobs UNION SELECT person_id FROM jobs ORDER BY 1",
    "SELECT count(*) FROM jobs",
]  # fmt: skip
OFF_SCHEMA = [
    "SELECT title FROM jobs", "SELECT name FROM jobs", "SELECT name FROM persons",
    "SELECT id FROM people, jobs", "SELECT jobs.name FROM people, jobs",
    "SELECT order FROM people", 'SELECT "my title" FROM people', "SELECT q.name FROM people AS p",
    "SELECT name FROM people ORDER BY salary", 'SELECT name FROM people ORDER BY "salary"',
    'SELECT "name" FROM jobs', "WITH o AS (SELECT name AS who FROM people) SELECT whom FROM o",
    "WITH o AS (SELECT 1 AS n) SELECT name FROM sqlite_master",
    "WITH o AS (SELECT 1 AS n) SELECT rowid FROM people",
    "WITH o AS (SELECT 1 AS n) SELECT * FROM json_each",
    "INSERT INTO people (id, name) VALUES (1)", "INSERT INTO people (title) VALUES (1)",
    "UPDATE people SET title = 1", "DROP TABLE people", "CREATE TABLE x (a)",
    "SELECT load_extension('x')", "SELECT abs(1, 2)", "SELECT name FROM people WHERE count(*) > 1",
    "SELECT id FROM people UNION SELECT id, person_id FROM jobs", "ATTACH 'x' AS y",
    "SELECT name FROM people; ",
]  # fmt: skip


@pytest.mark.parametrize("text", ON_SCHEMA)
def test_statements_on_the_schema(on_schema, text):
    assert error_of(empty_database(), text) is None
    assert on_schema.accepts(text)


@pytest.mark.parametrize("text", OFF_SCHEMA)
def test_statements_off_the_schema(on_schema, text):
    assert not on_schema.accepts(text)


def test_drawn_statements_are_accepted_where_sqlite_prepares_them(on_schema):
    """Both ways, so that neither the mask nor an early end of a check takes a valid one away."""
    aliases = ["p", "j", "n", "total"]
    drawer = Drawer(
        schema_grammar_text(read_schema(SCHEMA), ["select", "insert", "update", "delete"]),
        plainly(
            {
                "ALIAS": lambda rng: rng.choice(aliases),
                "NAME": lambda rng: rng.choice([*aliases, "id", "name", "person_id"]),
                "QUOTED": lambda rng: '"q"',
                # No names in quotes: alone, SQLite would take them for strings.
                "COLUMN_0": lambda rng: rng.choice(["id", "name", "AGE"]),
                "COLUMN_1": lambda rng: rng.choice(["id", "person_id"]),
                "COLUMN": lambda rng: rng.choice(["id", "name", "age", "person_id"]),
                "TABLE_0": lambda rng: rng.choice(["people", "People"]),
                "TABLE_1": lambda rng: "jobs",
                "FUNCTION": lambda rng: rng.choice(["abs", "count", "max", "sum"]),
            }
        ),
    )
    rng, database = random.Random(1), empty_database()
    counts = {True: 0, False: 0}
    for _ in range(400):
        text = drawer.draw(rng, rng.choice([12, 14, 16]))
        if '"' in text:
            continue
        prepares = error_of(database, text) is None
        assert on_schema.accepts(text) == prepares, text
        counts[prepares] += 1
    assert min(counts.values()) > 50


def test_a_wrong_column_ends_the_text_early(on_schema):
    begin = on_schema._text.checks[0].begin()
    wrong = b"SELECT name FROM jobs"
    assert begin.feed(wrong + b" WHERE") is not None  # the word may go on
    assert begin.feed(wrong + b" WHERE ") is None
    assert begin.feed(wrong).feed(b" WHE").feed(b"RE").feed(b" ") is None
    assert begin.feed(b"SELECT ' WHERE ' FROM jobs WHERE ") is not None
    right = b"SELECT name FROM people WHERE "
    assert begin.feed(right + b"person_id") is not None
    assert begin.feed(right + b"person_id ") is None
    assert begin.feed(right + b"age > 3 AND (name = 'x' OR person_id,") is None
    assert begin.feed(right + b"max(person_id)") is None
    assert begin.feed(right + b"X'00' = age AND ") is not None
    nested = right + b"id IN (SELECT "
    assert begin.feed(nested + b"title, ") is not None  # its FROM is to come
    assert begin.feed(nested + b"person_id FROM people ORDER ") is None
    assert begin.feed(nested + b"person_id FROM jobs WHERE age > 1 AND ") is not None
    assert begin.feed(nested + b"person_id FROM jobs WHERE title = ") is None
    # Outside of a complete FROM clause, a table may still come.
    for text in (
        b"SELECT (SELECT name FROM jobs WHERE age = 3 AND ",
        b"SELECT p.id FROM people AS p JOIN jobs AS j ON j.id = x.id AND ",
        b"SELECT id FROM people WHERE age > 3 UNION SELECT person_id, ",
    ):
        assert begin.feed(text) is not None


def test_a_connection_gives_its_tables_and_views():
    database = sqlite3.connect(":memory:")
    database.row_factory = lambda cursor, row: {"never": "looked at"}
    database.executescript(
        "CREATE TABLE t (a INTEGER PRIMARY KEY, b TEXT, c AS (b || 'x'));"
        "CREATE VIEW v AS SELECT a AS vee FROM t; INSERT INTO t (b) VALUES ('secret');"
    )
    changes = database.total_changes
    grammar = Grammar(sql(database, statements=["select", "insert"]))
    assert grammar.accepts("SELECT vee, c FROM v, t") and not grammar.accepts("SELECT b FROM v")
    assert grammar.accepts("INSERT INTO t (b) VALUES (1)")
    assert not grammar.accepts("INSERT INTO t (c) VALUES (1)")  # generated
    assert not grammar.accepts("INSERT INTO v (vee) VALUES (1)")  # a view
    assert not grammar.accepts("DELETE FROM t")
    assert database.total_changes == changes


def test_what_is_no_word_on_the_text_is_an_error(on_schema):
    check = on_schema._text.checks[0]
    assert check.prepares(b"SELECT '%s'" % (b"x" * 1_000))
    with pytest.raises(PotentialError, match="SQLite cannot say"):
        check.prepares(b"SELECT '%s'" % (b"x" * 1_000_000))


@pytest.mark.parametrize(
    ("schema", "options", "message"),
    [
        ({}, {}, "no tables"),
        ({"t": "abc"}, {}, r"table 't'.*list of str, got str"),
        ({"t": ["a", "A"]}, {}, r"table 't'.*duplicate column"),
        ({"t": []}, {}, "table 't'"),
        ({"t": ["a\n"]}, {}, r"'a\\n'.*control"),
        ({"t": [1]}, {}, "names are str, got int"),
        (3, {}, "sqlite3.Connection or a dict"),
        ({"t": ["a"]}, {"statements": ["drop"]}, "statements are some of select"),
        ({"t": ["a"]}, {"statements": []}, "statements are some of select"),
    ],
)
def test_bad_schemas_are_refused(schema, options, message):
    with pytest.raises(GrammarError, match=message):
        sql(schema, **options)


def test_explain(any_names, on_schema):
    assert "checked besides: nothing" in any_names.explain()
    assert "SQLite can prepare" in on_schema.explain()
    assert on_schema.name == "Grammar(sql on people, jobs)"


def test_laws(on_schema):
    tokens = [
        b"SELECT", b" name", b" age", b" FROM", b" jobs", b" people", b" WH", b"ERE", b" GROUP BY",
        b" UNION SELECT", b" ORDER BY", b" >", b" 1", b";", b"<eos>",
    ]  # fmt: skip
    vocab = Vocabulary.from_tokens(tokens, [14])
    request = Request(
        prompt="", prompt_tokens=(), vocab=vocab, max_tokens=16, truncate=False, stop=()
    )
    walks = [
        (0, 1, 3, 5, 6, 7, 2, 11, 12, 14),
        (0, 1, 3, 4, 6, 7, 2, 11, 12, 14),  # no such column
        (0, 1, 3, 5, 9, 2, 3, 4, 10, 1, 14),
        (0, 1, 3, 5, 9, 2, 3, 5, 10, 1, 13, 14),
        (0, 2, 3, 5, 8, 1, 14),
        (0, 1, 3, 4, 14),
    ]
    check_potential(on_schema, request, sequences=walks)
    check_potential(on_schema, request, samples=40, max_length=9)
