from __future__ import annotations

import gzip
import json
import os
from pathlib import Path

import pytest


@pytest.fixture(scope="session")
def data_rows():
    """Rows of a public data file, found through SMCPROG_DATA."""

    def rows(name: str) -> list[dict]:
        folder = os.environ.get("SMCPROG_DATA")
        path = Path(folder or ".") / f"{name}.jsonl.gz"
        if not folder or not path.exists():
            pytest.skip(
                f"needs the public test data: set SMCPROG_DATA to the folder of {path.name}"
            )
        with gzip.open(path, "rt", encoding="utf-8") as file:
            return [json.loads(line) for line in file]

    return rows
