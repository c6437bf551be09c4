"""Kinds of rows: which table, which columns in which order, what is the same in every row."""

from __future__ import annotations

TYPE_CHECKING = False
if TYPE_CHECKING:
    from typing import NewType

    Shape = NewType("Shape", int)
    """Handle of one kind of row."""
else:
    # A plain number: the garbage collector then visits no waiting row of plain values. With an object of a
    # class of ours 100,000 waiting rows cost twice as much.
    Shape = int


class Definition:
    """What a shape stands for."""

    __slots__ = ("columns", "constants", "heavy", "op", "part", "table")

    def __init__(
        self, table: str, part: str, columns: tuple[str, ...], constants: dict[str, str | int]
    ) -> None:
        self.table = table
        self.part = part
        self.columns = columns
        self.constants = constants
        op = constants.get("op")
        self.op = op if isinstance(op, str) else None
        self.heavy = "members" in columns

    def content(self, number: int) -> dict[str, object]:
        """What the SHAPE frame says."""
        return {
            "number": number,
            "table": self.table,
            "part": self.part,
            "columns": list(self.columns),
            "constants": self.constants,
        }


DEFINITIONS: list[Definition] = []
"""Number -> definition; the same in every process that a fork makes."""
_known: dict[object, Shape] = {}


def shape(table: str, columns: tuple[str, ...], *, part: str = "whole", **constants: str | int) -> Shape:
    """A kind of row; the same arguments give the same shape. Cheap, and needs no recording to be going on.

    `table` and `columns` are names of schema.tables.TABLES. Columns may also be `attributes.<key>`,
    `found_by_tier.<tier>` and `labels.<name>`; values of `members` are None or five equally long sequences
    (request ids, phases, scheduled tokens, output tokens, computed before). `part` is one of
    schema.frames.PARTS; all but "whole" have a `span_id`.
    `constants` are columns with one value in all rows.
    """
    columns = tuple(columns)
    key = (table, part, columns, tuple(sorted(constants.items())))
    found = _known.get(key)
    if found is None:
        DEFINITIONS.append(Definition(table, part, columns, constants))
        found = _known.setdefault(key, Shape(len(DEFINITIONS) - 1))
    return found


LOSS = shape("loss", ("cause", "count", "op", "detail", "from_ns", "to_ns"))
IDENTITY = shape("identity", ("identity_id", "side", "field", "value", "source", "enforced_by"))
