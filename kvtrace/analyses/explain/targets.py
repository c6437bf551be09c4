"""Whether a request was served within the targets that were stated."""

from __future__ import annotations

from typing import TYPE_CHECKING

from kvtrace.analyses._text import duration, listed

if TYPE_CHECKING:
    from kvtrace.analyses.explain.gathering import Row, Story

_WORDS = {
    "ttft_ns": "to its first token",
    "itl_p50_ns": "between its tokens in the median",
    "itl_p99_ns": "between its tokens at the 99th percentile",
    "e2e_ns": "to its end",
}
_KINDS = ((False, "missed"), (True, "kept"))


def targets(story: Story) -> tuple[str, str]:
    """Which of them it missed and which it kept; nothing where none was stated."""
    if not story.targets:
        return "", ""
    told = [
        f"it {word} {listed([_said(row) for row in rows])}"
        for kept, word in _KINDS
        if (rows := [row for row in story.targets if row["in_time"] is kept])
    ]
    unknown = [_WORDS[row["metric"]] for row in story.targets if row["in_time"] is None]
    told += [f"whether it kept the one {listed(unknown)} is not known"] if unknown else []
    return f" Of its targets {'; '.join(told)}.", "; slo"


def _said(row: Row) -> str:
    took = f" ({duration(row['value_ns'])})" if row["value_ns"] is not None else ""
    return f"{duration(row['target_ns'])} {_WORDS[row['metric']]}{took}"
