r"""Regular expressions: read in the user's dialect, written in the mask engine's.

The mask engine reads the syntax of Rust's `regex` crate. It looks like Python's and
ECMA-262's, but the same text may mean something else there: ``[a&&b]`` is an intersection,
``[+--]`` a difference, ``a++`` a repeated repeat, ``.`` and ``\s`` other sets of characters.
So a pattern is parsed here, and either written down with the meaning it has in its own
dialect or refused with its position.
"""

from __future__ import annotations

import dataclasses
import functools
import string
from typing import NoReturn

from smcprog.grammars.engine import byte_tokenizer, compile_text

__all__ = [
    "ECMA",
    "LARK",
    "PYTHON",
    "Dialect",
    "Group",
    "Item",
    "RegexError",
    "escape",
    "full_match",
    "parse",
    "search",
    "write",
]

MAX_DEPTH = 100  # nested groups

MAX_REPEAT = 100_000  # of one counted repeat

_WIDE_SPACE = r"\x{a0}\x{1680}\x{2000}-\x{200a}\x{2028}\x{2029}\x{202f}\x{205f}\x{3000}"
PYTHON_SPACE = r"\t-\r\x1c-\x20\x{85}" + _WIDE_SPACE
ECMA_SPACE = r"\t-\r\x20\x{feff}" + _WIDE_SPACE


class RegexError(ValueError):
    """A pattern that is invalid or has no equivalent.

    Attributes
    ----------
    position : int
        Index of the offending character in the pattern.
    reason : str
    """

    def __init__(self, reason: str, position: int) -> None:
        super().__init__(f"{reason} (position {position})")
        self.position = position
        self.reason = reason


@dataclasses.dataclass(frozen=True)
class Dialect:
    r"""Where dialects differ.

    Attributes
    ----------
    digit, word, space : str
        Contents of the character class of ``\d``, ``\w`` and ``\s``.
    newlines : str
        Characters that ``.`` leaves out.
    ecma : bool
        ECMA-262 rather than Python.
    lazy : bool
        Whether lazy quantifiers are the same language (they are where the whole text must
        match, and are not where a lexer takes the shortest match).
    """

    digit: str
    word: str
    space: str
    newlines: str
    ecma: bool = False
    lazy: bool = True


PYTHON = Dialect(r"\p{Nd}", r"\p{L}\p{N}_", PYTHON_SPACE, r"\n")
LARK = dataclasses.replace(PYTHON, lazy=False)
ECMA = Dialect("0-9", "0-9A-Za-z_", ECMA_SPACE, r"\n\r\x{2028}\x{2029}", ecma=True)


def full_match(pattern: str, dialect: Dialect = PYTHON, flags: str = "") -> str:
    """The pattern in the mask engine's syntax, without anchors; the whole text must match.

    Raises
    ------
    RegexError
    """
    return write(parse(pattern, dialect, flags))


def search(pattern: str, dialect: Dialect = ECMA) -> str:
    """A pattern for whole texts that matches where `pattern` is found somewhere in them.

    Raises
    ------
    RegexError
    """
    return write(parse(pattern, dialect, anywhere="(?s:.*)"))


def escape(text: str) -> str:
    """A pattern in the mask engine's syntax that matches exactly a text."""
    return "".join(map(_literal, text))


def parse(
    pattern: str, dialect: Dialect = PYTHON, flags: str = "", anywhere: str | None = None
) -> Group:
    """Syntax tree of a pattern that the whole text must match, anchors resolved.

    Parameters
    ----------
    pattern : str
    dialect : Dialect
    flags : str
        Of ``i`` and ``s``.
    anywhere : str, optional
        What may stand where the pattern is not anchored; by default nothing.

    Raises
    ------
    RegexError
    """
    parser = _Parser(pattern, dialect, flags)
    tree = parser.parse()
    _strip_anchors(tree, left=True, anywhere=anywhere)
    _strip_anchors(tree, left=False, anywhere=anywhere)
    if parser.ignore_case:
        tree.opener = "(?i:"
        tree = Group([[Item(0, group=tree)]], "")
    return tree


# ---------------------------------------------------------------------- syntax tree


@dataclasses.dataclass
class Item:
    """One element of a sequence: a character set, or a group, or an anchor.

    Attributes
    ----------
    position : int
        In the pattern.
    text : str
        The character set in Rust syntax.
    source : str
        The character set as it was written.
    group : Group or None
    anchor : str
        "^" or "$".
    quantifier : str
        In Rust syntax.
    """

    position: int
    text: str = ""
    source: str = ""
    group: Group | None = None
    anchor: str = ""
    quantifier: str = ""


@dataclasses.dataclass
class Group:
    """Alternatives, each a sequence; `opener` is how the group starts in Rust syntax."""

    branches: list[list[Item]]
    opener: str = "(?:"


def write(group: Group) -> str:
    """The contents of a group in Rust syntax.

    Raises
    ------
    RegexError
        Where an anchor is left that no edge of the text satisfies.
    """
    branches = []
    for branch in group.branches:
        parts = []
        for item in branch:
            if item.anchor:
                raise RegexError(
                    f"an anchor ({item.anchor}) that is not at the "
                    f"{'start' if item.anchor == '^' else 'end'} of the pattern is not supported",
                    item.position,
                )
            inner = item.text
            if item.group is not None:
                inner = f"{item.group.opener}{write(item.group)})"
            parts.append(inner + item.quantifier)
        branches.append("".join(parts))
    return "|".join(branches)


def _has_anchor(group: Group, kind: str) -> bool:
    return any(
        item.anchor == kind or (item.group is not None and _has_anchor(item.group, kind))
        for branch in group.branches
        for item in branch
    )


def _strip_anchors(group: Group, *, left: bool, anywhere: str | None) -> None:
    """Remove anchors that the edge of the text satisfies; put `anywhere` where none is."""
    kind = "^" if left else "$"
    for branch in group.branches:
        anchored = False
        while branch and branch[0 if left else -1].anchor == kind:
            edge = branch.pop(0 if left else -1)
            if edge.quantifier:
                raise RegexError("a quantifier on an anchor is not supported", edge.position)
            anchored = True
        if anchored:
            continue
        edge_item = branch[0 if left else -1] if branch else None
        if edge_item is not None and edge_item.group is not None and not edge_item.quantifier:
            inner = edge_item.group
            if _has_anchor(inner, kind):
                _strip_anchors(inner, left=left, anywhere=anywhere)
                continue
        if anywhere is not None:
            branch.insert(0 if left else len(branch), Item(0, anywhere))


# ---------------------------------------------------------------------- parser


class _Parser:
    def __init__(self, pattern: str, dialect: Dialect, flags: str) -> None:
        self.s = pattern
        self.d = dialect
        self.at = 0
        self.depth = 0
        self.dotall = "s" in flags
        self.ignore_case = "i" in flags
        for flag in flags:
            self._check_flag(flag, 0)

    def parse(self) -> Group:
        tree = self._group("")
        if self.at < len(self.s):
            self._fail("unmatched )", self.at)
        return tree

    def _fail(self, reason: str, position: int) -> NoReturn:
        raise RegexError(reason, position)

    def _peek(self, text: str) -> bool:
        return self.s.startswith(text, self.at)

    def _group(self, opener: str) -> Group:
        branches: list[list[Item]] = [[]]
        while self.at < len(self.s) and not self._peek(")"):
            if self._peek("|"):
                self.at += 1
                branches.append([])
                continue
            start = self.at
            item = self._atom()
            if item is not None:
                item.source = self.s[start : self.at]
                self._quantify(item)
                branches[-1].append(item)
        return Group(branches, opener)

    def _atom(self) -> Item | None:
        start = self.at
        c = self.s[start]
        if c == "(":
            return self._parenthesis()
        self.at += 1
        if c == "[":
            return Item(start, self._char_class(start))
        if c == ".":
            return Item(start, "(?s:.)" if self.dotall else f"[^{self.d.newlines}]")
        if c in "^$":
            return Item(start, anchor=c)
        if c == "\\":
            return self._escape(start)
        if c in "*+?" or (c == "{" and self._repeat_at(start) is not None):
            self._fail("nothing to repeat", start)
        return Item(start, _literal(c))

    # -- groups and flags

    def _parenthesis(self) -> Item | None:
        start = self.at
        self.depth += 1
        if self.depth > MAX_DEPTH:
            self._fail(f"more than {MAX_DEPTH} nested groups", start)
        self.at += 1
        opener, dotall = "(?:", self.dotall
        if self._peek("?"):
            opener, done = self._special_group(start)
            if done:
                self.depth -= 1
                return None
        group = self._group(opener)
        if not self._peek(")"):
            self._fail("missing ), unterminated group", start)
        self.at += 1
        self.depth -= 1
        self.dotall = dotall
        return Item(start, group=group)

    def _special_group(self, start: int) -> tuple[str, bool]:
        """Opener of a ``(?…`` group, and whether it is complete already."""
        refused = {
            "?=": "look-ahead",
            "?!": "negative look-ahead",
            "?<=": "look-behind",
            "?<!": "negative look-behind",
            "?P=": "a back-reference",
            "?(": "a conditional group",
            "?>": "an atomic group",
        }
        for text, what in refused.items():
            if self._peek(text):
                self._fail(f"{what} is not supported", start)
        if self._peek("?#"):
            end = self.s.find(")", self.at)
            if end < 0:
                self._fail("missing ), unterminated comment", start)
            self.at = end + 1
            return "", True
        if self._peek("?:"):
            self.at += 2
            return "(?:", False
        if self._peek("?P<") or self._peek("?<"):
            end = self.s.find(">", self.at)
            name = self.s[self.s.index("<", self.at) + 1 : end] if end > 0 else ""
            if not name.isidentifier():
                self._fail("bad group name", start)
            self.at = end + 1
            return "(?:", False
        return self._flag_group(start)

    def _flag_group(self, start: int) -> tuple[str, bool]:
        end = self.at + 1
        while end < len(self.s) and (self.s[end].isalpha() or self.s[end] == "-"):
            end += 1
        names = self.s[self.at + 1 : end]
        on, _, off = names.partition("-")
        if end >= len(self.s) or self.s[end] not in ":)" or not (on or off):
            self._fail("unknown extension of a group", start)
        for flag in on + off:
            self._check_flag(flag, start)
        if "s" in on:
            self.dotall = True
        if "s" in off:
            self.dotall = False
        kept = "".join(f for f in on if f == "i") + ("-i" if "i" in off else "")
        self.at = end + 1
        if self.s[end] == ")":
            if start != 0:
                self._fail("flags must be at the start of the pattern", start)
            if off:
                self._fail("flags cannot be turned off here", start)
            self.ignore_case = self.ignore_case or "i" in on
            return "", True
        return f"(?{kept}:" if kept else "(?:", False

    def _check_flag(self, flag: str, position: int) -> None:
        reasons = {
            "m": "the flag m (anchors at every line) is not supported",
            "x": "the flag x (verbose patterns) is not supported",
            "a": "the flag a (ASCII classes) is not supported; write [0-9], [0-9A-Za-z_]",
            "l": "the flag l (locale) is not supported",
            "L": "the flag L (locale) is not supported",
        }
        if flag in reasons:
            self._fail(reasons[flag], position)
        if flag not in "isu":
            self._fail(f"unknown flag {flag}", position)

    # -- quantifiers

    def _repeat_at(self, at: int) -> tuple[str, int] | None:
        """A counted repeat that starts at `at`: its Rust form and end; None if it is text."""
        end = self.s.find("}", at)
        if end < 0:
            return None
        low, comma, high = self.s[at + 1 : end].partition(",")
        if any(part and not _is_number(part) for part in (low, high)) or not (low or comma):
            return None
        if not low:
            if self.d.ecma or not high:
                self._fail("{,n} is a repeat in some dialects and text in others; write {0,n}", at)
            low = "0"
        if max(int(low), int(high or 0)) > MAX_REPEAT:
            self._fail(f"a repeat of more than {MAX_REPEAT} times", at)
        if high and int(low) > int(high):
            self._fail("min repeat greater than max repeat", at)
        return f"{{{int(low)}{comma}{int(high) if high else ''}}}", end + 1

    def _quantify(self, item: Item) -> None:
        start = self.at
        if start >= len(self.s):
            return
        c = self.s[start]
        if c in "*+?":
            item.quantifier = c
            self.at += 1
        elif c == "{":
            repeat = self._repeat_at(start)
            if repeat is None:
                return
            item.quantifier, self.at = repeat
        else:
            return
        if self._peek("?"):
            if not self.d.lazy:
                self._fail(
                    "a lazy quantifier is not supported: what it leaves out depends on what "
                    'follows; exclude the delimiter instead, as in "[^"]*"',
                    self.at,
                )
            self.at += 1
        elif self._peek("+"):
            self._fail("a possessive quantifier is not supported", self.at)
        if self.at < len(self.s) and (
            self.s[self.at] in "*+?"
            or (self.s[self.at] == "{" and self._repeat_at(self.at) is not None)
        ):
            self._fail("multiple repeat", self.at)

    # -- escapes

    def _escape(self, start: int) -> Item:
        if self.at >= len(self.s):
            self._fail("a backslash at the end", start)
        c = self.s[self.at]
        if c in "dws":
            self.at += 1
            return Item(start, f"[{self._set(c)}]")
        if c in "DWS":
            self.at += 1
            return Item(start, f"[^{self._set(c.lower())}]")
        if c in "bB":
            self._fail(f"a word boundary (\\{c}) is not supported", start)
        if not self.d.ecma and c in "AZ":
            self.at += 1
            return Item(start, anchor="^" if c == "A" else "$")
        if c in "pP":
            return Item(start, self._property(start))
        if c.isdigit() and c != "0":
            self._fail("a back-reference is not supported", start)
        if c == "k" and self._peek("k<"):
            self._fail("a back-reference is not supported", start)
        return Item(start, _literal(self._char_escape(start)))

    def _set(self, name: str) -> str:
        return {"d": self.d.digit, "w": self.d.word, "s": self.d.space}[name]

    def _property(self, start: int) -> str:
        kind = self.s[self.at]
        end = self.s.find("}", self.at) if self._peek(kind + "{") else -1
        if end < 0:
            self._fail(rf"\{kind} needs a property name in braces, as in \p{{Lu}}", start)
        name = self.s[self.at + 2 : end]
        if not _is_property(name):
            self._fail(rf"there is no Unicode property {name!r}", start)
        self.at = end + 1
        return rf"\{kind}{{{name}}}"

    def _char_escape(self, start: int) -> str:
        """The character that an escape stands for; `at` is on the letter after the backslash."""
        c = self.s[self.at]
        self.at += 1
        simple = {"n": "\n", "r": "\r", "t": "\t", "f": "\f", "v": "\v"}
        if c in simple:
            return simple[c]
        if c == "0":
            if self.at < len(self.s) and self.s[self.at].isdigit():
                self._fail("an octal escape is not supported; write \\xHH", start)
            return "\0"
        if c == "x":
            return chr(self._hex(2, start))
        if c == "u":
            return self._unicode(start)
        if not self.d.ecma and c == "U":
            return self._scalar(self._hex(8, start), start)
        if not self.d.ecma and c == "a":
            return "\a"
        if self.d.ecma and c == "c" and self.s[self.at : self.at + 1] in set(string.ascii_letters):
            self.at += 1
            return chr(ord(self.s[self.at - 1]) % 32)
        if c.isalnum():
            self._fail(f"unknown escape \\{c}", start)
        return c

    def _hex(self, digits: int, start: int) -> int:
        text = self.s[self.at : self.at + digits]
        if len(text) < digits or any(c not in string.hexdigits for c in text):
            self._fail(f"an escape that needs {digits} hexadecimal digits", start)
        self.at += digits
        return int(text, 16)

    def _unicode(self, start: int) -> str:
        if self._peek("{"):
            end = self.s.find("}", self.at)
            text = self.s[self.at + 1 : end] if end > 0 else ""
            if not text or len(text) > 6 or any(c not in string.hexdigits for c in text):
                self._fail("bad \\u{…} escape", start)
            self.at = end + 1
            return self._scalar(int(text, 16), start)
        code = self._hex(4, start)
        if 0xD800 <= code < 0xDC00 and self._peek("\\u"):
            self.at += 2
            low = self._hex(4, start)
            if 0xDC00 <= low < 0xE000:
                code = 0x10000 + ((code - 0xD800) << 10) + (low - 0xDC00)
        return self._scalar(code, start)

    def _scalar(self, code: int, start: int) -> str:
        if 0xD800 <= code < 0xE000 or code > 0x10FFFF:
            self._fail(f"U+{code:04X} is not a character", start)
        return chr(code)

    # -- character classes

    def _char_class(self, start: int) -> str:
        negated = self._peek("^")
        self.at += negated
        if self._peek("]") and self.d.ecma:
            self._fail("an empty character class; to mean a bracket write \\]", start)
        parts: list[str] = []
        first = True
        while first or not self._peek("]"):
            if self.at >= len(self.s):
                self._fail("unterminated character class", start)
            first = False
            if self._peek("[:") and ":]" in self.s[self.at : self.s.find("]", self.at + 1) + 1]:
                self._fail("a POSIX class such as [:alpha:] is not supported", self.at)
            parts.append(self._class_item(start))
        self.at += 1
        return f"[{'^' if negated else ''}{''.join(parts)}]"

    def _class_item(self, start: int) -> str:
        at = self.at
        low, code = self._class_atom(start)
        if not self._peek("-") or self.s[self.at + 1 : self.at + 2] in ("]", ""):
            return low
        self.at += 1
        high_at = self.at
        high, high_code = self._class_atom(start)
        if code is None or high_code is None:
            if not self.d.ecma:
                self._fail("a class such as \\d cannot be the end of a range", at)
            return low + r"\-" + high
        if code > high_code:
            self._fail("bad character range", high_at)
        return f"{low}-{high}"

    def _class_atom(self, start: int) -> tuple[str, int | None]:
        """One member: its Rust form, and its code if it is a single character."""
        if self.at >= len(self.s):
            self._fail("unterminated character class", start)
        c = self.s[self.at]
        here = self.at
        self.at += 1
        if c == "\\":
            if self.at >= len(self.s):
                self._fail("a backslash at the end", here)
            name = self.s[self.at]
            if name in "dws":
                self.at += 1
                return self._set(name), None
            if name in "DWS":
                self.at += 1
                return f"[^{self._set(name.lower())}]", None
            if name in "pP":
                return self._property(here), None
            if name == "b":
                self.at += 1
                c = "\b"
            elif name.isdigit() and name != "0":
                self._fail("an octal escape is not supported; write \\xHH", here)
            else:
                c = self._char_escape(here)
        return _literal(c), ord(c)


@functools.lru_cache(maxsize=256)
def _is_property(name: str) -> bool:
    if not name.isascii() or not name.replace("_", "").replace("=", "").isalnum():
        return False
    return not compile_text(rf"start: /\p{{{name}}}/", byte_tokenizer()).is_error()


def _is_number(text: str) -> bool:
    return text.isascii() and text.isdigit()


def _literal(c: str) -> str:
    """One character in Rust syntax, inside or outside a class."""
    if c in string.ascii_letters + string.digits + "_":
        return c
    if c < " " or "\x7f" <= c <= "\xa0" or c in "\u2028\u2029\ufeff":
        return f"\\x{{{ord(c):x}}}"
    if c in "\\.+*?()|[]{}^$#&-~/":
        return "\\" + c
    return c
