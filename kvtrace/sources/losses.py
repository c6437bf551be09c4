"""What is missing, as a row of the table `loss`."""

from __future__ import annotations

from dataclasses import asdict, dataclass

JOIN = "import"
"""Source of the losses that only a join of all inputs shows; every join finds them anew."""


@dataclass(frozen=True, slots=True)
class Loss:
    """`count` records of `op` are missing from `source`, for a cause of schema.vocabulary.LOSS_CAUSES."""

    source: str
    cause: str
    count: int
    process: str | None = None
    op: str | None = None
    from_ns: int | None = None
    to_ns: int | None = None
    detail: str | None = None

    def row(self) -> dict[str, str | int | None]:
        """The row of the table."""
        return asdict(self)
