"""Where converted models are kept, and how a folder gets there in one piece."""

from __future__ import annotations

import contextlib
import errno
import os
import shutil
import sys
import uuid
from collections.abc import Iterator
from pathlib import Path

from smcprog.errors import ModelError

__all__ = ["cache_dir", "locked", "new_folder", "require_space", "with_default_mode"]

_PARTIAL = ".partial-"
_LOCK_SECONDS = 1800.0


def cache_dir() -> Path:
    """Folder for what can be made again: ``$SMCPROG_CACHE``, else the platform's cache folder."""
    own = os.environ.get("SMCPROG_CACHE")
    if own:
        return Path(own).expanduser().absolute()
    xdg = os.environ.get("XDG_CACHE_HOME")
    if xdg:
        return Path(xdg).expanduser().absolute() / "smcprog"
    local = os.environ.get("LOCALAPPDATA")
    if sys.platform == "win32" and local:
        return Path(local) / "smcprog" / "Cache"
    return Path.home() / ".cache" / "smcprog"


@contextlib.contextmanager
def locked(target: Path) -> Iterator[None]:
    """Hold the lock of `target`, so that one process at a time makes it.

    The operating system drops the lock of a process that dies.

    Raises
    ------
    ModelError
        If the cache folder cannot be written, or another process holds the lock for half
        an hour.
    """
    from filelock import FileLock, Timeout

    with _explained(target.parent):
        target.parent.mkdir(parents=True, exist_ok=True)
        lock = FileLock(target.parent / f".{target.name}.lock", timeout=_LOCK_SECONDS)
        try:
            lock.acquire()
        except Timeout:
            raise ModelError(
                f"another process has been preparing {target} for {_LOCK_SECONDS / 60:.0f} "
                f"minutes (lock file {lock.lock_file}); end it and try again"
            ) from None
    try:
        yield
    finally:
        lock.release()


@contextlib.contextmanager
def new_folder(target: Path) -> Iterator[Path]:
    """Yield an empty folder that becomes `target` if the block succeeds, and goes otherwise.

    Call it with the lock held: folders that dead processes left behind are removed.

    Raises
    ------
    ModelError
        If the file system refuses: disk full, read-only, no permission.
    """
    with _explained(target.parent):
        for stale in target.parent.glob(f"{_PARTIAL}{target.name}-*"):
            shutil.rmtree(stale, ignore_errors=True)
        partial = target.parent / f"{_PARTIAL}{target.name}-{uuid.uuid4().hex[:8]}"
        partial.mkdir()
        try:
            yield partial
            shutil.rmtree(target, ignore_errors=True)
            partial.rename(target)
        finally:
            shutil.rmtree(partial, ignore_errors=True)


def require_space(folder: Path, need: int) -> None:
    """Raise `ModelError` where `folder` has less than `need` bytes free."""
    free = shutil.disk_usage(folder).free
    if free < need:
        raise ModelError(
            f"not enough disk space in {folder}: {need / 1e6:.0f} MB are needed, "
            f"{free / 1e6:.0f} MB are free; make room, or set SMCPROG_CACHE to another folder"
        )


def with_default_mode(folder: Path) -> None:
    """Give every file of `folder` the permissions that a newly made file has."""
    probe = folder / ".mode"
    probe.touch()
    mode = probe.stat().st_mode & 0o777
    probe.unlink()
    for path in folder.rglob("*"):
        if path.is_file():
            path.chmod(mode)


@contextlib.contextmanager
def _explained(folder: Path) -> Iterator[None]:
    """Turn what the file system refuses below `folder` into a `ModelError`."""
    try:
        yield
    except OSError as error:
        if error.errno == errno.ENOSPC:
            reason = "the disk is full"
        else:
            reason = error.strerror or str(error)
        raise ModelError(
            f"cannot write the model cache {folder}: {reason}; "
            "set SMCPROG_CACHE to a folder with 1 GB free that you can write to"
        ) from error
