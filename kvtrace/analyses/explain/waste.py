"""What was moved for a request and served nothing: `waste` of its own loads."""

from __future__ import annotations

from typing import TYPE_CHECKING

from kvtrace.analyses._text import listed, many, size

if TYPE_CHECKING:
    from kvtrace.analyses.explain.gathering import Story

_KINDS = (
    ("recomputed", "computed all the same"),
    ("twice", "loaded a second time"),
    ("rounding", "there only because chunks are whole"),
)


def wasted(story: Story) -> tuple[str, str]:
    """Which of its loaded tokens were in vain, and why; nothing where none were."""
    row = story.waste
    if row is None:
        return "", ""
    token = row["token_bytes"]
    told = [
        f"{row[kind]:,}{f' ({size(row[kind] * token)})' if token else ''} "
        f"{'was' if row[kind] == 1 else 'were'} {words}"
        for kind, words in _KINDS
        if row[kind]
    ]
    if not told:
        return "", ""
    return f" Of the {many(row['moved'], 'token')} moved for it {listed(told)}.", "; waste"
