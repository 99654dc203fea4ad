"""Variants of the SMC loop, each in a file."""
