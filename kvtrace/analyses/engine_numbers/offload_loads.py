"""Loads of vLLM's own offloading: its load time is the copies' alone, without their wait for each other.

order   |-- rank 0 [====] --|-->  in use          rank 0 + rank 1: vLLM adds the times of its workers
        |-- rank 1  [====] -|
"""

from __future__ import annotations

from typing import TYPE_CHECKING

import polars as pl

from kvtrace.analyses.engine_numbers._known import inside, total
from kvtrace.analyses.engine_numbers._number import Cause, Number, in_words, instrument, not_reported
from kvtrace.analyses.engine_numbers._vllm import SECOND_NS, slack_ns, whole

if TYPE_CHECKING:
    from kvtrace.analyses.engine_numbers._known import Known

BYTES = "vllm:kv_offload_load_bytes_total"
TIME = "vllm:kv_offload_load_time_total"
_LOADS = """
WITH part AS (
    SELECT request_id, transfer_id, start_ns, end_ns, max(end_ns) OVER (PARTITION BY request_id, transfer_id
        ORDER BY start_ns, end_ns ROWS BETWEEN UNBOUNDED PRECEDING AND 1 PRECEDING) AS before_ns
    FROM copy WHERE op = 'load' AND tier_to = 'gpu' AND transfer_id IS NOT NULL
), rank AS (
    SELECT request_id, transfer_id, sum(end_ns::HUGEINT - start_ns) AS copies_ns,
        sum(greatest(0, end_ns::HUGEINT - greatest(start_ns, coalesce(before_ns, start_ns)))) AS busy_ns
    FROM part GROUP BY request_id, transfer_id
)
SELECT start_ns, end_ns, bytes, TRY(usable_ns - submit_ns) AS whole_ns,
    TRY_CAST(usable_ns::HUGEINT - submit_ns - coalesce(busy_ns, end_ns - start_ns) AS BIGINT) AS around_ns,
    TRY_CAST(copies_ns - busy_ns AS BIGINT) AS again_ns
FROM transfer t LEFT JOIN rank r
    ON r.request_id IS NOT DISTINCT FROM t.request_id AND r.transfer_id = t.transfer_id
WHERE op = 'load' AND tier_to = 'gpu' AND starts_with(component, 'vllm.offloading') AND end_ns IS NOT NULL
"""


def offload_loads(known: Known) -> list[Number]:
    """Bytes that came back, and how long requests had their loads under way."""
    loads = pl.DataFrame(known.connection.sql(_LOADS).to_arrow_table())
    if not loads.height and known.reported.count(TIME) is None:
        return []
    found = []
    for name, column, unit, scale, fact in (
        (BYTES, "bytes", "bytes", 1, "transfer_bytes"),
        (TIME, "whole_ns", "ns", SECOND_NS, "load_submit_and_usable"),
    ):
        count = known.reported.count(name)
        reported = None if count is None else whole(count.value * scale)
        rows = inside(loads, count)
        around = total(rows, "around_ns")
        said = f"{in_words(around, 'ns')} between order and copy, and from the copy to its use, are not in it"
        again = total(rows, "again_ns")
        causes = (
            Cause(-around, said),
            Cause(again, f"{in_words(again, 'ns')} in it are copies of several ranks at the same time"),
        )
        basis = "bytes of loads into the GPU" if unit == "bytes" else "submit_ns to usable_ns of each load"
        known_of_all = rows.height > 0 and not rows[column].null_count()
        if not known_of_all:
            basis = f"{basis} were not measured: {instrument(fact)}"
        found.append(
            Number(
                "vllm", name, unit, reported,
                total(rows, column) if known_of_all else None,
                basis if count is not None else f"{not_reported(name)}; {basis}", rows.height,
                causes if unit == "ns" else (),
                slack_ns(reported, rows.height) if unit == "ns" else 0,
            )
        )  # fmt: skip
    return found
