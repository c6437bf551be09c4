"""vLLM 0.32's front end in miniature: the methods that are wrapped, with its names and its order of calls."""

from __future__ import annotations

import time
from dataclasses import dataclass, field
from types import SimpleNamespace
from typing import Any


@dataclass
class Request:
    request_id: str
    external_req_id: str
    arrival_time: float = field(default_factory=time.time)
    prompt_token_ids: list[int] = field(default_factory=lambda: [5] * 7)
    sampling_params: Any = None
    trace_headers: dict[str, str] | None = None


@dataclass
class Output:
    request_id: str
    new_token_ids: list[int] = field(default_factory=lambda: [1])
    finish_reason: str | None = None


class Detokenizer:
    def __init__(self) -> None:
        self.count = 0

    def num_output_tokens(self) -> int:
        return self.count


class State:
    def __init__(self, request: Request) -> None:
        self.request_id = request.request_id
        self.external_req_id = request.external_req_id
        self.prompt_len = len(request.prompt_token_ids)
        self.detokenizer: Detokenizer | None = Detokenizer()
        self.is_prefilling = True
        self.num_cached_tokens = 0


class Template:
    """OutputProcessor, before anybody wrapped it."""

    def __init__(self) -> None:
        self.request_states: dict[str, State] = {}
        self.cached = 4

    def add_request(
        self,
        request: Request,
        prompt: Any,
        _parent: Any = None,
        request_index: int = 0,
        queue: Any = None,
    ) -> None:
        assert prompt is None
        assert request_index >= 0
        assert queue is None
        state = self.request_states.get(request.request_id)
        if state is not None:
            self._update_streaming_request_state(state, request, prompt)
            return
        self.request_states[request.request_id] = State(request)

    def _update_streaming_request_state(self, req_state: State, request: Request, _prompt: Any) -> None:
        if not request.prompt_token_ids:
            self.request_states.pop(req_state.request_id)

    def process_outputs(
        self, engine_core_outputs: list[Output], engine_core_timestamp: float | None = None
    ) -> None:
        assert engine_core_timestamp is None
        for output in engine_core_outputs:
            state = self.request_states.get(output.request_id)
            if state is None:
                continue
            state.is_prefilling, state.num_cached_tokens = False, self.cached
            if state.detokenizer is not None:
                state.detokenizer.count += len(output.new_token_ids)
            if output.finish_reason is not None:
                self.request_states.pop(output.request_id)
                self._update_stats_from_finished(state, output.finish_reason, None)

    def _update_stats_from_finished(self, req_state: State, finish_reason: str, stats: Any) -> None:
        assert req_state.request_id
        assert finish_reason
        assert stats is None

    def abort_requests(self, request_ids: Any, internal: bool) -> list[str]:  # noqa: FBT001 - as vLLM's
        assert internal
        return [each for each in request_ids if self.request_states.pop(each, None)]

    def propagate_error(self, error: Exception) -> None:
        assert error


def module() -> Any:
    """A fresh module with a fresh OutputProcessor: wrapping changes it in place."""
    own = {name: value for name, value in vars(Template).items() if name not in ("__dict__", "__weakref__")}
    return SimpleNamespace(OutputProcessor=type("OutputProcessor", (), own))
