"""SGLang's spans: the root of a request, and the parts that processes did of it.

Req 00c0ffee    10 |--------------------------------| 100     first token at 50
Tokenizer       10 |--------------------------------| 100     the API server's thread
tokenize        10 |-| 12
Scheduler [TP 1]  13 |-----------------------------| 99
prefill_waiting     15 |======| 30
prefill_forward               30 |---| 45
"""

from __future__ import annotations

import json
from typing import TYPE_CHECKING, Any

import pytest
from kvtrace.importer import import_files
from kvtrace.run import open_run
from kvtrace.sources.dialects import to_words
from kvtrace.sources.otlp import json_lines
from tests.unit.importer.drawn import MS, Sent, body, span, word, words

if TYPE_CHECKING:
    from pathlib import Path

RID = "00c0ffee" * 4
SGLANG = {"service.name": "sglang"}
SCOPE = "sglang server"
FINISHED = {
    "gen_ai.request.id": RID, "gen_ai.usage.prompt_tokens": 200, "gen_ai.usage.completion_tokens": 12,
    "gen_ai.usage.cached_tokens": 112, "gen_ai.latency.time_to_first_token": 0.04,
    "gen_ai.response.finish_reasons": '["stop"]',
}  # fmt: skip


def root(rid: str = RID, start: float = 10, end: float | None = 100, **more: Any) -> Sent:
    how = {key: more.pop(key) for key in ("trace", "id") if key in more}
    named = {"rid": rid, "module": "sglang::request", **(FINISHED if end else {}), **more}
    named = {key: value for key, value in named.items() if value is not None}
    return span(f" Req {rid[:8]}", start, end, named, resource=SGLANG, scope=SCOPE, **{"id": 1, **how})


def part(name: str, start: float, end: float, attributes: dict[str, Any] | None = None, **how: Any) -> Sent:
    return span(name, start, end, attributes, resource=SGLANG, scope=SCOPE, **{"parent": 2, **how})


def names(*sent: Sent) -> list[tuple[str, str, str, str]]:
    found = to_words(json_lines.decode([json.dumps(body(*sent)).encode()]), "file").aliases
    return [] if found is None else found.select("alias", "kind", "request_id", "evidence").rows()


def test_a_root_is_a_request_with_its_tokens_and_first_token() -> None:
    row = word(root())
    assert (row["op"], row["request_id"], row["id_kind"], row["observer"], row["status"]) == (
        "request", RID, "internal", "api", "ok",
    )  # fmt: skip
    assert (row["start_ns"], row["first_token_ns"], row["end_ns"]) == (10 * MS, 50 * MS, 100 * MS)
    assert [row[name] for name in ("prompt_tokens", "output_tokens", "reported_cached_tokens")] == [
        200,
        12,
        112,
    ]
    assert row.get("gpu_hit_tokens") is None  # cached tokens come whole, not by tier


def test_a_request_that_has_not_ended_is_known_by_what_it_began_with() -> None:
    row = word(root("abc", end=None))
    assert (row["op"], row["request_id"], row.get("end_ns"), row.get("status")) == (
        "request", "abc", None, None,
    )  # fmt: skip


@pytest.mark.parametrize(
    ("reasons", "status"), [('["abort"]', "aborted"), ('["length"]', "ok"), (None, None)]
)
def test_a_finish_reason_is_a_status(reasons: str | None, status: str | None) -> None:
    changed: dict[str, Any] = {"gen_ai.response.finish_reasons": reasons}
    assert word(root(**changed)).get("status") == status


def test_halves_of_a_request_share_a_room() -> None:
    assert word(root(bootstrap_room="0x1f"))["user_request_id"] == "0x1f"


def test_a_request_is_known_by_its_trace_as_well() -> None:
    assert names(root(), part("tokenize", 10, 12)) == [(f"{1:032x}", "trace", RID, "native")]
    assert names(part("tokenize", 10, 12)) == []


def test_waiting_is_a_queue_and_forwards_are_no_steps() -> None:
    rows, lost = words(
        part("prefill_waiting", 15, 30), part("prefill_forward", 30, 45),
        part("decode_loop", 45, 50, {"decode_ct": 1}), part("tokenize", 10, 12),
    )  # fmt: skip
    assert lost == []
    assert [(row["name"], row.get("op"), row.get("reason"), row["observer"]) for row in rows] == [
        ("prefill_waiting", "queue", "unknown", "scheduler"), ("prefill_forward", None, None, "scheduler"),
        ("decode_loop", None, None, "scheduler"), ("tokenize", None, None, "api"),
    ]  # fmt: skip
    assert {row["request_id"] for row in rows} == {f"{1:032x}"}


@pytest.mark.parametrize(
    ("name", "op", "hop"),
    [
        ("prefill_transfer_kv_cache", "store", ("gpu", "peer")),
        ("decode_transferred", "load", ("peer", "gpu")),
    ],
)
def test_what_one_engine_hands_to_another_is_a_handoff(name: str, op: str, hop: tuple[str, str]) -> None:
    row = word(part(name, 20, 40))
    assert (row["op"], row["purpose"], (row["tier_from"], row["tier_to"])) == (op, "handoff", hop)


def test_a_thread_has_its_rank() -> None:
    attributes = {"tp_rank": 1, "thread_label": "Scheduler", "pid": 7, "host_id": "h"}
    row = word(part("Scheduler [TP 1] (host:h | pid:7)", 13, 99, attributes))
    assert (row["rank"], row.get("op"), row.get("observer")) == (1, None, None)


def test_spans_of_others_with_these_names_are_not_sglangs() -> None:
    row = word(span("prefill_waiting", 15, 30, {"rid": "x", "module": "y"}, scope="somebody"))
    assert (row.get("op"), row.get("request_id")) == (None, None)


def test_parts_join_their_request_also_when_its_trace_is_a_callers(tmp_path: Path) -> None:
    """Two requests of one caller's trace, one after the other; what each waited for is its own."""
    sent = [
        root(id=1), part("prefill_waiting", 15, 30),
        root("f00d", 200, 300, id=3, **{"gen_ai.request.id": "f00d"}), part("prefill_waiting", 210, 220),
    ]  # fmt: skip
    file = tmp_path / "spans.jsonl"
    file.write_text("".join(json.dumps(body(each)) + "\n" for each in sent))
    run = open_run(import_files([file], tmp_path / "run").run)
    rows = run.sql("SELECT request_id, start_ns // 1000000 FROM queue ORDER BY start_ns").rows()
    assert rows == [(RID, 15), ("f00d", 210)]
