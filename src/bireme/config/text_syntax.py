"""Grammar of the protobuf text format: characters in, a tree with positions out. Knows no field by name.

A syntax error ends the reading, but what was read before it is kept: a missing brace is best explained by the first
field that landed in the wrong message, which only the schema knows.

Source: protobuf "Text Format Language Specification", without extensions and ``Any``, which a ModelConfig has none of.
"""

from __future__ import annotations

import re
from collections.abc import Iterator
from dataclasses import dataclass, field
from typing import Final, NoReturn

MAX_DEPTH: Final = 64
"""Messages may be nested this deep; a ModelConfig has at most six levels."""

_TOKEN: Final = re.compile(
    r"""
      (?P<space>     [ \t\r\n\f\v\ufeff]+ | \#[^\n]* )
    | (?P<name>      [A-Za-z_][A-Za-z0-9_]* )
    | (?P<number>    0[xX][0-9a-fA-F]+ | (?: [0-9]+ (?:\.[0-9]*)? | \.[0-9]+ ) (?:[eE][+-]?[0-9]+)? [fF]? )
    | (?P<string>    "(?:[^"\\\n]|\\.)*" | '(?:[^'\\\n]|\\.)*' )
    | (?P<mark>      [{}<>\[\]:;,-] )
    | (?P<broken>    (?s:.) )
    """,
    re.VERBOSE,
)
_ESCAPE: Final = re.compile(
    r"\\(?:([abfnrtv\\'\"?])|([0-7]{1,3})|x([0-9a-fA-F]{1,2})|u([0-9a-fA-F]{4})|U([0-9a-fA-F]{8})|(.?))",
    re.DOTALL,
)
_SIMPLE_ESCAPES: Final = dict(zip("abfnrtv", b"\a\b\f\n\r\t\v", strict=True))
_CLOSING: Final = {"{": "}", "<": ">", "[": "]"}
# What newcomers write from habit, and what it should be.
_HINTS: Final = {
    "/": "; a comment begins with '#'",
    "=": "; a field is written 'name: value'",
    "\u201c": "; use the straight quote '\"'",
    "\u201d": "; use the straight quote '\"'",
    "\u2018": "; use the straight quote '\"'",
    "\u2019": "; use the straight quote '\"'",
}


@dataclass(slots=True)
class Node:
    """A value as written. ``kind``: name, number, string (``text`` is its content), list or message."""

    kind: str
    offset: int
    text: str = ""
    items: list[Node] = field(default_factory=list)
    entries: list[Entry] = field(default_factory=list)


@dataclass(slots=True)
class Entry:
    """A field as written: its name, where it starts, and its value."""

    name: str
    offset: int
    value: Node


@dataclass(slots=True)
class Token:
    """A word of the text; ``kind`` is name, number, string, mark, end or broken."""

    kind: str
    text: str
    offset: int


class SyntaxFault(Exception):
    """The text is not in the grammar: what is wrong, at which offset."""

    def __init__(self, offset: int, message: str) -> None:
        super().__init__(message)
        self.offset = offset
        self.message = message


def read_tree(text: str) -> tuple[Node, SyntaxFault | None]:
    """Return the message that the text holds, as far as it can be read, and the error that ended the reading."""
    root = Node("message", 0)
    try:
        _Reader(text).read_entries(root, None, 0)
    except SyntaxFault as fault:
        return root, fault
    return root, None


class _Reader:
    """Recursive descent with one token of look-ahead."""

    def __init__(self, text: str) -> None:
        self._text = text
        self._tokens = _tokens(text)
        self._token = next(self._tokens)

    def read_entries(self, message: Node, opening: Token | None, depth: int) -> None:
        """Add fields to ``message`` up to the mark that closes ``opening``, or to the end of the text."""
        if depth > MAX_DEPTH:
            raise SyntaxFault(message.offset, f"nested deeper than {MAX_DEPTH} levels")
        while not self._is_closed_by(opening):
            if self._token.kind != "name":
                self._refuse("a field name", opening, _name_hint(self._token))
            name = self._take()
            self._read_field(message, name, depth)
            if self._token.text in {";", ","} and self._token.kind == "mark":
                self._take()
        if opening is not None:
            self._take()

    def _is_closed_by(self, opening: Token | None) -> bool:
        if opening is None:
            return self._token.kind == "end"
        return self._is_mark(_CLOSING[opening.text])

    def _read_field(self, message: Node, name: Token, depth: int) -> None:
        has_colon = self._is_mark(":")
        if has_colon:
            self._take()
        elif not self._is_mark("{", "<", "["):
            self._refuse(f"':' and a value, or '{{', after '{name.text}'")
        value = self._open_value(name)
        # In the tree before it is complete: a message that nothing closes is still a message.
        message.entries.append(Entry(name.text, name.offset, value))
        self._complete(value, name, depth)
        if not has_colon and any(item.kind != "message" for item in value.items):
            raise SyntaxFault(value.offset, f"expected ':' after '{name.text}', found '['")

    def _open_value(self, name: Token) -> Node:
        """Return a scalar, or a message or list that is still empty."""
        if self._is_mark("{", "<"):
            return Node("message", self._token.offset)
        if self._is_mark("["):
            return Node("list", self._token.offset)
        return self._read_scalar(name)

    def _complete(self, value: Node, name: Token, depth: int) -> None:
        if value.kind == "message":
            self.read_entries(value, self._take(), depth + 1)
        elif value.kind == "list":
            self._read_items(value, name, depth + 1)

    def _read_items(self, node: Node, name: Token, depth: int) -> None:
        opening = self._take()
        if depth > MAX_DEPTH:
            raise SyntaxFault(node.offset, f"nested deeper than {MAX_DEPTH} levels")
        while not self._is_mark("]"):
            item = self._open_value(name)
            node.items.append(item)
            self._complete(item, name, depth)
            if self._is_mark(","):
                self._take()
                if self._is_mark("]"):
                    self._refuse("another value after ','")
            elif not self._is_mark("]"):
                self._refuse("','", opening)
        self._take()

    def _read_scalar(self, name: Token) -> Node:
        token = self._token
        if token.kind == "string":
            return self._read_string()
        if token.kind in {"name", "number"}:
            self._take()
            return Node(token.kind, token.offset, token.text)
        if not self._is_mark("-"):
            self._refuse(f"a value for '{name.text}'")
        self._take()
        if self._token.kind not in {"name", "number"}:
            self._refuse("a number after '-'")
        return Node(self._token.kind, token.offset, "-" + self._take().text)

    def _read_string(self) -> Node:
        """Strings side by side are one string."""
        node = Node("string", self._token.offset)
        content = b""
        while self._token.kind == "string":
            token = self._take()
            content += _unescape(token)
        try:
            node.text = content.decode()
        except UnicodeDecodeError as error:
            raise SyntaxFault(node.offset, f"string is not valid UTF-8: {error.reason}") from None
        return node

    def _is_mark(self, *marks: str) -> bool:
        return self._token.kind == "mark" and self._token.text in marks

    def _take(self) -> Token:
        token = self._token
        self._token = next(self._tokens)
        return token

    def _refuse(self, expected: str, opening: Token | None = None, hint: str = "") -> NoReturn:
        token = self._token
        if opening is not None:
            line, column = position(self._text, opening.offset)
            closing = f"'{_CLOSING[opening.text]}' for the '{opening.text}' opened at {line}:{column}"
            expected = closing if token.kind == "end" else f"{expected}, or {closing}"
        hint = hint or (_HINTS.get(token.text, "") if token.kind == "broken" else "")
        raise SyntaxFault(token.offset, f"expected {expected}, found {_describe(token)}{hint}")


def position(text: str, offset: int) -> tuple[int, int]:
    """Return line and column of an offset, both counted from 1, the column in characters."""
    return text.count("\n", 0, offset) + 1, offset - text.rfind("\n", 0, offset)


def _tokens(text: str) -> Iterator[Token]:
    for match in _TOKEN.finditer(text):
        kind = match.lastgroup or ""
        if kind != "space":
            yield Token(kind, match.group(), match.start())
    yield Token("end", "", len(text))


def _describe(token: Token) -> str:
    if token.kind == "end":
        return "the end of the file"
    if token.kind == "broken" and token.text in {'"', "'"}:
        return f"a string whose closing {token.text} is missing on its line"
    return f"'{token.text}'" if token.text.isprintable() else repr(token.text)


def _name_hint(token: Token) -> str:
    """Return advice on what stands where a field name is due."""
    if token.kind == "mark" and token.text in {"{", "["}:
        return "; the file is the message itself, without braces around it" if token.offset == 0 else ""
    if token.kind == "mark" and token.text in _CLOSING.values():
        return "; it closes nothing that is open"
    return "; field names have no quotes" if token.kind == "string" else ""


def _unescape(token: Token) -> bytes:
    """Return the bytes that a quoted string stands for."""
    pieces: list[bytes] = []
    text = token.text[1:-1]
    start = 0
    for match in _ESCAPE.finditer(text):
        pieces.extend((_encode(text[start : match.start()], token), _unescape_one(match, token)))
        start = match.end()
    pieces.append(_encode(text[start:], token))
    return b"".join(pieces)


def _unescape_one(match: re.Match[str], token: Token) -> bytes:
    simple, octal, hexadecimal, short, long, _ = match.groups()
    if simple is not None:
        return bytes([_SIMPLE_ESCAPES.get(simple, ord(simple))])
    code = int(octal, 8) if octal else int(hexadecimal or short or long or "-1", 16)
    if (octal or hexadecimal) and code <= 0xFF:
        return bytes([code])
    if (short or long) and code <= 0x10FFFF:
        return _encode(chr(code), token)
    raise SyntaxFault(token.offset + 1 + match.start(), f"unknown escape '{match.group()}' in a string")


def _encode(text: str, token: Token) -> bytes:
    try:
        return text.encode()
    except UnicodeEncodeError as error:
        raise SyntaxFault(token.offset, f"string is not valid Unicode: {error.reason}") from None
