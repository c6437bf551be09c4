"""The closed loop in four runs: vLLM without reuse, with its own prefix cache, with LMCache, LMCache cut off.

Minutes: `pytest -m engine`. vLLM's own benchmark drives the load, with prompts of ours in a file as it reads
them without a library that the environment lacks. See test_vllm_lmcache.py for the environment.
"""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
from kvtrace.run import open_run
from tests.engines import model
from tests.engines.configuration import BLOCK_TOKENS, CHUNK_TOKENS, GPU_BLOCKS
from tests.engines.prompts import Prompt

pytestmark = pytest.mark.engine

HERE = Path(__file__).parent
LIMIT_S = 900
PROMPTS, TOKENS, ANSWER_TOKENS = 6, 1024, 4
"""Six prompts of eight blocks: more than the pool of 39 blocks holds, less than the cache does."""
ORDER = (0, 1, 2, 0, 1, 2, 3, 4, 5, 3, 4, 5)
"""A prompt that comes again soon is still in the pool; the first three are gone from it by the end."""
REQUESTS = len(ORDER)
LOAD = (
    "--backend openai --base-url {base_url} --model tiny-llama --dataset-name sharegpt --disable-shuffle "
    "--ignore-eos --max-concurrency 1 --save-result --save-detailed --result-filename {out} "
    "--request-id-prefix {request_id_prefix} "
    "--metadata request_id_prefix={request_id_prefix} clock_offset_ns={clock_offset_ns}"
)
CONNECTOR = {
    "kv_connector": "LMCacheMPConnector",
    "kv_role": "kv_both",
    "kv_load_failure_policy": "recompute",
    "kv_connector_extra_config": {
        "lmcache.mp.host": "tcp://127.0.0.1",
        "lmcache.mp.port": "PORT",
        "lmcache.mp.mp_transfer_mode": "lmcache_driven",
        "lmcache.mp.mq_timeout": 2,
    },
}


def plan_of(folder: Path, python: Path) -> str:
    """The plan, with the commands of this machine."""
    prompts = folder / "prompts.json"
    engine = (
        f"{python} -m vllm.entrypoints.openai.api_server --model {folder / model.NAME} "
        f"--served-model-name tiny-llama --load-format dummy --dtype bfloat16 --max-model-len 4096 "
        f"--enforce-eager --block-size {BLOCK_TOKENS} --num-gpu-blocks-override {GPU_BLOCKS} "
        "--host 127.0.0.1 --port {port} --enable-request-id-headers"
    )
    cache = (
        f"{python} -m lmcache.cli.main server --host 127.0.0.1 --port {{backend_port}} "
        f"--http-host 127.0.0.1 --http-port {{backend_http_port}} --chunk-size {CHUNK_TOKENS} "
        "--l1-size-gb 0.064 --eviction-policy LRU --supported-transfer-mode auto"
    )
    connector = json.dumps(CONNECTOR).replace('"PORT"', "{backend_port}")
    return f"""
[fixed]
gpus = 1
prompt_tokens = {TOKENS}
output_tokens = {ANSWER_TOKENS}
arrivals = "one after the other"
prefix_working_set_tokens = {PROMPTS * TOKENS}
slo = {{ ttft_ns = 1_000_000_000 }}

[load]
command = '''{python} {HERE / "bench_script.py"} {LOAD} --num-prompts {REQUESTS} \
--sharegpt-output-len {ANSWER_TOKENS} --tokenizer {folder / model.NAME} --dataset-path {prompts}'''
warmup = "{python} {HERE / "ask_script.py"} {{base_url}} tiny-llama {prompts}"
rounds = 2
requests = {REQUESTS}
settle_s = 3
timeout_s = 300

[group.no_reuse]
engine = '''{engine} --no-enable-prefix-caching'''

[group.no_reuse.environment]
HF_HUB_OFFLINE = "1"
LMCACHE_DISABLE_BANNER = "1"
LMCACHE_TRACK_USAGE = "false"
VLLM_CPU_KVCACHE_SPACE = "1"
VLLM_NO_USAGE_STATS = "1"
VLLM_SERVER_DEV_MODE = "1"

[group.gpu_prefix]
base = "no_reuse"
engine = '''{engine}'''

[group.tiered]
base = "gpu_prefix"
engine = '''{engine} --kv-transfer-config '{connector}' '''
backend = '''{cache}'''
backend_ready = "/healthcheck"

[group.tiered_cut]
base = "tiered"
disconnect_at = 0.5
rounds = 1
"""


def segments() -> set[Path]:
    """Shared memory that LMCache's dead processes left: a name is lmcache_kv_<pid>_<number>."""
    found = Path("/dev/shm").glob("lmcache_kv_*_*")
    return {each for each in found if not Path("/proc", each.name.split("_")[2]).exists()}


@pytest.fixture(scope="module")
def out(python: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The folder that `kvtrace experiment` made."""
    folder = tmp_path_factory.mktemp("experiment")
    model.write_model(folder / model.NAME)
    prompts = [Prompt(number=number, tokens=TOKENS).text() for number in ORDER]
    (folder / "prompts.json").write_text(
        json.dumps([{"conversations": [{"value": text}, {"value": "w5"}]} for text in prompts])
    )
    (folder / "plan.toml").write_text(plan_of(folder, python))
    command = [sys.executable, "-m", "kvtrace", "experiment", str(folder / "plan.toml")]
    before = segments()
    done = subprocess.run(
        [*command, "--out", str(folder / "four")],
        capture_output=True, text=True, timeout=LIMIT_S, check=False,
    )  # fmt: skip
    for left in segments() - before:
        left.unlink(missing_ok=True)
    assert done.returncode == 0, done.stderr + "".join(
        f"\n{log}: {log.read_text(errors='replace')[-1500:]}" for log in folder.glob(".four.*/logs/*.log")
    )
    (folder / "said").write_text(done.stderr)
    (folder / "shown").write_text(done.stdout)
    return folder / "four"


@pytest.fixture(scope="module")
def cells(out: Path) -> dict[tuple[str, str], dict[str, Any]]:
    """What `kvtrace compare` says of the runs, under the plan."""
    command = [sys.executable, "-m", "kvtrace", "compare", *map(str, sorted((out / "runs").iterdir()))]
    done = subprocess.run(
        [*command, "--plan", str(out / "plan.toml"), "--format", "json"],
        capture_output=True, text=True, timeout=300, check=False,
    )  # fmt: skip
    assert done.returncode == 0, done.stderr
    return {(row["group"], row["metric"]): row for row in json.loads(done.stdout)}


def test_four_groups_stand_side_by_side_each_against_its_base(cells: dict[Any, Any]) -> None:
    steps = {group: row["against"] for (group, _), row in cells.items()}
    assert list(steps.items()) == [
        ("no_reuse", None), ("gpu_prefix", "no_reuse"), ("tiered", "gpu_prefix"), ("tiered_cut", "tiered"),
    ]  # fmt: skip
    runs = {group: row["runs"] for (group, _), row in cells.items()}
    assert runs == {"no_reuse": 2, "gpu_prefix": 2, "tiered": 2, "tiered_cut": 1}


def test_every_request_of_every_group_is_answered(cells: dict[Any, Any]) -> None:
    for group in ("no_reuse", "gpu_prefix", "tiered", "tiered_cut"):
        assert cells[group, "completed"]["value"] == REQUESTS, group
        assert cells[group, "errors"]["value"] == 0, group


def test_the_same_requests_are_compared(cells: dict[Any, Any]) -> None:
    for group in ("gpu_prefix", "tiered", "tiered_cut"):
        assert cells[group, "ttft_mean_ns"]["paired"], group
        assert cells[group, "ttft_mean_ns"]["change_low"] is not None, group


def test_each_group_has_the_reuse_that_it_is_named_for(cells: dict[Any, Any]) -> None:
    assert cells["no_reuse", "hit.gpu"]["value"] in (0, None)
    assert cells["gpu_prefix", "hit.gpu"]["value"] >= 0.4
    for group in ("no_reuse", "gpu_prefix"):
        assert cells[group, "hit.host"]["value"] is None, group
    assert cells["tiered", "hit.gpu"]["value"] >= 0.4
    assert cells["tiered", "hit.host"]["value"] >= 0.2
    assert cells["tiered", "fallbacks.loaded"]["value"] >= 3
    assert cells["tiered", "loaded_bytes"]["value"] >= 3 * (TOKENS - CHUNK_TOKENS) * model.KV_BYTES_PER_TOKEN


def test_what_was_cut_off_falls_back_and_is_answered_all_the_same(cells: dict[Any, Any]) -> None:
    cut = {metric: row["value"] for (group, metric), row in cells.items() if group == "tiered_cut"}
    recomputed = [value for name, value in cut.items() if name.startswith("fallbacks.recompute") and value]
    assert cut["fallbacks.loaded"] >= 1
    assert sum(recomputed) >= 1


def test_the_measured_phase_began_when_the_tier_was_warm(out: Path) -> None:
    for name in ("tiered-1", "tiered-2", "tiered_cut-1"):
        warm = open_run(out / "runs" / name).meta["warm"]
        assert warm["stores"] >= PROMPTS, name
        assert warm["unfinished"] == 0, name
    assert open_run(out / "runs" / "tiered-2").meta["prefix_cache_reset"]


def test_the_client_the_engine_and_the_cache_are_in_one_run(out: Path) -> None:
    run = open_run(out / "runs" / "tiered-2")
    roles = {role for (role,) in run.connection().sql("SELECT DISTINCT role FROM process").fetchall()}
    assert {"api", "scheduler", "worker"} <= roles
    names = run.connection().sql("SELECT count(DISTINCT alias) FROM alias WHERE alias LIKE 'kvx-%'")
    assert names.fetchall()[0][0] >= REQUESTS
    ((requests,),) = run.connection().sql("SELECT count(*) FROM request").fetchall()
    assert requests == REQUESTS


def test_the_page_and_the_tables_show_the_steps(out: Path) -> None:
    assert "What does each step bring?" in (out / "report.html").read_text()
    shown = (out.parent / "shown").read_text()
    assert "gpu_prefix -> tiered" in shown
    assert "its backend disconnected after" in (out.parent / "said").read_text()
