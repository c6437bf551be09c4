"""Lines of the log one by one: when, which rank, what."""

from __future__ import annotations

import re
from calendar import timegm
from datetime import UTC, datetime
from typing import TYPE_CHECKING, Any

from kvtrace.sources.records import LATEST_TIME_NS, MAX_TEXT, Rows
from kvtrace.sources.sglang_log.messages import MESSAGES, WORDS, Said
from kvtrace.sources.sglang_words import ENGINE, TRANSFER, identity, storage_name

if TYPE_CHECKING:
    from collections.abc import Iterator

S = 1_000_000_000
PREFIX = re.compile(
    rb"\[(\d{4})-(\d\d)-(\d\d) (\d\d):(\d\d):(\d\d)(?:\.(\d{3}))?((?: [A-Z_]{2,8}\d{1,6})*)\] "
)
_RANK = re.compile(rb" (DP|TP)(\d+)")
_ARGUMENT = re.compile(
    rb"\b(hicache_storage_backend|hicache_write_policy|hicache_storage_prefetch_policy|page_size"
    rb"|hicache_io_backend|hicache_mem_layout|kv_cache_dtype|model_path|tp_size|dp_size)="
    rb"(?:'([^']{1,200})'|(\d{1,18})\b)"
)
_BACKEND = re.compile(
    rb"(?:Attaching HiCache storage backend: |Creating (?:dynamic )?storage backend ')(\w{1,64})"
)
_BATCH = re.compile(rb"(Prefill|Decode) batch(?: \[\d+\])?, ")
_NUMBER = re.compile(rb"([#A-Za-z][#A-Za-z0-9 ()/.-]{0,60}): (-?\d{1,15}(?:\.\d{1,9})?)(?=,|$| )")
_REQUESTS = (b"Receive: obj=", b"Finish: obj=")
MAX_REQUESTS = 100_000
"""Requests whose prefetches are numbered; those of later ones are not tied to what others saw of them."""
MAX_DIGITS, MAX_ARGUMENTS = 7, 256
_FIELDS = {
    "hicache_storage_backend": "storage_backend", "page_size": "block_size", "model_path": "model",
    "kv_cache_dtype": "dtype",
}  # fmt: skip


class Log:
    """Takes lines, adds rows."""

    def __init__(self, source: str) -> None:
        self.rows = Rows(source)
        self._source = source
        self._backend: str | None = None
        self._arguments: dict[tuple[str, str], None] = {}
        self._prefetches: dict[tuple[str, int | None], int] = {}
        self._times: tuple[bytes, int | None] = (b"", None)
        self._timed = False

    def line(self, line: bytes) -> None:
        """One line; those that begin without a time belong to the one before them, and say nothing here."""
        found = PREFIX.match(line)
        if found is None:
            return
        body = line[found.end() :]
        if body.startswith(_REQUESTS):
            self.rows.drop("logged requests")
            return
        batch = _BATCH.match(body)
        if batch is None and not any(word in body for word in WORDS):
            return
        time = self._time(found)
        if time is None:
            self.rows.refuse("lines with an impossible time", cause="impossible_time")
            return
        if batch is not None:
            self._numbers(batch[1], body[batch.end() :], time, found[8])
        elif body.startswith(b"server_args=ServerArgs("):
            self._started(body)
        elif backend := _BACKEND.match(body):
            self._named("hicache_storage_backend", backend[1].decode())
        else:
            self._message(body, time, found[8])

    def finish(self) -> None:
        """What there is to say of the times."""
        if self._timed:
            self.rows.remark("times have no zone and were read as UTC; whole seconds unless they show more")

    def identities(self) -> Iterator[dict[str, Any]]:
        """What the log says of the engine's external tiers."""
        for name, value in self._arguments:
            yield identity(name, value, self._source)

    def _time(self, found: re.Match[bytes]) -> int | None:
        """Unix ns; lines of one second come together, and it is worked out once."""
        stamp = found[0][:20]
        if stamp != self._times[0]:
            year, month, day, hour, minute, second = (int(part) for part in found.groups()[:6])
            try:
                at = timegm(datetime(year, month, day, hour, minute, second, tzinfo=UTC).timetuple()) * S
            except ValueError:
                at = 0
            self._times = (stamp, at if 0 < at <= LATEST_TIME_NS else None)
        whole = self._times[1]
        self._timed = self._timed or whole is not None
        return None if whole is None else whole + int(found[7] or 0) * 1_000_000

    def _started(self, body: bytes) -> None:
        """The arguments of a server that change what its tiers hold."""
        for found in _ARGUMENT.finditer(body):
            self._named(found[1].decode(), (found[2] or found[3]).decode(errors="replace"))

    def _named(self, name: str, value: str) -> None:
        if name == "hicache_storage_backend":
            self._backend, value = value, storage_name(value)
        if len(self._arguments) < MAX_ARGUMENTS:
            self._arguments[_FIELDS.get(name, name), value] = None

    def _numbers(self, kind: bytes, body: bytes, time: int, ranks: bytes) -> None:
        """What a line of a batch counts, as samples."""
        rank = ranks.strip().decode()
        for found in _NUMBER.finditer(body):
            name, value = found[1].decode().lower(), found[2]
            word = re.sub(r"[^a-z0-9]+", "_", name).strip("_")
            self.rows.add("metric", {
                "time_ns": time, "name": f"sglang_log:{kind.decode().lower()}_{word}", "kind": "gauge",
                "labels": [("rank", rank)] if rank else [], "value": float(value),
            })  # fmt: skip

    def _message(self, body: bytes, time: int, ranks: bytes) -> None:
        """A sentence that we know is a row; one of the cache that we do not know is counted."""
        for pattern, meaning in MESSAGES:
            if found := pattern.match(body):
                given = found.groupdict(b"")
                named = {key: value.decode(errors="replace") for key, value in given.items()}
                self._row(meaning(named, self._backend), named.get("req"), time, ranks)
                return
        if body.startswith(b"HiCache prefetch"):
            self.rows.remark("lines of prefetches that this version does not know")

    def _row(self, said: Said, request: str | None, time: int, ranks: bytes) -> None:
        """The row of a sentence: a point, known to the rank that wrote it."""
        places = {kind: int(number) for kind, number in _RANK.findall(ranks) if len(number) < MAX_DIGITS}
        rank, data = places.get(b"TP"), places.get(b"DP")
        request = request if request and len(request) <= MAX_TEXT else None
        row: dict[str, Any] = {
            "start_ns": time, "end_ns": time, "request_id": request, "evidence": "native",
            "id_kind": "internal" if request else None,
            "attribution": "request" if request else "aggregate", "observer": "scheduler", "rank": rank,
            "engine": f"{ENGINE}/dp{data}" if data else ENGINE, **said,
        }  # fmt: skip
        if row.get("purpose") == "prefetch" and request and row["outcome"] == "ok":
            row["transfer_id"] = self._number(request, rank)
        self.rows.add("span", row)

    def _number(self, request: str, rank: int | None) -> str | None:
        """Ranks see one prefetch each by itself, and a request may have several."""
        if (request, rank) not in self._prefetches and len(self._prefetches) >= MAX_REQUESTS:
            return None
        count = self._prefetches[request, rank] = self._prefetches.get((request, rank), 0) + 1
        return TRANSFER if count == 1 else f"{TRANSFER}#{count}"
