"""The command line, ``smcprog``. Models and torch are imported only by what needs them."""

from __future__ import annotations

from smcprog.cli.app import app, main

__all__ = ["app", "main"]
