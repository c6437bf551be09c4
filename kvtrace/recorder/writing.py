"""Turns waiting rows into frames and appends them to the spool. Only one thread at a time is in here."""

from __future__ import annotations

import os
import time

from kvtrace.recorder import place
from kvtrace.recorder.appending import SpoolFile
from kvtrace.recorder.buffers import QUOTA_ROWS
from kvtrace.recorder.encoding import Texts, encodable, rows_payload
from kvtrace.recorder.losses import Losses
from kvtrace.recorder.shapes import DEFINITIONS, Definition
from kvtrace.schema.frames import (
    ANCHOR,
    ANCHOR_PAIR,
    END,
    FACTS,
    HEADER,
    IDLE,
    MEMBER_COLUMNS,
    ROWS,
    SHAPE,
    frame,
)

TYPE_CHECKING = False
if TYPE_CHECKING:
    from kvtrace.recorder.buffers import Buffer

    Row = tuple[object, ...]

PIECE_VALUES = 5_000
"""How much is encoded at a time, members' values included; the engine may be kept waiting that long."""
WRITE_ROWS = 256
"""Pieces are written together until they have so many rows."""
SLICE_ROWS = 512
ROUND_ROWS = 16_384
"""How many rows are taken out of the buffers before they are written."""
HOLD_NS = 250_000
PAUSE_S = 0.0002
"""Having held the interpreter for HOLD_NS, the writer leaves it to the engine's threads for PAUSE_S."""
ANCHOR_EVERY_NS = 60 * 1_000_000_000


class Writing:
    """One process's spool as it is written."""

    def __init__(self, out: str, prefix: int) -> None:
        self._prefix = prefix
        self._boot = place.boot_id()
        self._file = SpoolFile(os.path.join(out, "spool"), f"{self._boot.replace('-', '')}-{os.getpid()}")
        self._texts = Texts()
        self._defined: set[int] = set()
        self._groups: dict[object, list[Row]] = {}
        self._anchored_ns = 0
        self._hurry = False
        self._paused_ns = 0
        self._rows = 0
        self._rows_in_file = 0
        self._round_ns = 0
        self.losses = Losses()
        self.facts: dict[str, object] = {}
        self.facts_changed = False
        self.backlog = 0
        self.failing = False
        self._busy = False

    def cycle(self, buffers: list[Buffer], *, hurry: bool) -> None:
        """Write everything that waits; in a hurry without leaving the interpreter to others in between.

        Raises:
            OSError: the disk does not take it; what was taken out of the buffers is kept for the next time.
        """
        self._hurry = hurry
        try:
            self._ready()
            rows_before = self._rows
            more = True
            while more:
                # What arrives meanwhile waits for the next flush: chasing it would write a frame a row.
                self._round_ns = time.monotonic_ns()  # readers take what was written together together
                more = self._take(buffers) >= ROUND_ROWS
                self._write_groups()
            self._add_losses(buffers)
            self._write_groups()
            self._write_facts()
            self._write_idle(rows_before)
        except OSError:
            self.failing = True
            raise
        self.failing = False

    def end(self) -> None:
        """Write the closing mark."""
        self._append([_json_frame(END, {"rows": self._rows, "written_ns": time.monotonic_ns()})])

    def close(self) -> None:
        """Let go of the file."""
        self._file.close()

    def _ready(self) -> None:
        """Open the file, or notice that it is gone, and write what is pending."""
        if not self._file.here():
            if self._file.open():
                self._begin_file()
            else:
                self._file.append(())
        elif self._file.pending:
            self._file.append(())

    def _begin_file(self) -> None:
        """A new file begins with a header and knows no shape and no text."""
        if self._rows_in_file:
            self.losses.since_last("disk_failure", self._rows_in_file, None, "the spool was removed")
        self._rows_in_file = 0
        self._file.pending.clear()
        self._texts.next_epoch()
        self._defined.clear()
        self._anchored_ns = 0
        self.facts_changed = bool(self.facts)
        header = place.header(boot=self._boot, start_ns=self._file.start_ns, prefix=self._prefix)
        self._append([_json_frame(HEADER, header)])

    def _append(self, frames: list[bytes]) -> None:
        self._file.append([item for item in frames if item])

    def _take(self, buffers: list[Buffer]) -> int:
        """Move rows from the buffers to their shape's list, forget buffers of dead threads; how many rows."""
        room = ROUND_ROWS - self.backlog
        for at in range(len(buffers) - 1, -1, -1):
            buffer = buffers[at]
            dead = buffer.alive() is None
            left = min(len(buffer), room)
            room -= left
            while left > 0:
                count = min(left, SLICE_ROWS)
                take = buffer.popleft
                self._sort([take() for _ in range(count)])
                left -= count
                self._breathe()
            if buffer.quota:
                buffer.quota = QUOTA_ROWS
            if dead and not buffer:
                self._drops(buffer)
                del buffers[at]
        return ROUND_ROWS - room

    def _sort(self, rows: list[Row]) -> None:
        groups = self._groups
        for row in rows:
            try:
                groups[row[0]].append(row)
            except Exception:  # noqa: BLE001 - the first of its shape, or no row at all
                self._sort_odd(row)
        self.backlog += len(rows)

    def _sort_odd(self, row: object) -> None:
        if isinstance(row, (tuple, list)) and row and isinstance(row[0], int):
            self._groups.setdefault(row[0], []).append(row)  # type: ignore[arg-type]
        else:
            self.losses.since_last("undecodable", 1, None, "no row")
            self.backlog -= 1

    def _add_losses(self, buffers: list[Buffer]) -> None:
        for buffer in list(buffers):
            self._drops(buffer)
        self._sort(self.losses.rows())

    def _drops(self, buffer: Buffer) -> None:
        for (cause, number), count in buffer.new_drops():
            definition = _definition(number)
            self.losses.since_last(cause, count, definition.op if definition else None)

    def _write_groups(self) -> None:
        """Piece by piece; several small pieces go into one write."""
        frames: list[bytes] = []
        size = 0
        while self._groups:
            number = next(iter(self._groups))
            rows = self._groups[number]
            piece = _piece(rows, _definition(number))
            del rows[: len(piece)]
            if not rows:
                del self._groups[number]
            self.backlog -= len(piece)
            frames += self._encode(number, piece)
            size += len(piece)
            if size >= WRITE_ROWS or not self._groups:
                self._append(frames)
                frames, size = [], 0
            self._breathe()

    def _breathe(self) -> None:
        """Let the engine's threads have the interpreter when it was held for long enough."""
        if not self._hurry and time.monotonic_ns() - self._paused_ns > HOLD_NS:
            time.sleep(PAUSE_S)
            self._paused_ns = time.monotonic_ns()

    def _encode(self, number: object, rows: list[Row]) -> list[bytes]:
        """The frames of one piece: its definition and new texts first."""
        definition = _definition(number)
        if definition is None:
            self.losses.since_last("undecodable", len(rows), None, "no such shape")
            return []
        assert isinstance(number, int)
        if self._texts.full():
            self._texts.next_epoch()
            self._defined.clear()
        try:
            payload = self._payload(number, definition, rows)
        except Exception:  # noqa: BLE001 - a row of a foreign object may raise anything; the others are written
            good = [row for row in rows if self._fits(definition, row)]
            self.losses.since_last("undecodable", len(rows) - len(good), definition.op, "no column holds it")
            if not good:
                return []
            rows, payload = good, self._payload(number, definition, good)
        frames = []
        if number not in self._defined:
            self._defined.add(number)
            frames.append(_json_frame(SHAPE, definition.content(number)))
        frames.append(self._texts.frame())
        frames.append(frame(ROWS, payload))
        self._rows += len(rows)
        self._rows_in_file += len(rows)
        return frames

    def _fits(self, definition: Definition, row: Row) -> bool:
        self._breathe()
        return encodable(definition.columns, row)

    def _payload(self, number: int, definition: Definition, rows: list[Row]) -> bytes:
        return rows_payload(number, definition.columns, rows, self._texts, self._rows, self._round_ns)

    def _write_facts(self) -> None:
        """Facts when they changed, and an anchor a minute."""
        frames = []
        if self.facts_changed:
            self.facts_changed = False
            frames.append(_json_frame(FACTS, self.facts))
        now = time.monotonic_ns()
        if not self._anchored_ns or now - self._anchored_ns >= ANCHOR_EVERY_NS:
            self._anchored_ns = now
            frames.append(frame(ANCHOR, ANCHOR_PAIR.pack(*place.clock_pair())))
        if frames:
            self._append(frames)

    def _write_idle(self, rows_before: int) -> None:
        """A mark when nothing came any more: who is killed later than this lost nothing that came before."""
        if self._rows == rows_before and self._busy:
            self._append([_json_frame(IDLE, {"written_ns": self._round_ns})])
        self._busy = self._rows > rows_before


def _definition(number: object) -> Definition | None:
    if isinstance(number, int) and 0 <= number < len(DEFINITIONS):
        return DEFINITIONS[number]
    return None


def _piece(rows: list[Row], definition: Definition | None) -> list[Row]:
    """As many rows as may be encoded at once."""
    if definition is None:
        return rows[:SLICE_ROWS]
    most = max(1, PIECE_VALUES // (len(definition.columns) + 1))
    if not definition.heavy:
        return rows[:most]
    at = definition.columns.index("members") + 1
    values = count = 0
    for row in rows[:most]:
        try:
            values += len(row) + MEMBER_COLUMNS * len(row[at][0])  # type: ignore[index]
        except Exception:  # noqa: BLE001 - no members, or a row that is no row
            values += 1
        if count and values > PIECE_VALUES:
            break
        count += 1
    return rows[:count]


def _json_frame(kind: int, content: object) -> bytes:
    import json  # 8 ms, which no import of ours may cost the engine

    return frame(kind, json.dumps(content, default=_plain, separators=(",", ":")).encode())


def _plain(value: object) -> object:
    """No repr of a foreign object: it may hold a prompt."""
    return f"<{type(value).__name__}>"
