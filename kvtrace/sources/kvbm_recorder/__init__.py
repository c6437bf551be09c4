"""KVBM's recorder (DYN_KVBM_ENABLE_RECORD): each call of vLLM's scheduler into its connector, a JSON line.

    {"timestamp": ms, "event": {"GetNumNewMatchedTokens": [{...what was asked}, {...what was answered}]}}

    CreateSlot                         a request is seen first: a row `request`, open until it is finished
    GetNumNewMatchedTokens             a row `lookup`: asked once, or again until blocks are there for it
    UpdateStateAfterAlloc              admitted: how many tokens are loaded, selected_tokens
    BuildConnectorMeta                 a row `step` with its members, and which transfers it starts
    RequestFinished                    the row `request` ends
    ResetCache                         a row `evict`, cleared
    HasSlot                            a question of the connector to itself: counted

    actions.py    one call after the other -> rows
    requests.py   what is known of a request until it is over

* time: milliseconds since the recorder began, and nothing says when that was. That beginning is put at a
  second after 1970: distances are right, the date is not, and a note says so. A call is stamped when it is
  written, after its answer: its own duration is not known and is 0 here.
* a step has no end, because nothing is recorded of it, and no row is a load: the connector's workers start
  and end transfers, this records that they were asked for (`attributes.loads`, `attributes.stores` of steps).
* which of KVBM's tiers an answer is from is not recorded: component `kvbm`, found_by_tier null.
* token ids are in the file; they are counted and dropped.
* the recorder drops calls while its queue is full and says so in the engine's log alone: absence of a loss
  here proves nothing, which is the second note.

The form: by the source of Dynamo's recorder.rs and of kvbm 1.5.1's connector; it needs a GPU to run, so no
line was recorded here.
"""

from __future__ import annotations

import re
from typing import TYPE_CHECKING

from kvtrace.sources.kvbm_recorder.actions import ACTIONS, Actions
from kvtrace.sources.records import read_lines

if TYPE_CHECKING:
    from collections.abc import Iterator

    from kvtrace.sources.decoded import Decoded, Options
    from kvtrace.sources.stream import Stream

__all__ = ["FORMAT", "looks_like", "read"]

FORMAT = "kvbm-recorder"
_FIRST = re.compile(
    rb'\s*\{\s*"timestamp"\s*:\s*\d+\s*,\s*"event"\s*:\s*\{\s*"(?:'
    + b"|".join(name.encode() for name in ACTIONS)
    + rb')"\s*:\s*[\[{]'
)


def looks_like(head: bytes) -> bool:
    """Whether the first line is such a record; lines are long, and it may be cut."""
    return bool(_FIRST.match(head))


def read(stream: Stream, source: str, options: Options) -> Iterator[Decoded]:
    """The parts of a file; nothing of its content is ever kept, whatever the options say."""
    del options
    return read_lines(stream, Actions(source))
