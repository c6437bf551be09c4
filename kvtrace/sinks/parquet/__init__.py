"""Parquet: the tables of a run on disk.

arrow.py     the words as Arrow schemas
writer.py    one finished file at a time: written as *.tmp, encoded for size, renamed into place
sorting.py   span rows -> few files sorted by request and start, in bounded memory
compact.py   many files of a run -> few
covered.py   which part of which spool the files of a run hold
"""

from __future__ import annotations
