"""Scores of texts as factors."""
