"""Opens a run: DuckDB over its Parquet files, every noun a view; the only module that reads a run.

opening.py   open_run: what is there, which version, what it was recorded with
nouns.py     the views of sql/, created on a connection, commented
bound.py     the same views for every further connection of a process, without binding them again
guard.py     SQL that comes from a person or a file: one SELECT, inside the run, bounded
derived.py   where cached results lie, and under which key
"""

from __future__ import annotations

from kvtrace.run.opening import Run, open_run

__all__ = ["Run", "open_run"]
