"""Potentials of genlm-control as factors."""
