"""SMILES: the file, and the check that ring bonds come in pairs."""

from __future__ import annotations

import dataclasses
import re

from smcprog.grammars.builtin.files import file_text
from smcprog.grammars.lark.translate import lark_grammar
from smcprog.grammars.text import Check, CheckState, GrammarText

__all__ = ["smiles_grammar"]

# An atom, a ring bond, or one sign. The second letter of Cl and Br needs no reading.
_LEXEME = re.compile(rb"\[[^\]]*\]|%[0-9]{2}|[0-9]|[A-Zbcnops*]|[().]|[\-=#$:/\\]")
_UNFINISHED = re.compile(rb"(?:\[[^\]]*|%[0-9]?)\Z")
_DIRECTIONS = (b"/", b"\\")


def smiles_grammar() -> GrammarText:
    """OpenSMILES; valences, aromaticity and stereo centres are not looked at."""
    made = lark_grammar(file_text("smiles"), "smiles")
    return dataclasses.replace(
        made, covers="SMILES, but for the pairing of ring bonds", checks=(*made.checks, RingCheck())
    )


class RingCheck(Check):
    """That every ring bond joins two atoms, which are not joined already."""

    description = (
        "ring bonds come in pairs, with one bond symbol, between atoms that are not bonded yet"
    )
    when = "at every ring bond, and at the end"

    def begin(self) -> CheckState:
        return _Molecule()


@dataclasses.dataclass(frozen=True)
class _Molecule(CheckState):
    """What a SMILES text says so far.

    Attributes
    ----------
    rest : bytes
        A bracket atom or a ring number that is not complete.
    atoms : int
        How many there are; they are numbered from 0.
    at : int
        The atom that the next one is bonded to, or -1.
    branches : tuple of int
        `at` before each open parenthesis.
    bond : bytes
        Bond symbol that was just read, or nothing.
    rings : tuple of (number, atom, bond)
        Open ring bonds.
    bonds : frozenset of (atom, atom)
        The smaller atom first.
    """

    rest: bytes = b""
    atoms: int = 0
    at: int = -1
    branches: tuple[int, ...] = ()
    bond: bytes = b""
    rings: tuple[tuple[int, int, bytes], ...] = ()
    bonds: frozenset[tuple[int, int]] = frozenset()

    def feed(self, data: bytes) -> CheckState | None:
        text = self.rest + data
        unfinished = _UNFINISHED.search(text)
        rest = unfinished[0] if unfinished else b""
        atoms, at, branches, bond = self.atoms, self.at, self.branches, self.bond
        rings = {number: (atom, symbol) for number, atom, symbol in self.rings}
        bonds = set(self.bonds)
        for lexeme in _LEXEME.findall(text, 0, len(text) - len(rest)):
            if lexeme == b"(":
                branches = (*branches, at)
            elif lexeme == b")":
                branches, at = branches[:-1], branches[-1]
            elif lexeme == b".":
                at = -1
            elif lexeme in b"-=#$:/\\":
                bond = lexeme
            elif lexeme[:1].isdigit() or lexeme[:1] == b"%":
                number = int(lexeme.lstrip(b"%"))
                if number not in rings:
                    rings[number] = (at, bond)
                else:
                    other, symbol = rings.pop(number)
                    pair = (min(at, other), max(at, other))
                    if at == other or pair in bonds or not _agree(symbol, bond):
                        return None
                    bonds.add(pair)
                bond = b""
            else:
                if at >= 0:
                    bonds.add((at, atoms))
                at, atoms, bond = atoms, atoms + 1, b""
        open_rings = tuple((number, *ring) for number, ring in rings.items())
        return _Molecule(rest, atoms, at, branches, bond, open_rings, frozenset(bonds))

    def complete(self) -> bool:
        return not self.rings


def _agree(one: bytes, other: bytes) -> bool:
    """Whether the symbols at the two ends of a ring bond can mean one bond."""
    if not one or not other or one == other:
        return True
    return one in _DIRECTIONS and other in _DIRECTIONS
