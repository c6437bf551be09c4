"""A scheduler that does what a test says: vLLM's names, none of its code.

A pass is a function of the scheduler: it visits, refuses or admits requests through the methods that hooks
wrap, and returns the tokens that it scheduled.
"""

from __future__ import annotations

from collections import deque
from types import SimpleNamespace
from typing import TYPE_CHECKING, Any

from kvtrace.instrument.vllm import connector_hooks, scheduler

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable

BLOCK = 16


class Request:
    """As much of a request as the hooks look at."""

    def __init__(self, name: str, tokens: int) -> None:
        self.request_id = name
        self.num_prompt_tokens = self.num_tokens = tokens
        self.num_computed_tokens = self.num_output_tokens = 0
        self.num_in_flight_tokens = self.num_stale_output_tokens = 0
        self.kv_transfer_params: dict[str, Any] | None = None
        self.trace_headers: dict[str, str] | None = None
        self.state = "WAITING"

    @property
    def status(self) -> Any:
        return SimpleNamespace(name=self.state)

    def is_finished(self) -> bool:
        return self.state.startswith("FINISHED")

    def get_finished_reason(self) -> str:
        return "stop"


class Block:
    """A GPU block."""

    is_null = False

    def __init__(self, number: int) -> None:
        self.block_id = number
        self.ref_cnt = 0


class Pool:
    """A pool whose free blocks a test sets."""

    def __init__(self, blocks: int) -> None:
        self.blocks = [Block(number) for number in range(blocks)]
        self.free = blocks
        self.next: list[int] = []  # what it hands out next, whoever has it

    def get_new_blocks(self, num_blocks: int) -> list[Block]:
        taken = [self.blocks[self.next.pop(0)] for _ in range(num_blocks)]
        for block in taken:
            block.ref_cnt += 1
        return taken

    def unpin_blocks(self, blocks: list[Block], on_reuse: Callable[[Block], None]) -> None:
        del on_reuse
        for block in blocks:
            block.ref_cnt -= 1

    def get_num_free_blocks(self) -> int:
        return self.free

    def touch(self, blocks: list[Block]) -> None:
        for block in blocks:
            block.ref_cnt += 1

    def free_blocks(self, ordered_blocks: Iterable[Block]) -> None:
        for block in ordered_blocks:
            block.ref_cnt -= 1


class Manager:
    """Gives no slots when the pool says that none are free."""

    def __init__(self, blocks: int) -> None:
        self.block_pool = Pool(blocks)
        self.empty_kv_cache_blocks = SimpleNamespace(blocks=((),))
        self.watermark_blocks = 0
        self.max_model_len = 4096
        self.coordinator = self
        self.tables: dict[str, list[Block]] = {}
        self.asked = 0

    def get_blocks(self, request_id: str) -> tuple[list[Block], ...]:
        return (self.tables.get(request_id, []),)

    def get_num_blocks_to_allocate(self, *, num_tokens: int, **_: Any) -> int:
        self.asked += 1
        return -(-num_tokens // BLOCK)

    def allocate_slots(self, request: Request, num_new_tokens: int, **options: Any) -> object | None:
        del request, options
        return object() if -(-num_new_tokens // BLOCK) <= self.block_pool.free else None

    def free(self, request: Request) -> None:
        self.block_pool.free_blocks(self.tables.pop(request.request_id, []))


class Connector:
    """Answers what a test sets; may take references, may be degraded."""

    answer: tuple[int | None, bool] = (0, False)
    delay = False

    def __init__(self) -> None:
        self.during: Callable[[], None] = lambda: None

    def on_new_request(self, request: Request) -> None:
        pass

    def get_num_new_matched_tokens(
        self, request: Request, num_computed_tokens: int
    ) -> tuple[int | None, bool]:
        del request, num_computed_tokens
        self.during()
        return self.answer

    def update_state_after_alloc(self, request: Request, blocks: Any, num_external_tokens: int) -> None:
        pass

    def get_external_cache_hit_sources(self, request: Request, num_external_tokens: int) -> dict[str, int]:
        del request
        return {"disk": num_external_tokens}

    def build_connector_meta(self, scheduler_output: Any) -> None:
        del scheduler_output
        self.during()

    def update_connector_output(self, connector_output: Any) -> None:
        del connector_output
        self.during()

    def request_finished(self, request: Request, block_ids: Any) -> tuple[bool, None]:
        del request, block_ids
        return self.delay, None


class Scheduler:
    """Passes as a test writes them."""

    num_spec_tokens = 0
    block_size = BLOCK

    def __init__(self, blocks: int = 100, connector: Any = None) -> None:
        self.requests: dict[str, Request] = {}
        self.waiting: deque[Request] = deque()
        self.kv_holding_waiting: deque[Request] = deque()
        self.deferred_waiting: set[Request] = set()
        self.connector = connector
        self.kv_cache_manager = Manager(blocks)
        self.next_pass: Callable[[Scheduler], dict[str, int]] = lambda _: {}

    def add_request(self, request: Request) -> None:
        self.waiting.append(request)
        self._enqueue_waiting_request(request)
        self.requests[request.request_id] = request

    def _enqueue_waiting_request(self, request: Request) -> None:
        pass

    def _handle_blocked_waiting_request(self, request: Request) -> bool:
        return request.state == "WAITING"

    def _update_waiting_for_remote_kv(self, request: Request) -> None:
        pass

    def schedule(self, throttle_prefills: bool = False) -> Any:  # noqa: FBT001, FBT002 - vLLM's signature
        del throttle_prefills
        tokens = self.next_pass(self)
        for name, count in tokens.items():
            self.requests[name].num_computed_tokens += count
            self.requests[name].num_in_flight_tokens += count
        return SimpleNamespace(num_scheduled_tokens=tokens, total_num_scheduled_tokens=sum(tokens.values()))

    def update_from_output(self, scheduler_output: Any, model_runner_output: Any) -> dict[int, Any]:
        outputs = []
        for name, count in scheduler_output.num_scheduled_tokens.items():
            request = self.requests[name]
            request.num_in_flight_tokens -= count
            new = model_runner_output.tokens.get(name, [])
            request.num_tokens += len(new)
            request.num_output_tokens += len(new)
            outputs.append(SimpleNamespace(request_id=name, new_token_ids=new))
        for name in getattr(model_runner_output.kv_connector_output, "finished_sending", ()):
            self._free_blocks(self.requests[name])
        return {0: SimpleNamespace(outputs=outputs)}

    def _preempt_request(self, request: Request, timestamp: float) -> None:
        del timestamp
        self.kv_cache_manager.free(request)
        request.state = "PREEMPTED"
        request.num_computed_tokens = 0
        self.waiting.appendleft(request)

    def _free_request(self, request: Request) -> None:
        held = self.connector is not None and self.connector.request_finished(request, ())[0]
        if not held:
            self._free_blocks(request)

    def _free_blocks(self, request: Request) -> None:
        self.kv_cache_manager.free(request)
        del self.requests[request.request_id]


def made(blocks: int = 100, connector: Any = None) -> Any:
    """A scheduler whose class is a fresh copy, so that hooks of one test never reach another."""
    cls = type("Scheduler", (Scheduler,), dict(vars(Scheduler)))
    manager = type("Manager", (Manager,), dict(vars(Manager)))
    pool = type("Pool", (Pool,), dict(vars(Pool)))
    scheduler.instrument(cls)
    if connector is not None:
        for each in (connector, *getattr(connector, "_connectors", ())):
            connector_hooks.instrument(type(each))
    found = object.__new__(cls)
    Scheduler.__init__(found, blocks, connector)
    found.kv_cache_manager.__class__ = manager
    found.kv_cache_manager.block_pool.__class__ = pool
    scheduler.made(None, found)
    return found


def output(tokens: dict[str, list[int]] | None = None, **transfers: Any) -> Any:
    """A model runner's output."""
    kv = SimpleNamespace(**transfers) if transfers else None
    return SimpleNamespace(tokens=tokens or {}, kv_connector_output=kv)


def connector_class(name: str = "FakeConnector") -> Any:
    """A connector of a class of its own."""
    return type(name, (Connector,), dict(vars(Connector)))()
