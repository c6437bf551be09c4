"""One colour and one name a class, on the whole page: transfers vivid, everything else muted.

The vivid ones are Okabe and Ito's, which stay apart for every kind of colour vision; all of them lie in
the middle of the lightness scale, so that they read on white and on near-black. A class that is absence
of knowledge (`other`) is hatched as well, so that it never reads as work.
"""

from __future__ import annotations

from kvtrace.analyses._text import CLASS_WORDS
from kvtrace.schema.vocabulary import EXPOSED_TRANSFER

COLORS: dict[str, str] = {
    "compute": "#7c8aa0",
    "wait_load": "#d55e00",
    "wait_store": "#c2447e",
    "wait_lookup": "#e69f00",
    "wait_lock": "#9a6a1f",
    "queue_capacity": "#a3a9c9",
    "load": "#0072b2",
    "load_wait": "#56b4e9",
    "lock": "#cdb400",
    "lookup": "#009e73",
    "store": "#cc79a7",
    "interference": "#8a63c4",
    "queue": "#bcc3d6",
    "other": "#a9b0bb",
}
"""Class of the partition -> colour, in the order in which they win an instant."""

WORDS = CLASS_WORDS

TRANSFER = frozenset(EXPOSED_TRANSFER) - {"interference"}
"""Classes that are time of the cache's own doing, for or by this request."""

HATCH = {"shape": "/", "size": 5, "solidity": 0.3, "fgcolor": "#cfd4db", "bgcolor": "#a9b0bb"}
"""What is drawn over `other`: time that nobody recorded, never work."""

PATH_COLORS: tuple[str, ...] = ("#0072b2", "#4c97c9", "#00588a", "#7aa6d8", "#2f7fa8", "#004766")
"""Hops of class `load`: shades of its blue, by the order in which they come."""

OUTCOMES: dict[str, str] = {
    "ok": "#009e73",
    "partial": "#e69f00",
    "miss": "#7c8aa0",
    "skipped": "#a3a9c9",
    "failed": "#d55e00",
    "timeout": "#c2447e",
    "cancelled": "#8a63c4",
    "open": "#56b4e9",
    "unknown": "#c9ccd1",
}
"""Outcome -> colour; null is drawn as unknown and named so."""


def marker(name: str, tint: str) -> dict[str, object]:
    """How a bar of a class is filled; a line of the same colour keeps the shortest ones visible."""
    fill: dict[str, object] = {"color": tint, "line": {"width": 0.6, "color": tint}}
    return fill | {"pattern": HATCH} if name == "other" else fill


def rank(name: str) -> int:
    """Place of a class in the list of the partition; one we do not know comes last."""
    order = list(COLORS)
    return order.index(name) if name in COLORS else len(order)


def color(name: str, hop: str | None = None, hops: tuple[str, ...] = ()) -> str:
    """Colour of a class; hops of a load are told apart by shade."""
    if hop is not None and hop in hops:
        return PATH_COLORS[hops.index(hop) % len(PATH_COLORS)]
    return COLORS.get(name, COLORS["other"])


def words(name: str, hop: str | None = None) -> str:
    """Name of a class as a reader sees it, with its hop."""
    text = WORDS.get(name, name)
    return f"{text} {hop.replace('->', ' → ')}" if hop else text
