"""Draws pictures whose text is known: a line of text in three sizes, and a receipt, upright and on its head."""

from __future__ import annotations

from collections.abc import Callable

from PIL import Image, ImageDraw, ImageFont

LINES = (("Hello World 2026", 20, 40), ("Invoice No. 4711", 90, 32), ("TOTAL: 129.50 EUR", 145, 28))
"""The sample: text, top edge and letter height in pixels."""

SHOP = ("Bistro Lyra", "12 Harbour Street")
ITEMS = (("2 x Cappuccino", "7.80"), ("1 x Lemon tart", "4.60"), ("1 x Sandwich", "6.40"))
TOTAL = ("TOTAL EUR", "18.80")
THANKS = "Thank you for your visit!"
PAPER, INK, DESK = (250, 248, 240), (40, 40, 48), (120, 92, 70)


def draw_sample() -> Image.Image:
    """Return three lines of text on white."""
    picture = Image.new("RGB", (640, 200), "white")
    draw = ImageDraw.Draw(picture)
    for text, top, height in LINES:
        draw.text((20, top), text, fill="black", font=ImageFont.load_default(size=height))
    return picture


def draw_receipt() -> Image.Image:
    """Return a receipt that lies a little askew on a desk."""
    paper = Image.new("RGBA", (420, 500), PAPER)
    draw = ImageDraw.Draw(paper)

    def write(text: str, x: int, y: int, size: int, anchor: str = "la") -> None:
        draw.text((x, y), text, fill=INK, font=ImageFont.load_default(size=size), anchor=anchor)

    write(SHOP[0], 210, 40, 40, "ma")
    write(SHOP[1], 210, 96, 20, "ma")
    for number, (item, price) in enumerate((*ITEMS, TOTAL)):
        is_total = number == len(ITEMS)
        y, size = 160 + 52 * number + 24 * is_total, 30 if is_total else 24
        if is_total:
            draw.line((36, y - 18, 384, y - 18), fill=INK, width=2)
        write(item, 36, y, size)
        write(price, 384, y, size, "ra")
    write(THANKS, 210, 430, 22, "ma")
    askew = paper.rotate(4, Image.Resampling.BICUBIC, expand=True)
    picture = Image.new("RGB", (560, 608), DESK)
    picture.paste(askew, ((560 - askew.width) // 2, (608 - askew.height) // 2), askew)
    return picture


PICTURES: dict[str, Callable[[], Image.Image]] = {
    "sample.png": draw_sample,
    "receipt.png": draw_receipt,
    "receipt_turned.png": lambda: draw_receipt().transpose(Image.Transpose.ROTATE_180),
}
