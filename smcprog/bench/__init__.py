"""Benchmarks that ship: each measures two things in turn and prints their ratio."""
