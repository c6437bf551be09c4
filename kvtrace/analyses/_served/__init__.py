"""How was each request served? What `fallbacks`, `hit_funnel` and `ledger` stand on, gathered once a run.

admission.py   who asked what of which engine; the first admission: what was there, what was computed
offers.py      what routers and caches said they had, and when they were asked
loads.py       what was loaded: how much, how well, and why not all of it
times.py       how long its lookups, locks, copies and holds took
facts.py       all of it, one row a request; the tokens that verdicts and funnel share

The first admission ends at the first preemption, or at a further inquiry or queue, after its first step.
"""

from __future__ import annotations

from kvtrace.analyses._served.facts import ALGORITHM, served, table
from kvtrace.analyses._served.tokens import measured

__all__ = ["ALGORITHM", "measured", "served", "table"]
