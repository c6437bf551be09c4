"""What is known of each open request, and of the scheduler that serves it?

One `Tracks` a scheduler instance, one `Track` an open request; a track is dropped when its request ends, so
that nothing grows with the length of a run. All of it is touched by the scheduler's own thread alone.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from kvtrace import recorder

if TYPE_CHECKING:
    from typing import Any

    from kvtrace.instrument.vllm.health import Watch
    from kvtrace.instrument.vllm.holds import Holds
    from kvtrace.instrument.vllm.loads import Load
    from kvtrace.instrument.vllm.lookups import Inquiry
    from kvtrace.instrument.vllm.steps import Step

ATTRIBUTE = "_kvtrace_tracks"
SPARE = 10_000


class Track:
    """One open request: where it stands, since when, and what it will need."""

    __slots__ = (
        "admitted",  # its first admission has been told
        "attempt",  # 1, and one more after each preemption or failed load
        "blocks",  # of the current queue interval
        "external",  # tokens the scheduler decided to load in the admission under way
        "free_blocks",  # of the current queue interval
        "inquiry",  # its lookup in this attempt
        "load",  # its asynchronous load
        "need",  # blocks that its admission needs, as last computed
        "preemptions",
        "queue_attempt",  # of the current queue interval
        "queue_span",  # of the current queue interval, when it has been told as open
        "reason",  # of the current queue interval
        "refusal",  # the arguments with which its allocation failed last
        "refused",  # the pass in which its allocation failed last
        "request",
        "request_id",
        "seen",  # the pass that decided its reason last
        "since_ns",  # start of the current queue interval
        "span_id",  # of its request row
        "visited",  # the pass that came to it last
    )

    def __init__(self, request: Any, now_ns: int) -> None:
        self.request = request
        self.request_id: str = request.request_id
        self.span_id = recorder.next_id()
        self.attempt = self.queue_attempt = 1
        self.preemptions = 0
        self.admitted = False
        self.external: int | None = None
        self.since_ns = now_ns
        self.reason = "unknown"
        self.blocks: int | None = None
        self.free_blocks: int | None = None
        self.queue_span: int | None = None
        self.need: int | None = None
        self.refusal: tuple[Any, ...] | None = None
        self.refused = self.visited = self.seen = 0
        self.inquiry: Inquiry | None = None
        self.load: Load | None = None


class Tracks:
    """The open requests of one scheduler, and what its current pass has shown so far."""

    def __init__(self, scheduler: Any) -> None:
        from kvtrace.instrument.vllm.groups import groups_of
        from kvtrace.instrument.vllm.health import watches
        from kvtrace.instrument.vllm.holds import Holds

        self.all: dict[str, Track] = {}
        self.waiting: dict[str, Track] = {}  # a subset of all: not scheduled now
        self.fresh: list[Track] = []  # not yet decided by any pass, or changed since
        self.answered: list[Track] = []  # lookups decided in this pass, their row not told
        self.passes = 0
        self.pass_ns = 0
        self.in_pass = False
        self.idle_passes = 0
        self.version = 0  # moves when anything moved that may change a reason
        self.signature: tuple[Any, ...] = ()
        self.recheck_ns = 0
        self.needs_unknown = False  # the engine's arithmetic of blocks is not the one we know
        self.ahead = 0  # blocks that the first waiting requests need together
        self.refused_free: int | None = None  # blocks free when an allocation failed in this pass
        self.refused_track: Track | None = None
        self.visited_track: Track | None = None
        self.steps: dict[int, Step] = {}
        self.handled: Step | None = None  # whose output the engine is looking at
        self.loads: dict[str, Load] = {}  # asynchronous loads that did not end, by request
        self.holds: Holds = Holds()
        self.speculative = bool(getattr(scheduler, "num_spec_tokens", 0))
        self.block_size: int = getattr(scheduler, "block_size", 0) or 0
        self.groups = groups_of(getattr(scheduler, "kv_cache_config", None))
        self.connectors: list[Any] = []  # connector calls under way, the outermost first
        self.children: list[tuple[Any, ...]] = []  # what nested connectors answered
        self.pins: list[Any] = []  # blocks that a connector touched in the call under way
        self.unpins: list[Any] = []
        self.watches: list[Watch] = watches(getattr(scheduler, "connector", None))


def of(owner: Any) -> Tracks | None:
    """The tracks that an engine's object belongs to; None for objects of no scheduler."""
    return getattr(owner, ATTRIBUTE, None)


def attach(scheduler: Any) -> Tracks:
    """Make the tracks of a scheduler known to its connectors, its cache manager and its block pool."""
    tracks = of(scheduler)
    if tracks is None:
        tracks = Tracks(scheduler)
        setattr(scheduler, ATTRIBUTE, tracks)
        manager = getattr(scheduler, "kv_cache_manager", None)
        for part in (*family(getattr(scheduler, "connector", None)), manager, pool_of(scheduler)):
            if part is not None:
                setattr(part, ATTRIBUTE, tracks)
    return tracks


def tidy(tracks: Tracks, scheduler: Any) -> None:
    """Drop tracks of requests that are gone and nobody said so: the hook of their end was switched off."""
    if len(tracks.all) > 2 * len(scheduler.requests) + SPARE:
        gone = [name for name in tracks.all if name not in scheduler.requests]
        for name in gone:
            del tracks.all[name]
            tracks.waiting.pop(name, None)
        recorder.lost("hook_failure", len(gone), detail="ends of requests that no hook saw")


def family(connector: Any) -> list[Any]:
    """A connector and those inside it (MultiConnector), the outermost first."""
    found = [] if connector is None else [connector]
    for child in getattr(connector, "_connectors", None) or ():
        found += family(child)
    return found


def pool_of(scheduler: Any) -> Any:
    """The pool of GPU blocks, None where a scheduler has none."""
    return getattr(getattr(scheduler, "kv_cache_manager", None), "block_pool", None)
