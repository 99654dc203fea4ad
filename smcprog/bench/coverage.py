"""How much of JSON Schema each engine takes, and how exactly: ours, and three others.

Each engine runs in a process of its own, which is ended when a schema takes too long or too much
memory. Counted are schemas that do not compile, invalid instances that are accepted and valid ones
that are rejected; compile times are those of what compiled.
"""

from __future__ import annotations

import contextlib
import json
import os
import select
import statistics
import subprocess
import sys
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import Any

import smcprog
from smcprog.bench.coverage_cases import Case, texts_of
from smcprog.bench.coverage_worker import ENGINES
from smcprog.errors import SettingError, SMCError

__all__ = ["OURS", "Engine", "measure", "summarise"]

OURS = ("smcprog", "llguidance")
"""Engines of this environment; others are run by the peers' interpreter."""

START_S = 600.0  # to import an engine


class Engine:
    """An engine in a process of its own.

    Parameters
    ----------
    name : str
        Of `ENGINES`.
    python : str
        The interpreter that has it.
    limit_s : float
        Seconds for one schema and its instances, before the process is ended.
    memory_mb : int
        Address space of the process.

    Attributes
    ----------
    version : str or None
        None if it is not installed there; see `absent`.

    Raises
    ------
    SettingError
        If there is no such engine, or the interpreter cannot be started.
    """

    def __init__(self, name: str, python: str, *, limit_s: float, memory_mb: int) -> None:
        if name not in ENGINES:
            raise SettingError(f"no engine {name!r}; there are {', '.join(ENGINES)}")
        self.name, self.python = name, python
        self.limit_s, self.memory_mb = limit_s, memory_mb
        self.version: str | None = None
        self.absent = ""
        self._process: subprocess.Popen[bytes] | None = None
        self._start()

    def try_case(self, schema: Any, texts: Sequence[str]) -> dict[str, Any]:
        """What the engine makes of a schema.

        Returns
        -------
        dict
            ``seconds`` (of processor time, to compile) and ``accepts`` (of each text); or
            ``error``, with ``kind`` in {"refused", "time", "crash"}.
        """
        if self._process is None:
            self._start()
        order = json.dumps({"schema": schema, "texts": list(texts)}) + "\n"
        answer = self._ask(order.encode(), self.limit_s)
        if answer is None:
            self.close()
            return {"kind": "time", "error": f"not done after {self.limit_s:g} s"}
        if not answer:
            code = self.close()
            return {"kind": "crash", "error": f"its process ended with code {code}"}
        return {"kind": "refused", **answer} if "error" in answer else answer

    def close(self) -> int | None:
        """End the process; its exit code."""
        process, self._process = self._process, None
        if process is None:
            return None
        with contextlib.suppress(OSError):
            if process.stdin is not None:
                process.stdin.close()
        if process.poll() is None:
            with contextlib.suppress(subprocess.TimeoutExpired):
                process.wait(0.5)
        process.kill()
        code = process.wait()
        if process.stdout is not None:
            process.stdout.close()
        return code

    def _start(self) -> None:
        worker = Path(__file__).with_name("coverage_worker.py")
        environment = dict(os.environ)
        if self.name == "smcprog":
            home = str(Path(smcprog.__file__).parent.parent)
            environment["PYTHONPATH"] = os.pathsep.join(
                [home, *filter(None, [environment.get("PYTHONPATH")])]
            )
        try:
            self._process = subprocess.Popen(
                [self.python, str(worker), self.name, str(self.memory_mb)],
                stdin=subprocess.PIPE,
                stdout=subprocess.PIPE,
                stderr=subprocess.DEVNULL,
                env=environment,
            )
        except OSError as error:
            raise SettingError(f"--peer-python {self.python}: cannot start it: {error}") from error
        hello = self._ask(b"", START_S)
        if not hello:
            self.close()
            raise SMCError(f"the engine {self.name} did not start under {self.python}")
        self.version, self.absent = hello.get("version"), hello.get("absent", "")
        if self.version is None:
            self.close()

    def _ask(self, line: bytes, seconds: float) -> dict[str, Any] | None:
        """The next answer; empty if the process ended, None if it took too long."""
        process = self._process
        assert process is not None and process.stdin is not None and process.stdout is not None
        with contextlib.suppress(BrokenPipeError):
            process.stdin.write(line)
            process.stdin.flush()
        # Answers are short, so that once a line has begun its end is not far.
        ready, _, _ = select.select([process.stdout], [], [], seconds)
        if not ready:
            return None
        answer = process.stdout.readline()
        return json.loads(answer) if answer else {}


def measure(
    names: Sequence[str],
    cases: Sequence[Case],
    *,
    peer_python: str = sys.executable,
    limit_s: float = 20.0,
    memory_mb: int = 4096,
    on_case: Callable[[str, int, int], None] = lambda engine, done, total: None,
) -> Iterator[dict[str, Any]]:
    """Try every case with every engine, one engine after the other.

    Parameters
    ----------
    names : sequence of str
        Of `ENGINES`.
    cases : sequence of Case
    peer_python : str
        The interpreter for the engines that are not in `OURS`.
    limit_s : float
        Seconds for a schema and its instances.
    memory_mb : int
        Address space of an engine's process.
    on_case : callable
        Is told how far it is.

    Yields
    ------
    dict
        Of an engine: ``engine``, ``version`` (None where ``absent`` says why it cannot be run)
        and ``rows``, one a case: ``name``, ``valid`` and ``accepted`` (of each instance), and
        ``seconds``, or ``kind`` and ``error``.
    """
    tried = [(case, list(texts_of(case))) for case in cases]
    for name in names:
        python = sys.executable if name in OURS else peer_python
        engine = Engine(name, python, limit_s=limit_s, memory_mb=memory_mb)
        rows: list[dict[str, Any]] = []
        try:
            # The first call of an engine loads what it needs.
            if engine.version is not None:
                engine.try_case({"type": "boolean"}, ["true"])
            for case, instances in tried if engine.version is not None else []:
                on_case(name, len(rows), len(tried))
                texts = [text for _, forms in instances for text in forms]
                row = engine.try_case(case.schema, texts)
                taken = row.pop("accepts", [])
                width = len(texts) // len(instances) if instances else 1
                row["accepted"] = [any(taken[i : i + width]) for i in range(0, len(taken), width)]
                row |= {"name": case.name, "valid": [valid for valid, _ in instances]}
                rows.append(row)
        finally:
            engine.close()
        yield {"engine": name, "version": engine.version, "absent": engine.absent, "rows": rows}


def summarise(report: dict[str, Any]) -> dict[str, Any]:
    """The figures of one engine, from what `measure` yields.

    Returns
    -------
    dict
        ``schemas``, ``compile_errors`` with ``timeouts`` and ``crashes`` among them;
        ``invalid_accepted`` of ``invalid``, ``valid_rejected`` of ``valid`` (instances of
        schemas that compiled), ``faulty_schemas`` (with one or more of the two);
        ``median_ms`` and ``p99_ms`` of processor time to compile, None where nothing compiled.
    """
    rows = report["rows"]
    compiled = [row for row in rows if "error" not in row]
    pairs = [list(zip(row["valid"], row["accepted"], strict=True)) for row in compiled]
    flat = [pair for found in pairs for pair in found]
    times = sorted(1e3 * row["seconds"] for row in compiled)
    return {
        "engine": report["engine"],
        "version": report["version"],
        "schemas": len(rows),
        "compile_errors": len(rows) - len(compiled),
        "timeouts": sum(row.get("kind") == "time" for row in rows),
        "crashes": sum(row.get("kind") == "crash" for row in rows),
        "invalid": sum(not valid for valid, _ in flat),
        "invalid_accepted": sum(accepted and not valid for valid, accepted in flat),
        "valid": sum(valid for valid, _ in flat),
        "valid_rejected": sum(valid and not accepted for valid, accepted in flat),
        "faulty_schemas": sum(any(v != a for v, a in found) for found in pairs),
        "median_ms": statistics.median(times) if times else None,
        "p99_ms": times[min(len(times) - 1, int(0.99 * len(times)))] if times else None,
    }
