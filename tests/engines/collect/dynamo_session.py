"""Run inside a network of its own: Dynamo's front end and two simulated workers with a host tier, collected.

`python -m tests.engines.collect.dynamo_session FOLDER DYNAMO_PYTHON` starts `kvtrace collect`, the workers
and the front end, asks four prompts in three rounds, and stops them. FOLDER then holds

    run/                    what kvtrace collect wrote
    request-trace.jsonl     which blocks each request asked for, and what the router forecast
    responses.jsonl         what the workers reported, as a client sees it
    frontend.log            the router's choices among other things
"""

from __future__ import annotations

import json
import sys
import time
import urllib.request
from contextlib import ExitStack
from pathlib import Path

from tests.engines import model, process

PORT = 18000
URL = f"http://127.0.0.1:{PORT}"
PROMPTS, ROUNDS, WORDS = 4, 3, 540
EXPORT_S = 7.0
"""Dynamo exports its spans every five seconds."""
READY_S = 120.0
PAUSE_S = 1.5
"""By then the host tier has what left a GPU, and the router has heard of it, however busy the machine is."""
TIERS = ["--num-host-blocks", "512", "--host-offload-d2h-bandwidth-gbps", "0.01",
         "--host-offload-h2d-bandwidth-gbps", "0.01"]  # fmt: skip
ENVIRONMENT = {
    "DYN_DISCOVERY_BACKEND": "file", "DYN_FILE_KV": "kv", "DYN_EVENT_PLANE": "zmq",
    "DYN_REQUEST_PLANE": "tcp", "HF_HUB_OFFLINE": "1",
    "DYN_LOG": "info,dynamo_kv_router=debug,dynamo_llm=debug",
    "DYN_LOGGING_JSONL": "true", "DYN_LOGGING_SPAN_EVENTS": "true", "TOKIO_WORKER_THREADS": "2",
    "DYN_RUNTIME_NUM_WORKER_THREADS": "2", "RAYON_NUM_THREADS": "1", "DYN_REQUEST_TRACE": "1",
    "DYN_REQUEST_TRACE_RECORDS": "request_end", "DYN_REQUEST_TRACE_SINKS": "file",
    "DYN_REQUEST_TRACE_FILE_FORMAT": "jsonl", "DYN_REQUEST_TRACE_FILE_PATH": "request-trace.jsonl",
    "DYN_SYSTEM_HOST": "127.0.0.1", "DYN_TCP_RPC_HOST": "127.0.0.1", "DYN_TCP_RESPONSE_STREAM_HOST": "lo",
    "DYN_SELF_HOST_METADATA": "0", "OTEL_EXPORT_ENABLED": "1",
}  # fmt: skip


def main() -> None:
    """One session; what was started is ended, whatever happens."""
    folder, python = Path(sys.argv[1]), sys.argv[2]
    write_model(folder / "model")
    (folder / "kv").mkdir()
    with ExitStack() as ending:

        def start(name: str, command: list[str], **environment: str) -> process.Child:
            child = process.start(name, command, folder=folder, environment=environment)
            ending.callback(process.stop, child)
            return child

        words = ["--otlp-grpc", "127.0.0.1:0", "--kv-events", f"file://{folder / 'kv'}", "--every", "0.5",
                 "--metrics", URL]  # fmt: skip
        collector = start("collect", [sys.executable, "-m", "kvtrace", "collect", "--out", "run", *words])
        where = process.first_line(collector, timeout_s=60).split()[1]
        otlp = dict.fromkeys(
            ("OTEL_EXPORTER_OTLP_ENDPOINT", "OTEL_EXPORTER_OTLP_TRACES_ENDPOINT"), f"http://{where}"
        )
        workers = ["--model-path", "model", "--num-workers", "2", "--block-size", "16",
                   "--speedup-ratio", "10", "--num-gpu-blocks-override", "64",
                   "--max-num-batched-tokens", "2048", *TIERS]  # fmt: skip
        start(
            "mocker", [python, "-m", "dynamo.mocker", *workers],
            **ENVIRONMENT, **otlp, OTEL_SERVICE_NAME="mocker", DYN_SYSTEM_PORT="18081",
        )  # fmt: skip
        front = ["--router-mode", "kv", "--http-host", "127.0.0.1", "--http-port", str(PORT)]
        frontend = start(
            "frontend", [python, "-m", "dynamo.frontend", *front],
            **ENVIRONMENT, **otlp, OTEL_SERVICE_NAME="frontend",
        )  # fmt: skip
        name = ready(frontend)
        ask_all(name, folder / "responses.jsonl")
        time.sleep(EXPORT_S)


def write_model(folder: Path) -> None:
    """The tiny model, with what Dynamo's front end reads besides."""
    model.write_model(folder)
    said = json.loads((folder / "tokenizer_config.json").read_text())
    said["chat_template"] = "{% for m in messages %}{{ m['content'] }} {% endfor %}"
    (folder / "tokenizer_config.json").write_text(json.dumps(said))
    (folder / "generation_config.json").write_text(json.dumps({"bos_token_id": 1, "eos_token_id": 2}))


def ready(frontend: process.Child) -> str:
    """The model's name, once a worker is there."""
    deadline = time.monotonic() + READY_S
    while time.monotonic() < deadline:
        frontend.require_alive()
        try:
            with urllib.request.urlopen(f"{URL}/v1/models", timeout=2) as answer:
                found = json.load(answer)["data"]
        except (OSError, ValueError):
            found = []
        if found:
            time.sleep(2)  # the second worker, and the router's subscription to both
            return str(found[0]["id"])
        time.sleep(0.25)
    raise TimeoutError(f"no model within {READY_S} s; see {frontend.log}")


def ask_all(name: str, log: Path) -> None:
    """Four prompts, three rounds, one after the other; a worker's GPU holds fewer than two of them."""
    with log.open("w") as output:
        for turn in range(ROUNDS):
            for prompt in range(PROMPTS):
                first = 10 + 100 * prompt
                text = " ".join(model.word(first + at % 90) for at in range(WORDS + 10 * prompt))
                output.write(json.dumps(ask(name, text, f"round-{turn}-prompt-{prompt}")) + "\n")
                time.sleep(PAUSE_S)


def ask(name: str, text: str, identity: str) -> dict[str, object]:
    """One request and what its client sees."""
    body = {
        "model": name, "messages": [{"role": "user", "content": text}], "max_tokens": 8, "stream": False,
        "nvext": {"extra_fields": ["worker_id", "timing"]},
    }  # fmt: skip
    headers = {"x-request-id": identity}
    request = urllib.request.Request(
        f"{URL}/v1/chat/completions", json.dumps(body).encode(),
        {"Content-Type": "application/json", **headers},
    )  # fmt: skip
    began = time.time()
    with urllib.request.urlopen(request, timeout=60) as answer:
        said = answer.read().decode()
        head = dict(answer.headers)
    return {
        "path": "/v1/chat/completions", "hdr": headers, "status": 200, "resp_headers": head, "resp": said,
        "t0": began, "wall_s": time.time() - began,
    }  # fmt: skip


if __name__ == "__main__":
    main()
