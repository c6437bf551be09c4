"""Parquet: the tables of a run on disk.

    arrow.py     the words as Arrow schemas
    writer.py    one finished file at a time: written as *.tmp, encoded for size, renamed into place
    compact.py   staged files -> few sorted ones: duplicates once, ids resolved, bucketed by request
"""

from __future__ import annotations
