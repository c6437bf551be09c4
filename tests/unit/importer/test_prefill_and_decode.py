"""A deployment with a prefill and a decode engine, each engine's file an input of one import.

user u0    ms   0        10       40  42 44 45      60 62  65      90     100
    p           |  queue | compute |   |                                        prefill engine
    d                                     |  | peer->gpu |   | compute  token | decode engine
user u1 asks the decode engine alone, which finds 1,280 of its 1,536 tokens in its host memory.
"""

from __future__ import annotations

import json
from typing import TYPE_CHECKING, Any

import pytest
from kvtrace.analyses.critical_path import critical_path
from kvtrace.analyses.hit_funnel import hit_funnel
from kvtrace.analyses.hit_ratio import hit_ratio
from kvtrace.analyses.ledger import ledger
from kvtrace.importer import import_files
from kvtrace.run import open_run
from tests.unit.importer.drawn import MS, Sent, body, llm_request, op

if TYPE_CHECKING:
    from pathlib import Path

    from kvtrace.run import Run

START = 1_800_000_000_000_000_000
PROMPT, FOUND = 1536, 1280
P, D, ALONE = "cmpl-u0-0-aaaaaaaa", "cmpl-u0-0-bbbbbbbb", "cmpl-u1-0-cccccccc"
PREFILL = {"service.name": "vllm", "service.instance.id": "prefill-1", "kvtrace.engine": "prefill"}
DECODE = {"service.name": "vllm", "service.instance.id": "decode-1", "kvtrace.engine": "decode"}


def at(word: str, start: float, end: float, request: str | None, where: dict[str, Any], **named: Any) -> Sent:
    """A canonical span of an engine, in milliseconds from START."""
    times = (START + round(start * MS), START + round(end * MS))
    return op(word, 0, 0, request, resource=where, times_ns=times, **named)


def asked(start: float, end: float, first: float, request: str, where: dict[str, Any], **named: Any) -> Sent:
    first_ns = START + round(first * MS)
    more = {"kvtrace.user_request.id": named.pop("user")} if "user" in named else {}
    return at("request", start, end, request, where, observer="api", prompt_tokens=PROMPT, status="ok",
              first_token_ns=first_ns, gpu_hit_tokens=0, more=more, **named)  # fmt: skip


def step(start: float, end: float, request: str, where: dict[str, Any], before: int, tokens: int) -> Sent:
    members = {"request_ids": [request], "phases": ["prefill"], "tokens": [tokens], "output_tokens": [1],
               "computed_before": [before]}  # fmt: skip
    more = {f"kvtrace.step.{name}": value for name, value in members.items()}
    return at("step", start, end, None, where, observer="scheduler", more=more)


def found(start: float, end: float, request: str, tokens: int) -> Sent:
    return at("lookup", start, end, request, DECODE, observer="scheduler", requested_tokens=PROMPT,
              found_tokens=tokens, component="cache", outcome="ok")  # fmt: skip


def moved(start: float, end: float, request: str, tokens: int, tier: str, purpose: str) -> Sent:
    return at("load", start, end, request, DECODE, observer="scheduler", tokens=tokens, tier_from=tier,
              tier_to="gpu", purpose=purpose, component=f"cache.{tier}", outcome="ok",
              submit_ns=START + round((start - 1) * MS), usable_ns=START + round((end + 2) * MS))  # fmt: skip


def prefilled() -> list[Sent]:
    return [
        asked(0, 42, 40, P, PREFILL, selected_tokens=0, user=P),
        at("queue", 0, 10, P, PREFILL, observer="scheduler", reason="policy"),
        step(10, 40, P, PREFILL, 0, PROMPT),
    ]


def handed(tokens: int = PROMPT - 1) -> list[Sent]:
    return [
        asked(44, 100, 90, D, DECODE, selected_tokens=tokens, user=P),
        moved(45, 60, D, tokens, "peer", "handoff"),
        step(65, 90, D, DECODE, tokens, PROMPT - tokens),
    ]


def reused() -> list[Sent]:
    return [
        asked(200, 300, 280, ALONE, DECODE, selected_tokens=FOUND),
        found(201, 203, ALONE, FOUND),
        moved(205, 215, ALONE, FOUND, "host", "reuse"),
        step(220, 280, ALONE, DECODE, FOUND, PROMPT - FOUND),
    ]


def deployment(folder: Path, decode: list[Sent], *files: Path) -> Run:
    folder.mkdir()
    for name, spans in (("prefill.jsonl", prefilled()), ("decode.jsonl", decode)):
        (folder / name).write_text(json.dumps(body(*spans)) + "\n")
    return open_run(import_files([folder, *files], folder / "run").run)


@pytest.fixture(scope="module")
def whole(tmp_path_factory: pytest.TempPathFactory) -> Run:
    return deployment(tmp_path_factory.mktemp("whole") / "in", [*handed(), *reused()])


@pytest.fixture(scope="module")
def without(tmp_path_factory: pytest.TempPathFactory) -> Run:
    """As if d had never been asked."""
    return deployment(tmp_path_factory.mktemp("without") / "in", reused())


def test_a_handoff_is_no_hit_of_any_tier(whole: Run) -> None:
    """What u1 found in host memory is one: 1,280 of the prompts of p and u1."""
    rows = {row["tier"]: row for row in hit_ratio(whole).to_dicts()}
    assert set(rows) == {"gpu", "host"}
    assert (rows["host"]["loaded_tokens"], rows["host"]["prompt_tokens"]) == (FOUND, 2 * PROMPT)
    assert rows["gpu"]["loaded_tokens"] == 0


def test_the_ratios_are_those_without_it(whole: Run, without: Run) -> None:
    assert hit_ratio(whole).equals(hit_ratio(without))


@pytest.mark.parametrize("tokens", [0, 512])
def test_however_little_was_handed_over(tmp_path: Path, without: Run, tokens: int) -> None:
    run = deployment(tmp_path / "in", [*handed(tokens), *reused()])
    assert hit_ratio(run).equals(hit_ratio(without))


def test_the_ledger_counts_it_as_no_external_hit_but_shows_its_way(whole: Run) -> None:
    rows = {row["request_id"]: row for row in ledger(whole).to_dicts()}
    assert (rows[D]["external_hit_tokens"], rows[ALONE]["external_hit_tokens"]) == (0, FOUND)
    assert rows[D]["network_ns"] == 15 * MS
    funnel = {row["request_id"]: row for row in hit_funnel(whole).to_dicts()}
    assert (funnel[D]["loaded_tokens"], funnel[D]["moved_tokens"]) == (PROMPT - 1, PROMPT - 1)


def test_both_requests_of_a_user_are_one_by_user(whole: Run) -> None:
    """From p's arrival to d's end, the handoff a load like any other; u1 stands alone."""
    rows = critical_path(whole, by="user").to_dicts()
    path = [((row["start_ns"] - START) // MS, (row["end_ns"] - START) // MS, row["hop"] or row["class"])
            for row in rows if row["request_id"] == P]  # fmt: skip
    assert path == [
        (0, 10, "queue"), (10, 40, "compute"), (40, 44, "other"), (44, 45, "load_wait"),
        (45, 60, "peer->gpu"), (60, 62, "load_wait"), (62, 65, "other"), (65, 90, "compute"),
        (90, 100, "other"),
    ]  # fmt: skip
    assert {row["request_id"] for row in rows} == {P, ALONE}


def test_by_request_they_are_two(whole: Run) -> None:
    assert set(critical_path(whole)["request_id"]) == {P, D, ALONE}


def test_a_load_generators_row_is_of_the_request_that_it_overlaps_most(tmp_path: Path) -> None:
    """Both engines got the caller's id u0: the decode engine's request is there for longer."""
    about = {"x_request_id": "u0", "worker_id": "w", "request_start_ns": START - MS,
             "request_end_ns": START + 101 * MS}  # fmt: skip
    metrics = {"time_to_first_token": {"value": 91.0, "unit": "ms"}}
    file = tmp_path / "profile_export.jsonl"
    file.write_text(json.dumps({"metadata": about, "metrics": metrics}) + "\n")
    vllm = [llm_request("cmpl-u0-0", START / MS + start, START / MS + end, resource=where)
            for start, end, where in ((0, 42, PREFILL), (44, 100, DECODE))]  # fmt: skip
    run = deployment(tmp_path / "all", [*handed(), *reused(), *vllm], file)
    query = "SELECT request_id, attributes['client.ttft_ns'] FROM span WHERE observer = 'client'"
    assert run.sql(query).rows() == [(D, "91000000")]
