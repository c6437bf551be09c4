"""What of the contract was broken for a request, and under which name its content lay there: few words."""

from __future__ import annotations

from typing import TYPE_CHECKING

from kvtrace.analyses._text import many, visible

if TYPE_CHECKING:
    from kvtrace.analyses.explain.gathering import Row, Story

_MOST = 2
_READ = "read_within_ttl"
"""Said by `hit` already, with its numbers, where that is asked."""


def broken(story: Story, *, beside_hit: bool = False) -> tuple[str, str]:
    """Which invariants of `lock_contract` were violated for it; nothing where none was.

    beside_hit: the sentence before it is that of `hit`, which says that what was found was gone.
    """
    is_said = beside_hit and story.hit is not None and story.hit["still_there"] in ("expired", "vanished")
    by_name: dict[str, list[Row]] = {}
    for row in story.broken:
        if row["invariant"] != _READ or not is_said:
            by_name.setdefault(row["invariant"], []).append(row)
    if not by_name:
        return "", ""
    told = [_said(name, rows) for name, rows in list(by_name.items())[:_MOST]]
    more = sum(len(rows) for rows in list(by_name.values())[_MOST:])
    rest = f"; and {many(more, 'more violation')}" if more else ""
    return f" A contract was broken: {'; '.join(told)}{rest}.", "; lock_contract"


def other_key(story: Story) -> str:
    """The field in which the key that it asked for differs from the one that its content had.

    Of a pair of engines `compatibility` names one request; what it says of that one may not be so of another.
    """
    mine = [row for row in story.unlike if row["request_id"] == story.request["request_id"]]
    fields = {(row["field"], row["writer"], row["reader"]) for row in mine}
    if len(fields) != 1:
        return ""
    ((field, writer, reader),) = fields
    return f" ({visible(field)}: {visible(writer)} written, {visible(reader)} asked for)"


def _said(name: str, rows: list[Row]) -> str:
    """The first of its violations, how often, and whether it was bound to happen."""
    times = f", {len(rows):,} times" if len(rows) > 1 else ""
    mild = ", a warning" if {row["severity"] for row in rows} == {"warning"} else ""
    return f"{visible(rows[0]['detail'], 200)} ({name}{times}{mild})"
