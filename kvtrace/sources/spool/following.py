"""One spool: what is new in it, as rows of tables; exactly once from where the run's files end.

    0 ────────── checkpoint ─────────── reach ─────────────────── position ──────────── size
      definitions only   replayed, so that     converted, given          half a flush: waits
      are looked at      open ones are known                             for the next pass

Frames of one flush are taken together (`written_ns` tells it): their order among each other means nothing.
"""

from __future__ import annotations

import time
from collections import Counter
from typing import TYPE_CHECKING, Any

import pyarrow as pa
import pyarrow.compute as pc

from kvtrace.sinks.parquet.covered import COMMIT, Reach
from kvtrace.sources.losses import Loss
from kvtrace.sources.spool import checkpoints
from kvtrace.sources.spool.decode import DAMAGED, UNDECODABLE, Batch, Frame, SpoolReader, together
from kvtrace.sources.spool.liveness import has_ended, is_silent
from kvtrace.sources.spool.pairing import KINDS, Part, merged_ops
from kvtrace.sources.spool.rows import (
    TIMES,
    as_open,
    in_unix_time,
    numbered,
    plain_ids,
    table_of,
    typed,
    with_maps,
)

if TYPE_CHECKING:
    from collections.abc import Mapping
    from pathlib import Path

Found = dict[str, list[pa.Table]]
_QUIET_SECONDS = 1.0
"""Nothing was appended for so long: the last flush is whole."""


def header_of(spool: Path) -> dict[str, Any] | None:
    """What the first frame of a spool says; None when it is none, or not there yet."""
    reader = SpoolReader(spool)
    next(reader.frames(most_bytes=1), None)
    return reader.header


class Spool:
    """Reads one spool forwards; `position` is how far everything before it was given out or taken in."""

    def __init__(self, path: Path, reach: Mapping[str, Reach], *, hasty: bool = False) -> None:
        """`hasty`: take half a flush as well, for a reader who asks once and never goes on."""
        self.path, self.name, self.hasty = path, path.name, hasty
        self.rows: Counter[str] = Counter()
        self._covered = dict(reach)
        self._start = reach[COMMIT]
        self.final = self._start.final
        self.about, self._pairing, self.position = checkpoints.load(path, self._start.to)
        self._reader = SpoolReader(path)
        self.read_to = self.position
        """How far it was read; what lies between waits for the rest of its flush."""
        self._waiting: list[Frame] = []
        self._replaying = False

    @property
    def reach(self) -> Reach:
        """How far the spool was read, for whoever writes down what was given out."""
        return max(Reach(self.position, self.final), self._start)

    def words(self, table: str) -> dict[str, str | None]:
        """Who recorded, for rows of a table that do not say it themselves."""
        source = {"loss": self.name, "alias": "kvtrace", "identity": "kvtrace", "request_key": "kvtrace"}
        process = self.about.process
        return {
            "process": process,
            "engine": self.about.engine or process,
            "source": source.get(table),
            "clock": "host",
        }

    def is_over(self, *, everything_ended: bool) -> bool:
        """Whether nothing more can come; to be asked before the last bytes are read."""
        if self.final or everything_ended or self.about.ended:
            return True
        header = self.about.header or header_of(self.path)
        return has_ended(header, self.path) if header else is_silent(self.path)

    def read(self, most_bytes: int, *, over: bool = False) -> Found:
        """The rows of the next frames; nothing when there are none yet, or not yet all of a flush."""
        found: Found = {}
        self._replaying = True
        while self.read_to < self._start.to:  # their rows are in the run's files
            before = self.read_to
            self._take(self._frames(min(most_bytes, self._start.to - before), over=False), found)
            if self.read_to == before:
                return {}
        self._replaying = False
        self._take(self._frames(most_bytes, over=over), found)
        return found

    def end(self) -> Found:
        """The spool is over: what never closed, who wrote it, and what is missing."""
        found: Found = {}
        if self.final:
            return found
        self.final = True
        self.position = self.read_to + self._reader.torn
        rows, parts = self._pairing.end()
        self._ending(found, parts)
        if self.about.header is not None:
            self._give(found, COMMIT, as_open(rows) if rows is not None else None)
            self._give(found, "process", table_of([self.about.row()], "process"))
        return {table: given for table, given in found.items() if not self._covered[table].final}

    def _ending(self, found: Found, parts: pa.Table | None) -> None:
        """What the end of the spool shows to be missing.

        A process that never recorded anything and was killed (an idle worker of a server that stops) took
        nothing with it that anybody knows of: its row of the table `process` says that it was not closed.
        """
        if self.about.header is None:
            detail = "no readable header: when and whose is unknown"
            self._lose(found, Loss(self.name, "undecodable", max(self.about.unplaced, 1), detail=detail))
            return
        for op, count in merged_ops(parts).items() if parts is not None else ():
            detail = "operations of which the beginning is missing"
            self._lose(found, Loss(self.name, "dropped", count, op=op, detail=detail))
        last_ns = self.about.last_ns
        if self._reader.torn:
            detail = f"last frame torn, {self._reader.torn} bytes"
            self._lose(found, Loss(self.name, "undecodable", 1, from_ns=last_ns, detail=detail))
        if not self.about.ended and (last_ns is not None or self._reader.torn):
            since = max(filter(None, (last_ns, self.about.idle_ns)), default=None)
            self._lose(found, Loss(self.name, "unclean_end", 1, from_ns=since, detail="no closing mark"))

    def as_it_stands(self) -> Found:
        """For a reader: operations that are open now, and the process as it is known now."""
        found: Found = {}
        rows, _ = self._pairing.end()
        if self.about.header is not None:
            self._give(found, COMMIT, as_open(rows) if rows is not None else None)
            self._give(found, "process", table_of([self.about.row()], "process"))
        return found

    def save(self) -> None:
        """Write down what is open at this position, so that nobody has to read all of it again."""
        checkpoints.save(self.path, self.about, self._pairing, self.position, final=self.final)

    def _frames(self, most_bytes: int, *, over: bool) -> list[Frame]:
        """Whole flushes behind the position; the last one only when it cannot grow any more."""
        before = self.read_to
        frames = [*self._waiting, *self._reader.frames(before, most_bytes=most_bytes)]
        self.read_to = self._reader.position
        self._waiting = []
        if self._replaying:
            settled = self.read_to >= self._start.to
        else:
            at_end = self.read_to - before < most_bytes
            settled = at_end and (
                over or self.hasty or self._quiet() or any(frame.kind == "end" for frame in frames)
            )
        if settled:
            return frames
        last = max((frame.written_ns for frame in frames), default=0)
        written = [frame.kind == "rows" and frame.written_ns == last for frame in frames]
        at = written.index(True) if any(written) else len(frames)
        self._waiting = frames[at:]
        return frames[:at]

    def _quiet(self) -> bool:
        """Whether the last flush is whole: the file did not grow for a while."""
        try:
            return time.time() - self.path.stat().st_mtime > _QUIET_SECONDS
        except OSError:
            return True

    def _take(self, frames: list[Frame], found: Found) -> None:
        """Frames in order: what they say of the spool, then their rows, a batch a shape."""
        for frame in frames:
            self._note(frame, found)
        if frames:
            self.position = frames[-1].end
        if not self._waiting:
            self.position = max(self.position, self.read_to)
        rows = [frame for frame in frames if frame.kind == "rows" and not self._is_late(frame, found)]
        if self.about.header is None:
            self.about.unplaced += sum(frame.rows for frame in rows)
            return
        known = [frame for frame in rows if frame.table != COMMIT and self._has(frame.table, frame.end)]
        for batch in together(known):
            self._see(batch.columns, batch.table)
        places = {frame.start for frame in known}
        self._rows(together(frame for frame in rows if frame.start not in places), found)

    def _has(self, table: str, end: int) -> bool:
        """Whether the run's files have all of a table up to here."""
        return end <= self._covered[table].to

    def _note(self, frame: Frame, found: Found) -> None:
        """What a frame says of the spool as a whole."""
        if frame.kind == "rows":
            self.about.flushed_ns = frame.written_ns
            self.about.idle_ns = None
        elif frame.kind == "header":
            self.about.hears(frame.content)
        elif frame.kind == "facts":
            self.about.facts = frame.content
        elif frame.kind == "anchor":
            self.about.anchors.append(frame.content)
            self.about.alive(frame.content[0])
        elif frame.kind == "idle" and type(frame.content.get("written_ns")) is int:
            self.about.idle_ns = frame.content["written_ns"]
            self.about.alive(self.about.idle_ns)
        elif frame.kind == "end":
            self.about.ended = True
            if type(frame.content.get("written_ns")) is int:
                self.about.alive(frame.content["written_ns"])
        elif frame.kind in (DAMAGED, UNDECODABLE) and not self._has("loss", frame.end):
            detail = f"{frame.kind} frame, {frame.end - frame.start} bytes"
            since = self.about.flushed_ns
            loss = Loss(self.name, "undecodable", max(frame.rows, 1), from_ns=since, detail=detail)
            self._lose(found, loss)

    def _is_late(self, frame: Frame, found: Found) -> bool:
        """Rows that came after the spool was taken for ended: counted, not shown."""
        if not self._start.final:
            return False
        if frame.start >= self._start.to and not self._has("loss", frame.end):
            self._lose(
                found, Loss(self.name, "late", frame.rows, detail="written after the process was gone")
            )
        return True

    def _rows(self, batches: list[Batch], found: Found) -> None:
        """Batches as rows of their tables; parts of operations when they are whole."""
        parts = []
        for batch in batches:
            rows = typed(batch.columns, batch.table)
            self._see(rows, batch.table)
            if batch.part == "whole" or "span_id" not in rows.column_names or batch.table != COMMIT:
                if batch.table == COMMIT:
                    assert self.about.header is not None
                    rows = numbered(rows, batch.numbers, self.about.header["prefix"])
                self._give(found, batch.table, rows)
                continue
            valid = rows["span_id"].is_valid()
            known = plain_ids(rows.filter(valid))
            lost = rows.num_rows - known.num_rows
            if lost and not self._has("loss", self.position):
                self._lose(found, Loss(self.name, "undecodable", lost, detail="parts of no operation"))
            numbers = batch.numbers[valid.to_numpy()]
            parts.append(Part(KINDS.index(batch.part), known, numbers))
        self._give(found, COMMIT, self._pairing.add(parts) if parts else None)

    def _see(self, rows: pa.Table, table: str) -> None:
        """Note the times of records."""
        for name in TIMES[table].intersection(rows.column_names) if table != "loss" else ():
            span = pc.min_max(rows[name]).as_py()
            self.about.saw(span["min"], span["max"])

    def _give(self, found: Found, table: str, rows: pa.Table | None) -> None:
        """Hand rows out as the run's files have them, unless these have them already."""
        if rows is not None and rows.num_rows and not (self._replaying and table == COMMIT):
            placed = with_maps(in_unix_time(rows, table, self.about.offset_ns))
            found.setdefault(table, []).append(placed)

    def _lose(self, found: Found, loss: Loss) -> None:
        """A loss of this spool; its times are monotonic as those of rows are."""
        row: dict[str, Any] = loss.row() | {"process": self.about.process}
        rows = table_of([row], "loss")
        placed = in_unix_time(rows, "loss", self.about.offset_ns) if self.about.header is not None else rows
        found.setdefault("loss", []).append(placed)
