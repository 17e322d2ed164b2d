"""Tokens to words. A token is a piece of a word, or a whole one with the blank before it."""

from pathlib import Path

BLANK = "▁".encode()


class Vocabulary:
    """The pieces of text that tokens stand for."""

    def __init__(self, path: Path) -> None:
        self.pieces = read_pieces(path.read_bytes())


def read_pieces(content: bytes) -> list[bytes]:
    """Return the pieces of a file in which each is preceded by its length, in one byte or in two."""
    pieces, position = [], 0
    while position < len(content):
        size = content[position]
        position += 1
        if size >= 128:
            size += 128 * content[position] - 128
            position += 1
        pieces.append(content[position : position + size])
        position += size
    return pieces


async def in_words(tokens, vocabulary):
    """Yield whole words, each with the blank before it, as soon as the next one begins: a letter may be in pieces."""
    word = b""
    async for token in tokens:
        piece = vocabulary.pieces[token]
        if piece.startswith(BLANK) and word:
            yield text_of(word)
            word = b""
        word += piece
    if word:
        yield text_of(word)


async def whole_text(tokens, vocabulary) -> str:
    """Return all words as one text."""
    return "".join([word async for word in in_words(tokens, vocabulary)]).strip()


def text_of(word: bytes) -> str:
    return word.replace(BLANK, b" ").decode(errors="replace")
