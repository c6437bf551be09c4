"""Attainment against a judge who looks at one request after the other, and its laws."""

from __future__ import annotations

import tempfile
from pathlib import Path
from typing import Any

from hypothesis import given
from hypothesis import strategies as st
from kvtrace.analyses.slo import slo
from tests.property.test_exposure import cases
from tests.rows import write_run

Row = dict[str, Any]
TARGETS = (0, 20, 45)


@st.composite
def requests(draw: st.DrawFn) -> list[Row]:
    """Few instants: values at their targets, open and aborted requests are common."""
    rows = []
    for number in range(draw(st.integers(0, 40))):
        start = draw(st.integers(0, 20))
        end = draw(st.sampled_from((None, start + draw(st.integers(0, 50)))))
        token = draw(st.sampled_from((None, start + draw(st.integers(0, 50)))))
        status = "open" if end is None else draw(st.sampled_from(("ok", "ok", "error", "aborted")))
        if token is not None and end is not None:
            token = min(token, end)
        rows.append(
            {"op": "request", "request_id": f"r{number}", "start_ns": start, "end_ns": end,
             "first_token_ns": token, "status": status, "engine": draw(st.sampled_from(("e0", "e1"))),
             "process": "p", "observer": "api", "evidence": "shim", "span_id": number}
        )  # fmt: skip
    return rows


def judge(row: Row, rows: list[Row], metric: str, target: int) -> bool | None:
    """Whether this request was in time; None: nobody knows."""
    mine = [one for one in rows if one["engine"] == row["engine"]]
    last = max(
        one[name]
        for one in mine
        for name in ("start_ns", "end_ns", "first_token_ns")
        if one[name] is not None
    )
    waited = (last if row["end_ns"] is None else row["end_ns"]) - row["start_ns"]
    if row["status"] == "error":
        return False
    if metric == "e2e_ns":
        return waited <= target if row["status"] == "ok" else False if waited > target else None
    if row["first_token_ns"] is not None:
        return row["first_token_ns"] - row["start_ns"] <= target
    if row["status"] == "ok":
        return True if waited <= target else None
    seen = any(one["first_token_ns"] is not None for one in rows)
    return False if seen and waited > target else None


@given(requests())
@cases(8)
def test_every_request_is_judged_as_it_would_be_alone(rows: list[Row]) -> None:
    with tempfile.TemporaryDirectory() as folder:
        run = write_run(Path(folder) / "run", span=rows)
        before: dict[tuple[str, str], int] = {}
        for target in TARGETS:
            found = slo(run, ttft_ns=target, itl_p99_ns=None, e2e_ns=target, by="engine").to_dicts()
            assert len(found) == 2 * len({row["engine"] for row in rows})
            for answer in found:
                mine = [row for row in rows if row["engine"] == answer["group"]]
                judged = [judge(row, rows, answer["metric"], target) for row in mine]
                told = [one for one in judged if one is not None]
                assert (answer["requests"], answer["censored"]) == (len(told), len(mine) - len(told))
                assert answer["attained"] == (sum(told) if told else None)
                name = answer["group"], answer["metric"]
                assert sum(told) >= before.get(name, 0), "a later target is met by no fewer"
                before[name] = sum(told)
