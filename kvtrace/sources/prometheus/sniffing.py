"""Whether a file is a page of metrics: most of its lines are samples and what describes them."""

from __future__ import annotations

import re

BOM = b"\xef\xbb\xbf"
_LINES = 400
_DESCRIBED = re.compile(rb'#\s*(?:TYPE|HELP|UNIT)\s+(?:[a-zA-Z_:][\w:]*|"[^"]+")(?:\s|$)')
_NUMBER = rb"[+-]?(?:(?:\d+\.?\d*|\.\d+)(?:[eE][+-]?\d+)?|inf(?:inity)?|nan)"
_SAMPLE = re.compile(
    rb"(?:[a-zA-Z_:][\w:]*\s*(?P<labels>\{.*\})?|\{\s*\".*\})\s*(?<=[\s}])(?:" + _NUMBER + rb"(?:\s|$)|\{)",
    re.IGNORECASE,
)


def looks_like(head: bytes) -> bool:
    """Whether a file that begins so holds pages; HTML, JSON and summaries for people are none."""
    text = head.removeprefix(BOM).lstrip()
    if not text or text.startswith(b"<") or b"\0" in text:
        return False
    found = text.split(b"\n")
    if len(found) > 1:
        found.pop()  # empty, or cut where the head ends
    rows = [line.strip() for line in found[:_LINES] if line.strip()]
    if rows == [b"# EOF"]:
        return True
    described = sum(_DESCRIBED.match(row) is not None for row in rows)
    comments = sum(row.startswith(b"#") for row in rows) - described
    samples = [match for row in rows if not row.startswith(b"#") and (match := _SAMPLE.match(row))]
    labelled = any(match["labels"] or match[0].startswith(b"{") for match in samples)
    # a number behind a word is not enough: without a description some sample has labels
    return bool(described or labelled) and 2 * (described + len(samples)) > len(rows) - comments
