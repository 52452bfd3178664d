"""Labels in pictures: texts cut to the room of their box, as the widest of the usual fonts would draw them.

A browser picks the font, so the width of a text is not known here. The widths below are those of DejaVu Sans,
which is wider than the system fonts of the common platforms.
"""

from __future__ import annotations

import re
import unicodedata

#: Widths of characters as parts of the font's size; the other printable ones of ASCII take `_COMMON`.
_WIDTHS = (
    dict.fromkeys(" ,.;:|!'ijl", 0.33)
    | dict.fromkeys('()[]frtIJ-/\\·"`', 0.46)
    | dict.fromkeys("mMWw@%…", 1.0)
    | dict.fromkeys("ABCDGHKNOQRUVXY+<>=~#&_^", 0.8)
)
_COMMON, _OTHER, _WIDE = 0.65, 0.85, 1.3
#: How much wider a bold text is.
_BOLD = 1.13

#: Characters that XML cannot hold, not even escaped: half of a surrogate pair is one of them.
_NOT_XML = re.compile("[^\t\n\r -\ud7ff\ue000-\ufffd\U00010000-\U0010ffff]")


def drawable(text: str) -> str:
    """Returns a document with a replacement for each character that XML cannot hold."""
    return _NOT_XML.sub("\ufffd", text)


def width_of(text: str, size: float, *, bold: bool = False) -> float:
    """Returns about how wide a text is at most.

    Args:
        text: One line without control characters.
        size: The size of the font in the picture's units.
        bold: Whether the font is bold.
    """
    return sum(map(_em, text)) * size * (_BOLD if bold else 1.0)


def fitted(text: str, room: float, size: float, *, bold: bool = False) -> str:
    """Returns the text, or as much of its beginning as fits, with an ellipsis.

    Args:
        text: One line without control characters.
        room: The width that it may take.
        size: The size of the font in the picture's units.
        bold: Whether the font is bold.
    """
    if width_of(text, size, bold=bold) <= room:
        return text
    left = room - width_of("…", size, bold=bold)
    kept = 0
    for char in text:
        left -= width_of(char, size, bold=bold)
        if left < 0:
            break
        kept += 1
    return f"{text[:kept]}…"


def _em(char: str) -> float:
    if char in _WIDTHS:
        return _WIDTHS[char]
    if char.isascii():
        return _COMMON
    if unicodedata.combining(char):
        return 0.0
    return _WIDE if unicodedata.east_asian_width(char) in "WF" else _OTHER
