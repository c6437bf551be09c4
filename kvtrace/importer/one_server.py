"""One server, two names: what it exports calls it by its instance id, what records inside by host and pid.

Both rows stay, because rows of other tables name them; the exporter's row says whose name it is:

    attributes['same_as']   the processes that recorded inside, "host/pid" each, separated by ", "

An exporter names its processes where its resource does (`vllm.process_id` beside host.name); else the engine
of its row and its product are those of processes that recorded inside. It is described as these are.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import pyarrow as pa

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator

PIDS, SAME = "pids", "same_as"


def one_server(parts: Iterable[pa.Table]) -> Iterator[pa.Table]:
    """Rows of the table `process`, those of exporters tied to the processes that recorded inside."""
    found = list(parts)
    if not found:
        return
    whole = pa.concat_tables(found)
    rows = whole.to_pylist()
    inside = {row["process"]: row for row in rows if row["boot_id"] is not None}
    for row in rows:
        if row["boot_id"] is None and (same := _same(row, inside)):
            attributes = dict(row["attributes"] or ()) | {SAME: ", ".join(sorted(same))}
            row["attributes"] = list(attributes.items())
            for name in ("version", "product", "host"):
                said = {inside[process][name] for process in same}
                row[name] = row[name] if row[name] is not None or len(said) != 1 else said.pop()
    columns = [pa.array([row[field.name] for row in rows], field.type) for field in whole.schema]
    yield pa.Table.from_arrays(columns, schema=whole.schema)


def _same(row: dict[str, Any], inside: dict[str, dict[str, Any]]) -> list[str]:
    """The processes that an exporter's row is of."""
    pids = dict(row["attributes"] or ()).get(PIDS, "").split(", ")
    named = [name for pid in pids if (name := f"{row['host']}/{pid}") in inside]
    if named:
        return named
    return [
        name
        for name, other in inside.items()
        if row["engine"] is not None
        and other["engine"] == row["engine"]
        and row["product"] in (None, other["product"])
    ]
