"""Who recorded a span: process, engine, observer, from its resource."""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np

from kvtrace.schema.attributes import RESOURCE
from kvtrace.schema.vocabulary import OBSERVERS

if TYPE_CHECKING:
    from collections.abc import Sequence

    from kvtrace.sources.dialects.attributes import Mask
    from kvtrace.sources.dialects.columns import Columns
    from kvtrace.sources.otlp.batch import SpanBatch

_ROLES = {"engine_core": "scheduler", "worker": "worker", "api_server": "api", "frontend": "api"}


def process_of(resource: dict[str, str]) -> str | None:
    """service.instance.id, else host.name/process.pid, else the service's name."""
    instance = resource.get("kvtrace.process") or resource.get("service.instance.id")
    if instance:
        return instance
    host, pid = resource.get("host.name"), resource.get("process.pid") or resource.get("vllm.process_id")
    if host and pid:
        return f"{host}/{pid}"
    name = resource.get("service.name")
    return name if name and not name.startswith("unknown_service") else None


def describe(found: Sequence[dict[str, str]]) -> list[dict[str, str | None]]:
    """Resources as rows of the table `process` (times and instruments are added when the run is whole).

    `pids`: the number of the process on its host, which an instance id hides.
    """
    return [
        {
            "process": process_of(resource),
            "engine": resource.get("kvtrace.engine") or process_of(resource),
            "host": resource.get("host.name"),
            "role": _ROLES.get(resource.get("vllm.process_kind", ""), _observer(resource)),
            "product": resource.get("service.name"),
            "version": resource.get("service.version"),
            "observer": _observer(resource),
            "rank": resource.get("kvtrace.rank"),
            "device": resource.get("kvtrace.device"),
            "stream": resource.get("kvtrace.stream"),
            "pids": resource.get("process.pid") or resource.get("vllm.process_id"),
        }
        for resource in found
    ]


def _observer(resource: dict[str, str]) -> str | None:
    """Who saw it, if it is one of our words; anything else is not observed."""
    said = resource.get("kvtrace.observer")
    return said if said in OBSERVERS else None


def fill(columns: Columns, who: Sequence[dict[str, str | None]]) -> None:
    """Give every span what its resource says; a span without an engine has engine = process."""
    for name in ("process", *RESOURCE.values()):
        said = [row[name] for row in who]
        if any(value is not None for value in said):
            if name == "rank":
                numbers = [int(value) if value is not None and value.isdecimal() else -1 for value in said]
                ranks = np.array(numbers)[columns.resource]
                columns.put_numbers("rank", ranks, ranks >= 0)
            else:
                columns.put_words(name, said, columns.resource)


def only(batch: SpanBatch, mask: Mask) -> str | None:
    """The process of some spans, if it is one and the same."""
    names = {
        process_of(batch.resources[number]) for number in np.unique(batch.spans["resource"].to_numpy()[mask])
    }
    return names.pop() if len(names) == 1 else None
