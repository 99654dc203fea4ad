"""Text to SQL: the database judges the query.

Shows: a grammar made from a live SQLite database (only its tables and columns are names, and
SQLite prepares the statement), and execution as a potential: a query that fails or finds nothing
is refused. The database is in memory and read only.

Expect: for each question the share of queries that find nothing where none is executed (the table
has family names only), then the most probable query that does find something, with its share and
its rows.
"""

from __future__ import annotations

import sqlite3

from smcprog import LM, Check, Grammar, Target
from smcprog.grammars import sql

BOOKS = [
    ("Emma", "Austen", 1815, 474),
    ("Persuasion", "Austen", 1817, 249),
    ("Dracula", "Stoker", 1897, 418),
    ("Orlando", "Woolf", 1928, 336),
    ("The Waves", "Woolf", 1931, 324),
]
SYSTEM = "Answer with one SQLite query on the table books(title, author, year, pages)."
SHOTS = [
    ("When did Dracula come out?", "SELECT year FROM books WHERE title = 'Dracula'"),
    ("How many books did Austen write?", "SELECT count(*) FROM books WHERE author = 'Austen'"),
    ("Which books have more than 400 pages?", "SELECT title FROM books WHERE pages > 400"),
]
QUESTIONS = ["Which books did Jane Austen write?", "Who wrote the novel Orlando?"]


def chat(question: str) -> list[dict[str, str]]:
    messages = [{"role": "system", "content": SYSTEM}]
    for asked, query in SHOTS:
        messages.append({"role": "user", "content": asked})
        messages.append({"role": "assistant", "content": query})
    return [*messages, {"role": "user", "content": question}]


def main() -> None:
    database = sqlite3.connect(":memory:")
    database.execute("CREATE TABLE books (title TEXT, author TEXT, year INTEGER, pages INTEGER)")
    database.executemany("INSERT INTO books VALUES (?, ?, ?, ?)", BOOKS)
    database.execute("PRAGMA query_only = ON")

    def rows(query: str) -> list[tuple[object, ...]]:
        try:
            return database.execute(query).fetchmany(10)
        except sqlite3.Error:
            return []

    queries = Target(LM(), temperature=0.8) * Grammar(sql(database, statements=["select"]))
    prompts = [chat(question) for question in QUESTIONS]
    judged = queries * Check(lambda query: bool(rows(query)))
    alone, executed = (
        target.sample(prompts, particles=10, max_tokens=40, seed=0) for target in (queries, judged)
    )
    for question, before, after in zip(QUESTIONS, alone, executed, strict=True):
        nothing = sum(w for w, p in zip(before.weights, before, strict=True) if not rows(p.text))
        query, share = next(iter(after.probabilities().items()))
        print(f"{question} (finds nothing, unless executed: {nothing:.0%})")
        print(f"    {share:.2f} {query}")
        print(f"    {rows(query)}")


if __name__ == "__main__":
    main()
