"""The question `explain`: why was a request slow, in six sentences with numbers.

names.py      which requests are meant
gathering.py  everything that the sentences stand on
sentences.py  what it was, where its time and its tokens went; blame.py whom it waited for; offer.py what
              became of the cache's offer; unseen.py what was not seen
targets.py hit.py waste.py contract.py   what follows them only where there is something to say
"""

from __future__ import annotations

from typing import TYPE_CHECKING

import polars as pl

from kvtrace.analyses.explain.gathering import gather
from kvtrace.analyses.explain.names import named, slowest
from kvtrace.analyses.explain.sentences import sentences
from kvtrace.analyses.slo import stated
from kvtrace.errors import UsageError

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    from kvtrace.run import Run

COLUMNS = pl.Schema(
    {"request_id": pl.String, "position": pl.Int64, "sentence": pl.String, "evidence": pl.String}
)
_WORST = 3
_MOST = 100


def explain(
    run: Run,
    *,
    requests: tuple[str, ...] = (),
    worst: int = _WORST,
    ttft_ns: int | None = None,
    itl_p50_ns: int | None = None,
    itl_p99_ns: int | None = None,
    e2e_ns: int | None = None,
) -> pl.DataFrame:
    """Why was a request slow, in words with numbers and what they stand on?

    Six sentences a request: what it was and how long it took; the two largest classes of its partition, to
    the first token and to the end; where its prompt tokens came from; whom it waited for; what became of the
    cache's offer, whether it was the state that it needs and worth its wait; what was not seen. Only where
    there is something to say they name the targets that it missed or kept, loaded tokens that served
    nothing, and what `lock_contract` and `compatibility` found broken for it. A number that is an upper bound
    has <= before it. Names from outside have their control characters spelled out.

    Args:
        run: the run
        requests: ids or any other names of requests; none: those that waited longest for their first token,
            one that never got it counting with the time to its end or to the run's last record
        worst: how many of those
        ttft_ns: target of arrival to first token, ns; without targets none is spoken of
        itl_p50_ns: target of the median of the times between its tokens, ns
        itl_p99_ns: target of their 99th percentile, ns
        e2e_ns: target of arrival to finish, ns

    Columns:
        request_id: the request
        position: 1 to 6
        sentence: what is said
        evidence: the questions, nouns and spans that it stands on
    """
    if not 1 <= worst <= _MOST or len(requests) > _MOST:
        raise UsageError(f"explain: takes between 1 and {_MOST} requests.")
    targets = stated("explain", ttft_ns, itl_p50_ns, itl_p99_ns, e2e_ns)
    connection = run.connection()
    ids = [named(connection, name) for name in requests] or slowest(connection, worst)
    return told(run, list(dict.fromkeys(ids)), targets)


def told(run: Run, ids: Sequence[str], targets: Mapping[str, int] | None = None) -> pl.DataFrame:
    """The rows of `explain` for requests by their ids, which must be there; targets as in `slo`, ns."""
    rows = [
        (story.request["request_id"], position, sentence, evidence)
        for story in gather(run, list(ids), targets or {})
        for position, (sentence, evidence) in enumerate(sentences(story), start=1)
    ]
    return pl.DataFrame(rows, schema=COLUMNS, orient="row")
