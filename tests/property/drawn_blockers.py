"""Random small runs with holds, and with blocks on the queues: what `blockers` reads beside exposure.

e0/scheduler   queue(capacity) r1   |--------|       blocks 6, free 2; sometimes nobody counted them
e0/scheduler   hold r0           |-------|----       closed or open, 0 to 6 blocks, sometimes unknown
"""

from dataclasses import replace

from hypothesis import strategies as st
from tests.property import drawn, drawn_rows
from tests.property.drawn_rows import LATEST_NS, Clock, Row


@st.composite
def runs(draw: st.DrawFn) -> drawn.Run:
    """A drawn run with holds of requests of it and of others."""
    run = draw(drawn.runs())
    engines = sorted({row["engine"] for row in run.spans})
    ids = sorted({row["request_id"] for row in run.spans if row["op"] == "request"})
    clock = Clock(tuple(draw(st.lists(st.integers(0, LATEST_NS), min_size=4, max_size=9))))
    spans = [_counted(row, draw) for row in run.spans]
    size = draw(st.integers(0, 6))
    for number in range(size):
        kept = draw(hold(clock, engines, (*ids, "gone")))
        spans.append({"run_id": "r", "span_id": len(run.spans) + number, **kept})
    for number in range(draw(st.integers(0, 3))):
        lack = draw(drawn_rows.queue(clock, engines, ids))
        row = {"run_id": "r", "span_id": len(run.spans) + size + number, **lack, "reason": "capacity"}
        spans.append(_counted(row, draw))
    return replace(run, spans=tuple(spans))


def _counted(row: Row, draw: st.DrawFn) -> Row:
    """A queue for capacity, most often with its blocks."""
    if row["op"] != "queue" or row.get("reason") != "capacity":
        return row
    blocks = {"blocks": draw(st.sampled_from((0, 3, 5, 5, 6, 9, None)))}
    return {**row, **blocks, "free_blocks": draw(st.sampled_from((0, 0, 1, 3, None)))}


@st.composite
def hold(draw: st.DrawFn, clock: Clock, engines: list[str], ids: tuple[str, ...]) -> Row:
    """One hold."""
    row: Row = {"op": "hold", "request_id": draw(st.sampled_from((*ids, None)))}
    row["blocks"] = draw(st.sampled_from((0, 1, 2, 3, 4, 6, 6, None)))
    row["reason"] = draw(st.sampled_from(("load", "store", "store", "unknown", None)))
    seen = draw(drawn_rows.seen_by(engines, ("scheduler",)))
    return {**row, **seen, **draw(drawn_rows.interval(clock))}
