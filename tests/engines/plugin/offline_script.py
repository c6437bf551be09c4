"""Run by the engines' python: vLLM as a library, a tiny model, a connector, events on; writes answers.json.

`offline_script.py [PRETEND_VERSION]`, in a folder with the model. The prompts' tokens are random numbers. Of
the recordings' checks only the worker's is made here: what its connector got from the scheduler's.
"""

from __future__ import annotations

import json
import os
import random
import sys
from pathlib import Path

os.environ["VLLM_ALLOW_INSECURE_SERIALIZATION"] = "1"  # a function is sent to the worker
if len(sys.argv) > 1:
    import vllm.v1.engine.output_processor as changed
    import vllm.version

    vllm.version.__version__ = sys.argv[1]
    del changed.OutputProcessor.propagate_error

from vllm import LLM, SamplingParams

VOCABULARY = 1024
BLOCK_TOKENS = 128
PROMPT_TOKENS = 300


def main() -> None:
    """Six prompts, two of them twice; one with two answers; one aborted; one refused."""
    llm = LLM(
        model="tiny-llama",
        load_format="dummy",
        dtype="bfloat16",
        max_model_len=1024,
        enforce_eager=True,
        block_size=BLOCK_TOKENS,
        num_gpu_blocks_override=40,
        kv_transfer_config={
            "kv_connector": "ExampleConnector",
            "kv_role": "kv_both",
            "kv_connector_extra_config": {"shared_storage_path": str(Path("stored").absolute())},
        },
        kv_events_config={
            "enable_kv_cache_events": True,
            "publisher": "zmq",
            "endpoint": "ipc://events.sock",
        },
    )
    answers = [_tokens(llm, [0, 1, 2, 3, 4, 5]), _tokens(llm, [0, 1])]
    answers.append(_tokens(llm, [7], n=2))
    _abort(llm, 8)
    carried = llm.collective_rpc(_carried)
    Path("answers.json").write_text(json.dumps({"tokens": answers, "carried": carried}))


def _tokens(llm: LLM, numbers: list[int], n: int = 1) -> list[list[int]]:
    prompts = [{"prompt_token_ids": _prompt(number)} for number in numbers]
    options = SamplingParams(n=n, max_tokens=8, temperature=float(n > 1), seed=7, ignore_eos=True)
    found = llm.generate(prompts, options, use_tqdm=False)
    return [list(output.token_ids) for request in found for output in request.outputs]


def _prompt(number: int) -> list[int]:
    source = random.Random(number)
    return [source.randrange(3, VOCABULARY) for _ in range(PROMPT_TOKENS)]


def _abort(llm: LLM, number: int) -> None:
    engine = llm.llm_engine
    options = SamplingParams(max_tokens=50, ignore_eos=True)
    name = engine.add_request("to-abort", {"prompt_token_ids": _prompt(number)}, options)
    for _ in range(3):
        engine.step()
    engine.abort_request([name], internal=True)
    while engine.has_unfinished_requests():
        engine.step()


def _carried(_worker: object) -> list[str] | None:
    """In the worker: the requests of the last step, as its connector was told."""
    from vllm.distributed.kv_transfer import get_kv_transfer_group

    step = vars(get_kv_transfer_group()).get("_kvtrace_step")
    return None if step is None else [*step["requests"], *step["loads"]]


if __name__ == "__main__":
    main()
