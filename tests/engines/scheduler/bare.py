"""A scheduler without workers: steps whose output is made up. Runs inside the engines' interpreter."""

from __future__ import annotations

from typing import Any

import torch
from counted import FrontEnd
from vllm.config import (
    CacheConfig,
    KVTransferConfig,
    ModelConfig,
    ParallelConfig,
    SchedulerConfig,
    SpeculativeConfig,
    VllmConfig,
)
from vllm.sampling_params import SamplingParams
from vllm.utils.hashing import sha256
from vllm.v1.core.kv_cache_utils import get_request_block_hasher, init_none_hash
from vllm.v1.core.sched.async_scheduler import AsyncScheduler
from vllm.v1.core.sched.scheduler import Scheduler
from vllm.v1.kv_cache_interface import FullAttentionSpec, KVCacheConfig, KVCacheGroupSpec
from vllm.v1.outputs import DraftTokenIds, KVConnectorOutput, ModelRunnerOutput
from vllm.v1.request import Request, RequestStatus
from vllm.v1.structured_output import StructuredOutputManager

BLOCK = 16
MODEL = "tiny-llama"
FAKE = "FakeConnector"
init_none_hash(sha256)
DECIDED: list[Any] = []
"""What every pass of the case under way decided."""
HASHER = get_request_block_hasher(BLOCK, sha256)


class Bare:
    """One scheduler and the steps that a case makes it take."""

    def __init__(
        self, *, blocks: int = 100, seats: int = 8, budget: int = 512, connector: str | None = FAKE,
        policy: str = "recompute", overlap: bool = False, drafts: int = 0, priority: bool = False,
    ) -> None:  # fmt: skip
        model = ModelConfig(
            model=MODEL, skip_tokenizer_init=True, dtype="float32", max_model_len=1024, seed=0
        )
        scheduling = SchedulerConfig(
            max_num_seqs=seats, max_num_batched_tokens=budget, max_model_len=1024, is_encoder_decoder=False,
            enable_chunked_prefill=True, async_scheduling=overlap and not drafts,
            policy="priority" if priority else "fcfs",
        )  # fmt: skip
        cache = CacheConfig(block_size=BLOCK, enable_prefix_caching=True)
        cache.num_gpu_blocks = blocks
        # Of the proposers that need no model, none may be overlapped by configuration: the class can.
        speculative = None
        if drafts:
            speculative = SpeculativeConfig(
                method="ngram",
                num_speculative_tokens=drafts,
                prompt_lookup_max=3,
                target_model_config=model,
                target_parallel_config=ParallelConfig(),
            )
        config = VllmConfig(
            model_config=model, scheduler_config=scheduling, cache_config=cache,
            kv_transfer_config=_transfer(connector, policy), speculative_config=speculative,
        )  # fmt: skip
        spec = FullAttentionSpec(block_size=BLOCK, num_kv_heads=2, head_size=32, dtype=torch.float32)
        self.scheduler = (AsyncScheduler if overlap else Scheduler)(
            vllm_config=config,
            kv_cache_config=KVCacheConfig(
                num_blocks=blocks, kv_cache_tensors=[], kv_cache_groups=[KVCacheGroupSpec(["layer"], spec)]
            ),
            structured_output_manager=StructuredOutputManager(config),
            block_size=BLOCK, hash_block_size=BLOCK, log_stats=True,
        )  # fmt: skip
        self.front_end = FrontEnd(config)

    def add(
        self,
        name: str,
        tokens: int,
        *,
        seed: int = 0,
        most: int = 3,
        trace: str | None = None,
        priority: int = 0,
    ) -> Request:
        """A request of `tokens` prompt tokens that puts out `most`."""
        request = Request(
            request_id=name,
            prompt_token_ids=[(number * 7 + seed * 131) % 997 for number in range(tokens)],
            sampling_params=SamplingParams(max_tokens=most, ignore_eos=True),
            pooling_params=None,
            block_hasher=HASHER,
            trace_headers={"traceparent": trace} if trace else None,
            priority=priority,
        )
        self.front_end.add(request)
        self.scheduler.add_request(request)
        return request

    def schedule(self) -> Any:
        """A pass; what it decided is kept."""
        output = self.scheduler.schedule()
        states = [(name, request.status.name) for name, request in self.scheduler.requests.items()]
        DECIDED.append((dict(output.num_scheduled_tokens), states, self.free_blocks()))
        return output

    def put_out(self, output: Any, *, rejected: int = 0, **transfers: Any) -> Any:
        """The output of a step: one token for each request whose prefill is over, and its accepted drafts."""
        names = list(output.num_scheduled_tokens)
        tokens = [self._sampled(output, name, rejected) for name in names]
        kv = KVConnectorOutput(**transfers) if transfers else None
        made = ModelRunnerOutput(
            req_ids=names,
            req_id_to_index={name: number for number, name in enumerate(names)},
            sampled_token_ids=tokens,
            kv_connector_output=kv,
        )
        outputs = self.scheduler.update_from_output(output, made)
        self.front_end.take(outputs)
        return outputs

    def step(self, *, rejected: int = 0, **transfers: Any) -> Any:
        """A pass and its output."""
        output = self.schedule()
        self.put_out(output, rejected=rejected, **transfers)
        return output

    def draft(self, names: list[str], tokens: list[list[int]]) -> None:
        """Draft tokens for the next step."""
        self.scheduler.update_draft_token_ids(DraftTokenIds(names, tokens))

    def abort(self, *names: str) -> None:
        """What a client that disconnects causes."""
        self.front_end.leave(names)
        self.scheduler.finish_requests(names, RequestStatus.FINISHED_ABORTED)

    def free_blocks(self) -> int:
        """Blocks free in the pool."""
        return int(self.scheduler.kv_cache_manager.block_pool.get_num_free_blocks())

    def _sampled(self, output: Any, name: str, rejected: int) -> list[int]:
        request = self.scheduler.requests.get(name)
        if request is None or request.is_prefill_chunk:
            return []
        drafts = len(output.scheduled_spec_decode_tokens.get(name, ()))
        return [5] * (1 + max(0, drafts - rejected))


def _transfer(connector: str | None, policy: str) -> KVTransferConfig | None:
    if connector is None:
        return None
    fake = {"kv_connector_module_path": "fake_connector", "kv_role": "kv_both"}
    if connector != "MultiConnector":
        return KVTransferConfig(kv_connector=connector, kv_load_failure_policy=policy, **fake)
    children = [{"kv_connector": name, **fake} for name in ("FakeConnector", "SecondConnector")]
    return KVTransferConfig(
        kv_connector=connector, kv_role="kv_both", kv_load_failure_policy=policy,
        kv_connector_extra_config={"connectors": children},
    )  # fmt: skip
