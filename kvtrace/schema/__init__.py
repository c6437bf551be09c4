"""The words: what kvtrace records, and all that the capture half and the analysis half share.

Standard library alone, so that an engine's process can import it. Everything here is data:

    tables.py      every table of a run, column by column, with units
    vocabulary.py  the closed lists: operations, outcomes, reasons, tiers ...
    attributes.py  OTLP attribute names of every column, and other conventions' names for the same facts
    content.py     attribute names that carry prompts, completions or token ids: dropped at the door
    layout.py      where things lie inside a run directory
    publish.py     the published contract under schemas/, generated from the above

A change of meaning is a bump of VERSION with date, reason and migration in HISTORY.
"""

from __future__ import annotations

VERSION = 1

HISTORY: dict[int, str] = {
    1: "2026-11-29: first version.",
}
"""Schema version -> date, reason and migration from the version before."""
