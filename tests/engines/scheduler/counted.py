"""What vLLM's own front end counts of the cases: its output processor and its page of metrics.

Runs inside the engines' interpreter. The scheduler's outputs go through vLLM's OutputProcessor, what that
says of an iteration into vLLM's PrometheusStatLogger, as AsyncLLM's output handler does it (vLLM 0.32,
v1/engine/async_llm.py). A page is kept before the first case and one after the last.
"""

from __future__ import annotations

import time
from pathlib import Path
from typing import TYPE_CHECKING, Any

from prometheus_client import generate_latest
from vllm.v1.engine import EngineCoreRequest
from vllm.v1.engine.output_processor import OutputProcessor
from vllm.v1.metrics.loggers import PrometheusStatLogger
from vllm.v1.metrics.stats import IterationStats

if TYPE_CHECKING:
    from vllm.config import VllmConfig
    from vllm.v1.request import Request

BEFORE = "vllm-metrics-before.txt"
AFTER = "vllm-metrics-after.txt"
_LOGGERS: list[PrometheusStatLogger] = []
"""One a process, as in an API server: another would begin every counter anew."""


class FrontEnd:
    """The part of an API server that counts, for one scheduler."""

    def __init__(self, config: VllmConfig) -> None:
        self._processor = OutputProcessor(None, log_stats=True)
        if not _LOGGERS:
            _LOGGERS.append(PrometheusStatLogger(config))
            keep(BEFORE)

    def add(self, request: Request) -> None:
        """What arrives at the scheduler arrived here before."""
        self._processor.add_request(
            EngineCoreRequest(
                request_id=request.request_id, prompt_token_ids=request.prompt_token_ids, mm_features=None,
                sampling_params=request.sampling_params, pooling_params=None, arrival_time=time.time(),
                lora_request=None, cache_salt=None, data_parallel_rank=None,
                external_req_id=request.request_id,
            ),
            prompt=None,
        )  # fmt: skip

    def take(self, outputs: dict[int, Any]) -> None:
        """The outputs of a step."""
        for one in outputs.values():
            stats = IterationStats()
            self._processor.process_outputs(one.outputs, one.timestamp, stats)
            _LOGGERS[0].record(one.scheduler_stats, stats)

    def leave(self, names: tuple[str, ...]) -> None:
        """Their clients are gone."""
        self._processor.abort_requests(names, internal=True)


def keep(name: str) -> None:
    """The page of metrics as it is now; without a case there is none."""
    if _LOGGERS:
        Path(name).write_bytes(generate_latest())
