"""Lark grammars: put into the words of the mask engine, and checked by Lark for the rest."""
