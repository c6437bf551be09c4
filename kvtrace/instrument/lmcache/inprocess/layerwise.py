"""What does LMCache inside the engine retrieve and store layer by layer, while the engine computes?

    store_layer      layer 0 ─ yield ─ layer 1, put 0 ─ yield ─ ... ─ put the last ─ yield      num_layers + 1
    retrieve_layer   ask 0 ─ yield tokens ─ copy 0, ask 1 ─ yield ─ ... ─ yield ─ wait ─ yield mask

A row from the first step until the yield that is the last by contract: nobody asks such a generator for more,
and it may lie about for long. Between its steps the engine computes: the row's length is no cost. One that
was closed or failed before is `cancelled` or `failed`: without all its layers nothing can be found again.
vLLM does not say for which request it retrieves layer by layer: such a row is an operation's. Steps of
several requests take turns in one thread: each has its own account (calls.py).
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from contextlib import suppress
from typing import TYPE_CHECKING

from kvtrace import recorder
from kvtrace.instrument.later import steps
from kvtrace.instrument.lmcache.inprocess import rows
from kvtrace.instrument.lmcache.inprocess.calls import Call, under

if TYPE_CHECKING:
    from types import ModuleType
    from typing import Any


def install(module: ModuleType) -> None:
    """Wrap the two calls of the engine that are generators."""
    owner = module.LMCacheEngine
    steps(owner, "store_layer", Storing)
    steps(owner, "retrieve_layer", Retrieving)


class Layered(ABC):
    """One layerwise call; which yield is its last, and what its row says, differ by direction."""

    def __init__(self, engine: Any, tokens: Any, mask: Any = None, *_: Any, **options: Any) -> None:
        self.engine = engine
        self.asked = len(tokens) if mask is None else int(mask.sum())
        self.whole = len(tokens)
        self.call = Call(options.get("req_id"))
        self.start_ns: int | None = None
        self.yields = 0
        self.told = False
        self._outer: Call | None = None

    def enters(self) -> None:
        """A step begins: what the thread moves is this call's."""
        self._outer, under.call = under.call, self.call
        if self.start_ns is None:
            self.start_ns = recorder.now()

    def leaves(self) -> None:
        """A step is over."""
        if self._outer is not None:
            under.call, self._outer = self._outer, None

    def ends(self, error: BaseException | None) -> None:
        """No step follows."""
        if not self.told:
            word = None if error is None else "cancelled" if isinstance(error, GeneratorExit) else "failed"
            self.tell(word)

    def gave(self, item: Any) -> None:
        """A step yielded, perhaps what was awaited."""
        self.yields += 1
        if not self.told and self.last(item):
            self.tell(None)

    @abstractmethod
    def last(self, item: Any) -> bool:
        """Whether no step is to follow this yield."""

    @abstractmethod
    def tell(self, outcome: str | None) -> None:
        """Record the row; None: it came to its end."""


class Storing(Layered):
    """A store, layer by layer."""

    def last(self, item: Any) -> bool:
        """The yield after the last layer's."""
        del item
        return self.yields == int(self.engine.num_layers) + 1

    def tell(self, outcome: str | None) -> None:
        """Of a store that broke off no chunk is whole."""
        self.told = True
        start_ns = self.start_ns or recorder.now()
        if outcome is None:
            rows.store_ended(self.engine, self.call, start_ns, self.asked, self.tokens())
        else:
            rows.stored(self.call, start_ns, None if self.call.keys else self.asked, outcome, "unknown")

    def tokens(self) -> int:
        """Tokens of whole chunks, which are of all sizes where others were there before: by their bytes.

        LMCache's own count takes the wrong dimension of a layer's object.
        """
        layers = int(self.engine.num_layers)
        with suppress(Exception):
            one = self.engine.gpu_connector.get_shape(1).numel() * self.engine.metadata.kv_dtype.itemsize
            return int(self.call.bytes // (one * layers))
        return self.call.keys // layers * int(self.engine.config.chunk_size)


class Retrieving(Layered):
    """A retrieve, layer by layer."""

    got: int | None = None

    def last(self, item: Any) -> bool:
        """The mask of all tokens; what is given before is one number or nothing."""
        if getattr(item, "ndim", 0) != 1 or len(item) != self.whole:
            return False
        self.got = int(item.sum())
        return True

    def tell(self, outcome: str | None) -> None:
        """Without a mask nobody says how much the GPU got, unless nothing was read for it."""
        self.told = True
        got = 0 if self.got is None and not self.call.keys else self.got
        word = "unknown" if got is None and outcome is None else outcome
        rows.retrieved(self.call, self.start_ns or recorder.now(), self.asked, got, word)
