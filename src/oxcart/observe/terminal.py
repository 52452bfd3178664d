"""Sanitizes text for terminals: characters that control a terminal, or forge a line, are shown escaped.

Names, ids, reasons and log lines come from any client of the server. Escape sequences (ESC, C1, OSC)
in them could clear a screen or set a window's title. Overrides of the writing direction could swap words,
and a newline could pass for a line of ours.
"""

from __future__ import annotations

import re

#: C0 except tab and newline, DEL, C1, separators of lines and paragraphs, marks and overrides of the writing
#: direction, and halves of surrogate pairs, which have no UTF-8.
_STEERING = r"\x00-\x08\x0b-\x1f\x7f-\x9f\u061c\u200e\u200f\u2028-\u202e\u2066-\u2069\ud800-\udfff"
_IN_LINES = re.compile(f"[{_STEERING}]")
_IN_A_LINE = re.compile(rf"[{_STEERING}\t\n]")
_NAMED = {"\t": "\\t", "\n": "\\n", "\r": "\\r"}


def clean(text: str) -> str:
    """Returns a text on one line, with escapes for all characters that are not plain."""
    return text if text.isprintable() else _IN_A_LINE.sub(_escape, text)


def clean_lines(text: str) -> str:
    """Does the same for a text of several lines: tabs and newlines stay."""
    return text if text.isprintable() else _IN_LINES.sub(_escape, text)


def clean_json(text: str) -> str:
    """Does the same for JSON, where such a character is always in a string and its escape means the same."""
    return text if text.isprintable() else _IN_LINES.sub(lambda found: f"\\u{ord(found[0]):04x}", text)


def indented(text: str, by: str = "    ") -> str:
    """Returns a text whose further lines are indented, so that none passes for a first line."""
    return clean_lines(text).replace("\n", "\n" + by)


def _escape(found: re.Match[str]) -> str:
    char = found[0]
    if char in _NAMED:
        return _NAMED[char]
    return f"\\x{ord(char):02x}" if char < "\u0100" else f"\\u{ord(char):04x}"
