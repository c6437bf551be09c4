"""Whether the processes of a recorded vLLM came to their own end.

When it stops, vLLM kills processes that take longer than it waits, on a busy machine before they have
closed their spools. All that they saw of the requests is there; but a sample shall not tell of a loss that
its harness made.
"""

from __future__ import annotations

import tempfile
from pathlib import Path

import kvtrace
from kvtrace.importer import import_files

_KILLED = """
SELECT count(*) FROM loss JOIN process USING (process)
WHERE loss.cause = 'unclean_end' AND loss.source LIKE '%.kvspool' AND process.product = 'vllm'
"""


def ended_well(raw: Path) -> bool:
    """Every process of vLLM closed its spool."""
    with tempfile.TemporaryDirectory() as folder:
        run = kvtrace.open_run(import_files(sorted((raw / "spool").iterdir()), Path(folder) / "run").run)
        ((killed,),) = run.connection().sql(_KILLED).fetchall()
    return bool(killed == 0)
