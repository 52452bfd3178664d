"""Text of others for people's eyes: what would steer a terminal, or forge a line, is shown as its escape.

Names, ids, reasons and log lines come from any client of the server. Escape sequences (ESC, C1, OSC)
in them could clear a screen or set a window's title, overrides of the writing direction could swap what is
read, and a newline could pass for a line of ours.
"""

from __future__ import annotations

import re

#: C0 but for tab and newline, DEL, C1, separators of lines and paragraphs, marks and overrides of the writing
#: direction, and halves of surrogate pairs, which have no UTF-8.
_STEERING = r"\x00-\x08\x0b-\x1f\x7f-\x9f\u061c\u200e\u200f\u2028-\u202e\u2066-\u2069\ud800-\udfff"
_IN_LINES = re.compile(f"[{_STEERING}]")
_IN_A_LINE = re.compile(rf"[{_STEERING}\t\n]")
_NAMED = {"\t": "\\t", "\n": "\\n", "\r": "\\r"}


def clean(text: str) -> str:
    """A text on one line, with escapes in place of all that is no plain character."""
    return text if text.isprintable() else _IN_A_LINE.sub(_escape, text)


def clean_lines(text: str) -> str:
    """The same for a text of several lines: tabs and newlines stay."""
    return text if text.isprintable() else _IN_LINES.sub(_escape, text)


def clean_json(text: str) -> str:
    """The same for JSON, in which such a character can only stand in a string: its escape means the same."""
    return text if text.isprintable() else _IN_LINES.sub(lambda found: f"\\u{ord(found[0]):04x}", text)


def indented(text: str, by: str = "    ") -> str:
    """A text whose further lines are indented, so that none of them passes for the first of another."""
    return clean_lines(text).replace("\n", "\n" + by)


def _escape(found: re.Match[str]) -> str:
    char = found[0]
    if char in _NAMED:
        return _NAMED[char]
    return f"\\x{ord(char):02x}" if char < "\u0100" else f"\\u{ord(char):04x}"
