"""A connector that answers what a case has planned. Runs inside the engines' interpreter."""

# ruff: noqa: ARG002 - the signatures are vLLM's

from __future__ import annotations

from typing import Any, ClassVar

from vllm.distributed.kv_transfer.kv_connector.v1.base import KVConnectorBase_V1, KVConnectorMetadata

Answer = tuple[int | None, bool]


class FakeConnector(KVConnectorBase_V1):
    """Answers of the plan, one a call, the last for ever; blocks are held while `delay` is set."""

    answers: ClassVar[dict[str, list[Answer]]] = {}
    delay: ClassVar[bool] = False
    touches: ClassVar[list[Any]] = []
    frees: ClassVar[list[Any]] = []
    pool: Any = None

    def bind_gpu_block_pool(self, gpu_block_pool: Any) -> None:
        self.pool = gpu_block_pool

    def get_num_new_matched_tokens(self, request: Any, num_computed_tokens: int) -> Answer:
        planned = self.answers.get(request.request_id, [(0, False)])
        return planned.pop(0) if len(planned) > 1 else planned[0]

    def update_state_after_alloc(self, request: Any, blocks: Any, num_external_tokens: int) -> None:
        pass

    def build_connector_meta(self, scheduler_output: Any) -> KVConnectorMetadata:
        if self.touches:
            self.pool.touch([self.pool.blocks[number] for number in self.touches])
            self.touches.clear()
        return KVConnectorMetadata()

    def update_connector_output(self, connector_output: Any) -> None:
        if self.frees:
            self.pool.free_blocks([self.pool.blocks[number] for number in self.frees])
            self.frees.clear()

    def request_finished(self, request: Any, block_ids: list[int]) -> tuple[bool, dict[str, Any] | None]:
        return self.delay, None

    def start_load_kv(self, forward_context: Any, **kwargs: Any) -> None:
        pass

    def wait_for_layer_load(self, layer_name: str) -> None:
        pass

    def save_kv_layer(self, layer_name: str, kv_layer: Any, attn_metadata: Any, **kwargs: Any) -> None:
        pass

    def wait_for_save(self) -> None:
        pass


class SecondConnector(FakeConnector):
    """A second child of a MultiConnector, with answers of its own."""

    answers: ClassVar[dict[str, list[Answer]]] = {}
