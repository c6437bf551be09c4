"""vLLM's own exporter, events and page, collected from an API server that knows nothing of kvtrace."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest
from kvtrace.run import open_run
from tests.engines.collect.vllm_session import Asked, play
from tests.engines.configuration import BLOCK_TOKENS, HOST_NAME
from tests.engines.drive import OUTPUT_TOKENS
from tests.engines.prompts import plain

if TYPE_CHECKING:
    from pathlib import Path

    from kvtrace.run import Run

pytestmark = pytest.mark.engine
FULL_BLOCKS = 1500 // BLOCK_TOKENS


@pytest.fixture(scope="module")
def asked(python: Path, tmp_path_factory: pytest.TempPathFactory) -> Asked:
    return play(python, tmp_path_factory.mktemp("collected") / "run")


@pytest.fixture(scope="module")
def run(asked: Asked) -> Run:
    return open_run(asked.run)


def test_every_request_that_a_client_sent_is_a_row_under_its_own_name(asked: Asked, run: Run) -> None:
    found = run.sql(
        "SELECT a.alias, r.prompt_tokens, r.output_tokens, r.process, r.evidence "
        "FROM request r JOIN alias a USING (request_id) WHERE a.kind = 'client' ORDER BY 1"
    )
    assert found.rows() == [
        (response.request_id, response.prompt_tokens, OUTPUT_TOKENS, "vllm-1", "native")
        for response in asked.responses
    ]
    assert run.sql("SELECT count(*) FROM request").item() == len(asked.responses)


def test_a_request_lies_inside_of_what_its_client_saw(asked: Asked, run: Run) -> None:
    """The client starts before the server, and one clock tells both."""
    spans = {
        name: (start, first, end)
        for name, start, first, end in run.sql(
            "SELECT a.alias, r.start_ns, r.first_token_ns, r.end_ns "
            "FROM request r JOIN alias a USING (request_id) WHERE a.kind = 'client'"
        ).rows()
    }
    for response in asked.responses:
        start, first, end = spans[response.request_id]
        assert response.started_ns <= start <= end <= response.ended_ns
        assert first is None or start <= first <= end


def test_every_queue_time_that_the_spans_sum_up_is_a_row(asked: Asked, run: Run) -> None:
    queues = "SELECT count(DISTINCT request_id), min(evidence), max(reason) FROM span WHERE op = 'queue'"
    assert run.sql(queues).rows() == [(len(asked.responses), "derived", "unknown")]


def test_the_spans_of_all_three_kinds_of_process_came_from_one_instance(run: Run) -> None:
    known = "SELECT process, host, product, role, attributes['pids'] AS pids FROM process"
    (row,) = run.sql(known).to_dicts()
    assert (row["process"], row["host"], row["product"]) == ("vllm-1", HOST_NAME, "vllm")
    assert row["role"] == "scheduler, worker"
    assert len(row["pids"].split(", ")) == 3


def test_the_page_counts_as_many_requests_and_tokens_as_were_asked(asked: Asked, run: Run) -> None:
    last = dict(run.sql("SELECT name, sum(value) FROM (FROM metric QUALIFY time_ns = max(time_ns) OVER ()) "
                        "WHERE name IN ('vllm:request_success_total', 'vllm:prompt_tokens_total', "
                        "'vllm:generation_tokens_total') GROUP BY 1").rows())  # fmt: skip
    assert last == {
        "vllm:request_success_total": len(asked.responses),
        "vllm:prompt_tokens_total": sum(response.prompt_tokens for response in asked.responses),
        "vllm:generation_tokens_total": OUTPUT_TOKENS * len(asked.responses),
    }


def test_the_blocks_of_every_different_prompt_were_stored_once(asked: Asked, run: Run) -> None:
    """40 GPU blocks hold three prompts: what is evicted in between is stored anew, but nothing is lost."""
    stored = "SELECT count(DISTINCT key), min(tokens) FROM block WHERE event = 'stored' AND tier = 'gpu'"
    different = {response.prompt for response in asked.responses}
    keys, tokens = run.sql(stored).rows()[0]
    assert keys >= FULL_BLOCKS * len(different)
    assert tokens == BLOCK_TOKENS


def test_nothing_was_lost_and_nothing_that_a_client_wrote_is_on_disk(asked: Asked, run: Run) -> None:
    assert run.sql("SELECT source, cause, detail FROM loss").rows() == []
    words = " ".join(plain(0)[0].text().split()[:4]).encode()
    assert not [path for path in asked.run.rglob("*") if path.is_file() and words in path.read_bytes()]
