"""engine_numbers: what an engine says beside what was measured, and what the difference consists of.

r0      [ capacity | lookup | remote_kv ][ step prefill ] first token ... end
ms      0         10       20           40              60              100
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import pytest
from kvtrace.analyses.engine_numbers import COLUMNS, engine_numbers
from tests.rows import write_run
from tests.unit.analyses.serving import (
    PROMPT,
    Row,
    asked,
    block_size,
    loaded,
    lookup,
    prefill,
    request,
    scheduler,
    store,
)
from tests.unit.analyses.test_impossible_times import ROWS

if TYPE_CHECKING:
    from pathlib import Path

MS = 1_000_000
VLLM = {"process": "e0/scheduler", "engine": "e0", "product": "vllm", "first_ns": 1_000 * MS}
SERVER = {"process": "lm", "engine": "lm", "product": "lmcache", "first_ns": 1_000 * MS}
HITS = "vllm:external_prefix_cache_hits_total"
QUERIES = "vllm:external_prefix_cache_queries_total"
SOURCE = "vllm:prompt_tokens_by_source_total"
QUEUE = "vllm:request_queue_time_seconds_sum"
PREFILL = "vllm:request_prefill_time_seconds_sum"


def page(name: str, *values: float, kind: str = "counter", **labels: str) -> list[Row]:
    """A series on pages without a time, one sample a page."""
    return [
        {
            "run_id": "r", "name": name, "kind": kind, "value": float(value),
            "labels": {**labels, "kvtrace.source": "p.txt", "kvtrace.page": str(number)},
        }
        for number, value in enumerate(values)
    ]  # fmt: skip


def seconds(name: str, ms: float) -> list[Row]:
    """The sum of a histogram of one request, on two pages."""
    count = name.replace("_sum", "_count")
    return [*page(name, 0, ms / 1000, kind="histogram"), *page(count, 0, 1, kind="histogram")]


def numbers(folder: Path, spans: list[Row], metrics: list[Row], **tables: Any) -> dict[str, Row]:
    """Number -> its row."""
    rows = [{"run_id": "r", "span_id": number, **row} for number, row in enumerate(spans, 1)]
    given = {"process": [VLLM], "identity": [block_size()], **tables}
    frame = engine_numbers(write_run(folder / "run", span=rows, metric=metrics, **given))
    assert frame.schema == COLUMNS
    assert not frame.select("engine", "number").is_duplicated().any()
    return {row["number"]: row for row in frame.to_dicts()}


def sides(row: Row) -> tuple[Any, ...]:
    return row["reported"], row["measured"], row["difference"], row["agrees"]


def answered(returned: int, found: int | None = None, **more: Any) -> Row:
    """An inquiry, what its connector returned beyond the GPU's hit."""
    told = {"asked_from_tokens": "0", "returned_tokens": str(returned)}
    return lookup(returned if found is None else found, attributes=told, **more)


#      selected |==== 1280 ====|
#        usable |256|            a load of which a part failed: what follows is computed
PARTIAL = [
    asked(0, 1280, output_tokens=1),
    answered(1280),
    loaded(1280, "partial", attributes={"usable_tokens": "256"}),
    prefill(256, 1280),
]
WHOLE = [asked(0, 1280, output_tokens=1), answered(1280), loaded(1280), prefill(1280, 256)]


def test_a_run_without_rows_has_the_columns(tmp_path: Path) -> None:
    frame = engine_numbers(write_run(tmp_path / "run"))
    assert (frame.schema, frame.height) == (COLUMNS, 0)


def test_a_run_of_other_products_has_no_row(tmp_path: Path) -> None:
    process = [{**VLLM, "product": "dynamo"}]
    assert numbers(tmp_path, WHOLE, page("dynamo_hits_total", 0, 7), process=process) == {}


def test_what_was_loaded_whole_agrees_and_needs_no_reason(tmp_path: Path) -> None:
    found = numbers(tmp_path, WHOLE, [*page(HITS, 0, 1280), *page(QUERIES, 0, PROMPT)])
    assert sides(found[HITS]) == (1280, 1280, 0, True)
    assert sides(found[QUERIES]) == (PROMPT, PROMPT, 0, True)
    assert found[HITS]["reason"] is None
    assert found[HITS]["basis"] == "loaded_tokens of hit_funnel"
    assert (found[HITS]["engine"], found[HITS]["unit"], found[HITS]["requests"]) == ("vllm", "tokens", 1)


def test_tokens_of_a_load_that_failed_in_part_stay_counted(tmp_path: Path) -> None:
    metrics = [*page(HITS, 0, 1280), *page(SOURCE, 0, 1280, source="external_kv_transfer")]
    found = numbers(tmp_path, PARTIAL, [*metrics, *page(SOURCE, 0, 256, source="local_compute")])
    said = "1,024 tokens of 1 failed load stay counted and were not used"
    for name, of in (
        (HITS, (1280, 256, 1024, False)),
        (f'{SOURCE}{{source="external_kv_transfer"}}', (1280, 256, 1024, False)),
        (f'{SOURCE}{{source="local_compute"}}', (256, 1280, -1024, False)),
    ):
        assert sides(found[name]) == of
        assert found[name]["reason"] == said


def test_a_request_that_asks_again_is_counted_again(tmp_path: Path) -> None:
    """Nothing arrived: the same request is admitted anew, finds nothing and computes all of it."""
    spans = [
        asked(0, 1280, output_tokens=1), answered(1280), loaded(1280, "failed", reason="io"),
        answered(0, start=42, attempt=2), prefill(0, PROMPT, start=60),
    ]  # fmt: skip
    found = numbers(tmp_path, spans, [*page(HITS, 0, 1280), *page(QUERIES, 0, 2 * PROMPT)])
    assert sides(found[QUERIES]) == (2 * PROMPT, PROMPT, PROMPT, False)
    assert found[QUERIES]["reason"] == "1,536 tokens counted again, of 1 request that asked again"
    assert sides(found[HITS]) == (1280, 0, 1280, False)
    assert found[HITS]["reason"] == "1,280 tokens of 1 failed load stay counted and were not used"


def test_by_source_what_began_anew_is_told_right_and_only_the_part_of_another_stays(tmp_path: Path) -> None:
    anew = [
        asked(0, 1280, output_tokens=1), answered(1280), loaded(1280, "failed", reason="io"),
        answered(0, start=42, attempt=2), prefill(0, PROMPT, start=60, name="r1"),
    ]  # fmt: skip
    anew = [*({**row, "request_id": "r1"} for row in anew[:-1]), anew[-1]]
    name = f'{SOURCE}{{source="external_kv_transfer"}}'
    metrics = page(SOURCE, 0, 1280, source="external_kv_transfer")
    row = numbers(tmp_path, [*PARTIAL, *anew], metrics)[name]
    assert sides(row) == (1280, 256, 1024, False)
    assert row["reason"] == "1,024 tokens of 1 failed load stay counted and were not used"


def test_the_last_token_of_a_whole_prompt_is_computed_all_the_same(tmp_path: Path) -> None:
    spans = [
        asked(0, PROMPT, output_tokens=1), answered(PROMPT), loaded(PROMPT), prefill(PROMPT - 1, 1),
    ]  # fmt: skip
    by = {"external_kv_transfer": PROMPT, "local_compute": 0}
    metrics = [row for source, value in by.items() for row in page(SOURCE, 0, value, source=source)]
    found = numbers(tmp_path, spans, [*page(HITS, 0, PROMPT), *metrics])
    said = "the last token of 1 whole prompt was computed all the same"
    loaded_name, computed = (f'{SOURCE}{{source="{source}"}}' for source in by)
    for name, difference in ((HITS, 1), (loaded_name, 1), (computed, -1)):
        assert (found[name]["difference"], found[name]["reason"]) == (difference, said)


def test_what_follows_a_preemption_is_not_counted_again(tmp_path: Path) -> None:
    spans = [*WHOLE, scheduler("queue", 70, 80, reason="preempted"), answered(1280, start=80, attempt=2)]
    found = numbers(tmp_path, spans, [*page(HITS, 0, 1280), *page(QUERIES, 0, 2 * PROMPT)])
    assert found[HITS]["agrees"] is True
    assert found[QUERIES]["reason"] == "unexplained"


@pytest.mark.parametrize("metrics", [[], page("vllm:other_total", 0, 1)])
def test_what_no_page_says_is_null_and_names_the_instrument(tmp_path: Path, metrics: list[Row]) -> None:
    row = numbers(tmp_path, WHOLE, metrics)[HITS]
    assert sides(row) == (None, 1280, None, None)
    assert row["reason"] is None
    assert row["basis"].startswith(f"{HITS} was not reported: kvtrace collect --metrics")


def test_what_was_not_seen_of_one_request_is_null_and_names_the_instrument(tmp_path: Path) -> None:
    unseen = asked(None, None, name="r1", output_tokens=1)
    also = [answered(0, request_id="r1"), prefill(0, PROMPT, name="r1")]
    row = numbers(tmp_path, [*WHOLE, unseen, *also], page(HITS, 0, 1280))[HITS]
    assert sides(row) == (1280, None, None, None)
    assert row["basis"] == ("loaded_tokens of hit_funnel was not measured of 1 of 2 requests: kvtrace run")


def test_without_evidence_a_difference_is_unexplained(tmp_path: Path) -> None:
    row = numbers(tmp_path, WHOLE, page(HITS, 0, 1300))[HITS]
    assert sides(row) == (1300, 1280, 20, False)
    assert row["reason"] == "unexplained"


@pytest.mark.parametrize("status", ["ok", None])
def test_an_end_without_a_status_is_an_end(tmp_path: Path, status: str | None) -> None:
    """The spans that vLLM writes itself have none."""
    spans = [asked(0, 1280, output_tokens=1, status=status), *WHOLE[1:]]
    row = numbers(tmp_path, spans, [*page(HITS, 0, 1300), *page("vllm:request_success_total", 0, 1)])[HITS]
    assert row["reason"] == "unexplained"


@pytest.mark.parametrize("selected", [None, 0])
def test_a_selection_that_was_not_seen_or_is_too_small_explains_nothing(
    tmp_path: Path, selected: int | None
) -> None:
    spans = [asked(0, selected, output_tokens=1), *WHOLE[1:]]
    row = numbers(tmp_path, spans, page(HITS, 0, 1300))[HITS]
    assert sides(row) == (1300, 1280, 20, False)
    assert row["reason"] == "unexplained"


def test_what_the_parts_leave_over_is_unexplained(tmp_path: Path) -> None:
    row = numbers(tmp_path, PARTIAL, page(HITS, 0, 1300))[HITS]
    assert row["reason"].endswith("were not used; 20 tokens unexplained")


def test_losses_and_requests_without_an_end_are_said_where_something_is_left_over(tmp_path: Path) -> None:
    loss = [{"source": "e0", "op": "load", "cause": "dropped", "count": 3}]
    open_one = {**asked(0, 0, name="r1"), "end_ns": None}
    row = numbers(tmp_path, [*WHOLE, open_one], page(HITS, 0, 1300), loss=loss)[HITS]
    assert row["reason"] == "1 request without an end; 3 records lost"
    assert row["requests"] == 1


def queued(reason: str, start: int, end: int, **more: Any) -> Row:
    return scheduler("queue", start * MS, end * MS, reason=reason, **more)


def served(start: int = 40, end: int = 60, name: str = "r0", **more: Any) -> Row:
    row = prefill(0, PROMPT, name=name)
    return {**row, "start_ns": start * MS, "end_ns": end * MS, **more}


def timed(**more: Any) -> Row:
    known = {"gpu_hit_tokens": 0, "selected_tokens": 0, "prompt_tokens": PROMPT, "status": "ok"}
    return request(0, 100 * MS, 60 * MS, **{**known, "output_tokens": 1, **more})


WAITED = [timed(), queued("capacity", 0, 10), queued("lookup", 10, 20), queued("remote_kv", 20, 40), served()]


def test_the_load_and_the_lookup_inside_a_queue_time_are_named(tmp_path: Path) -> None:
    row = numbers(tmp_path, WAITED, seconds(QUEUE, 40))[QUEUE]
    assert sides(row) == (40 * MS, 10 * MS, 30 * MS, False)
    assert row["reason"] == "20 ms in it are loads of 1 request; 10 ms in it are lookups of 1 request"


def test_a_queue_time_without_a_load_agrees(tmp_path: Path) -> None:
    row = numbers(tmp_path, [timed(), queued("capacity", 0, 40), served()], seconds(QUEUE, 40.5))[QUEUE]
    assert sides(row) == (40_500_000, 40 * MS, 500_000, True)


def test_what_a_request_waits_after_its_first_step_is_no_queue_time(tmp_path: Path) -> None:
    spans = [*WAITED, queued("preempted", 70, 80)]
    assert sides(numbers(tmp_path, spans, seconds(QUEUE, 40))[QUEUE])[1] == 10 * MS


def test_an_error_before_any_step_makes_a_queue_time_negative(tmp_path: Path) -> None:
    """VLLM has no time of scheduling for it: it subtracts the arrival from nothing."""
    failed = {**loaded(1280, "failed", reason="io"), "start_ns": 20 * MS, "end_ns": 40 * MS}
    failing = request(0, 50 * MS, None, prompt_tokens=PROMPT, gpu_hit_tokens=0, selected_tokens=1280)
    spans = [{**failing, "status": "error"}, queued("remote_kv", 20, 40), failed]
    found = numbers(tmp_path, spans, [*seconds(QUEUE, -894_000), *seconds(PREFILL, 894_050)])
    assert sides(found[QUEUE]) == (-894_000 * MS, 0, -894_000 * MS, False)
    said = "1 request ended with an error before any step after 1 failed load: what vLLM subtracts of them"
    assert said in found[QUEUE]["reason"]
    assert sides(found[PREFILL]) == (894_050 * MS, 0, 894_050 * MS, False)
    assert found[PREFILL]["reason"].startswith(said)


def test_waits_and_gaps_inside_a_prefill_time_are_named(tmp_path: Path) -> None:
    blocked = {
        "op": "wait", "engine": "e0", "process": "e0/worker", "observer": "worker", "reason": "load",
        "start_ns": 32 * MS, "end_ns": 37 * MS,
    }  # fmt: skip
    spans = [timed(), served(30, 40), blocked, served(50, 60)]
    row = numbers(tmp_path, spans, seconds(PREFILL, 30))[PREFILL]
    assert sides(row) == (30 * MS, 15 * MS, 15 * MS, False)
    assert row["reason"] == (
        "5 ms in it are waits for loads and lookups inside steps; "
        "10 ms in it lie between the steps that computed a prompt"
    )


@pytest.mark.parametrize("ranks", [1, 2, 8])
def test_ranks_that_wait_for_one_load_wait_at_the_same_time(tmp_path: Path, ranks: int) -> None:
    waits = [
        {
            "op": "wait", "engine": "e0", "process": f"e0/w{rank}", "observer": "worker", "reason": "load",
            "rank": rank, "start_ns": (32 + rank % 2) * MS, "end_ns": 37 * MS,
        }
        for rank in range(ranks)
    ]  # fmt: skip
    row = numbers(tmp_path, [timed(), served(30, 40), *waits, served(50, 60)], seconds(PREFILL, 30))[PREFILL]
    assert sides(row) == (30 * MS, 15 * MS, 15 * MS, False)


#  ordered 10 [rank 0 20-40]          45 in use     vLLM: 20 ms of each rank
#             [rank 1   22-42]
@pytest.mark.parametrize(("late", "around", "again"), [(0, "15 ms", "20 ms"), (2, "13 ms", "18 ms")])
def test_the_load_time_of_several_ranks_is_the_sum_of_their_copies(
    tmp_path: Path, late: int, around: str, again: str
) -> None:
    name = "vllm:kv_offload_load_time_total"
    copies = [
        {**loaded(1280, component="vllm.offloading", rank=rank, transfer_id="r0/load/1"),
         "process": f"e0/w{rank}", "submit_ns": 10 * MS, "usable_ns": 45 * MS,
         "start_ns": (20 + late * rank) * MS, "end_ns": (40 + late * rank) * MS}
        for rank in range(2)
    ]  # fmt: skip
    row = numbers(tmp_path, [timed(), *copies, served()], page(name, 0, 0.040))[name]
    assert sides(row) == (40 * MS, 35 * MS, 5 * MS, False)
    assert row["reason"] == (
        f"{around} between order and copy, and from the copy to its use, are not in it; "
        f"{again} in it are copies of several ranks at the same time"
    )


def test_what_spans_and_answers_tell_is_over_the_requests_that_they_tell_of(tmp_path: Path) -> None:
    span = {"gen_ai.latency.time_in_queue": "0.040", "gen_ai.latency.time_in_model_prefill": "0.020"}
    told = timed(observer="api", evidence="native", attributes=span, reported_cached_tokens=7)
    other = [timed(request_id="r1"), queued("capacity", 0, 40, request_id="r1"), served(name="r1")]
    found = numbers(tmp_path, [told, *WAITED[1:], *other], [])
    assert sides(found["gen_ai.latency.time_in_queue"]) == (40 * MS, 10 * MS, 30 * MS, False)
    assert sides(found["gen_ai.latency.time_in_model_prefill"]) == (20 * MS, 20 * MS, 0, True)
    usage = found["usage.prompt_tokens_details.cached_tokens"]
    assert sides(usage) == (7, 0, 7, False)
    assert {found["gen_ai.latency.time_in_queue"]["requests"], usage["requests"]} == {1}


def test_aborted_requests_are_not_counted_as_ended(tmp_path: Path) -> None:
    left = asked(0, 0, name="r1", status="aborted")
    row = numbers(tmp_path, [*WHOLE, left], page("vllm:request_success_total", 0, 1))[
        "vllm:request_success_total"
    ]
    assert sides(row) == (1, 2, -1, False)
    assert row["reason"] == "1 aborted request, which vLLM does not count"


@pytest.mark.parametrize(("reported", "agrees"), [(2, True), (0, False)])
def test_preemptions_are_those_that_the_scheduler_saw(tmp_path: Path, reported: int, agrees: bool) -> None:  # noqa: FBT001
    seen = asked(0, 0, observer="scheduler", attributes={"preemptions": "2"})
    name = "vllm:num_preemptions_total"
    row = numbers(tmp_path, [seen, prefill(0, PROMPT)], page(name, 0, reported))[name]
    assert (row["measured"], row["agrees"]) == (2, agrees)


@pytest.mark.parametrize(("created_s", "value"), [(2.0, 1280), (0.5, None)])
def test_one_page_counts_when_its_process_was_watched_before_it_counted(
    tmp_path: Path, created_s: float, value: int | None
) -> None:
    """Watched from 1,000 ms on."""
    born = page("vllm:external_prefix_cache_hits_created", created_s + 3e6, kind="gauge")
    watched = [{**VLLM, "first_ns": (3_000_001) * 1_000 * MS}]
    assert numbers(tmp_path, WHOLE, [*page(HITS, 1280), *born], process=watched)[HITS]["reported"] == value


def test_pages_with_times_cover_the_requests_that_ended_between_them(tmp_path: Path) -> None:
    other = [
        {**row, "request_id": "r1", "start_ns": row["start_ns"] + 50, "end_ns": row["end_ns"] + 50}
        for row in WHOLE[:3]
    ]
    also = {**prefill(1280, 256, name="r1"), "start_ns": 90, "end_ns": 110}
    samples = page(HITS, 0, 1280)
    for sample, at in zip(samples, (-10, 120), strict=True):
        sample["time_ns"] = at
    row = numbers(tmp_path, [*WHOLE, *other, also], samples)[HITS]
    assert (*sides(row), row["requests"]) == (1280, 1280, 0, True, 1)
    samples[1]["value"] = 1290.0
    row = numbers(tmp_path / "more", [*WHOLE, *other, also], samples)[HITS]
    assert row["reason"] == "1 request under way when a page was taken"


def test_pages_of_processes_that_begin_at_different_times_are_said(tmp_path: Path) -> None:
    """The second server is seen from 150 on: what it counted before belongs to a request that is left out."""
    pages = [*page(HITS, 0, 1280), *page(HITS, 0, 1280)]
    for sample, (process, at) in zip(
        pages, (("m0", -10), ("m0", 400), ("m1", 150), ("m1", 400)), strict=True
    ):
        sample |= {"process": process, "time_ns": at, "labels": {}}
    row = numbers(tmp_path, WHOLE, [*pages])[HITS]
    assert row["reported"] == 2560
    pages[2]["time_ns"] = -10
    assert numbers(tmp_path / "same", WHOLE, pages)[HITS]["reason"] == "unexplained"
    other = [{**row, "request_id": "r1", "start_ns": 200 + row["start_ns"], "end_ns": 200 + row["end_ns"]}
             for row in WHOLE[:3]]  # fmt: skip
    late = {**prefill(1280, 256, name="r1"), "start_ns": 240, "end_ns": 260}
    pages[2]["time_ns"] = 150
    reason = numbers(tmp_path / "late", [*WHOLE, *other, late], pages)[HITS]["reason"]
    assert reason == "pages of 2 processes begin or end at different times"


def test_a_counter_that_began_anew_is_said(tmp_path: Path) -> None:
    row = numbers(tmp_path, WHOLE, page(HITS, 0, 500, 280))[HITS]
    assert (sides(row)[0], row["reason"]) == (780, "the counter began anew 1 time")


@pytest.mark.parametrize(("shown_by", "value"), [(None, None), ("e1/s", None), ("e0/scheduler", 1280)])
def test_an_engine_that_was_watched_earlier_says_nothing_of_another(
    tmp_path: Path, shown_by: str | None, value: int | None
) -> None:
    """The counter is of 5 s, e0 was watched from 1 s on and e1 from 10 s on."""
    pages = [*page(HITS, 1280), *page("vllm:external_prefix_cache_hits_created", 3e6 + 5, kind="gauge")]
    watched = [
        {**VLLM, "first_ns": 3_000_001 * 1_000 * MS},
        {**VLLM, "process": "e1/s", "engine": "e1", "first_ns": 3_000_010 * 1_000 * MS},
    ]
    pages = [{**sample, "process": shown_by} for sample in pages]
    assert numbers(tmp_path, WHOLE, pages, process=watched)[HITS]["reported"] == value


def test_loads_of_the_native_offloading_took_longer_than_their_copies(tmp_path: Path) -> None:
    load = {
        **loaded(1280, component="vllm.offloading", bytes=2_621_440), "submit_ns": 10 * MS,
        "start_ns": 20 * MS, "end_ns": 40 * MS, "usable_ns": 45 * MS,
    }  # fmt: skip
    size, took = "vllm:kv_offload_load_bytes_total", "vllm:kv_offload_load_time_total"
    found = numbers(tmp_path, [timed(), load, served()], [*page(size, 0, 2_621_440), *page(took, 0, 0.02)])
    assert sides(found[size]) == (2_621_440, 2_621_440, 0, True)
    assert sides(found[took]) == (20 * MS, 35 * MS, -15 * MS, False)
    said = "15 ms between order and copy, and from the copy to its use, are not in it"
    assert found[took]["reason"] == said


CHUNK = {**block_size(256, "lm"), "field": "chunk_size"}
LMCACHE = {"process": [VLLM, SERVER], "identity": [block_size(), CHUNK]}


def of_cache(op: str, start: int, tokens: int | None, tier_from: str, tier_to: str, **more: Any) -> Row:
    """What LMCache's server copied."""
    row = store(start, start + 5, op=op, tokens=tokens, observer="server", process="lm", engine="lm")
    component = "lmcache.l2.fs" if "disk" in (tier_from, tier_to) else "lmcache.l1"
    return {**row, "tier_from": tier_from, "tier_to": tier_to, "component": component, **more}


def test_lmcaches_hits_are_finds_of_which_the_gpu_had_some(tmp_path: Path) -> None:
    name, asked_name = "lmcache_mp.lookup_hit", "lmcache_mp.lookup_requested"
    find = lookup(1280, component="lmcache", requested_tokens=1500)
    spans = [asked(640, 640), find, loaded(768, component="lmcache.l1"), prefill(1280, 256)]
    metrics = [*page(name, 0, 1280), *page(asked_name, 0, 1280)]
    found = numbers(tmp_path, spans, metrics, **LMCACHE)
    assert sides(found[name]) == (1280, 640, 640, False)
    assert found[name]["reason"] == "640 tokens were found which the GPU had as well"
    assert sides(found[asked_name]) == (1280, 1500, -220, False)
    said = "220 tokens behind the last whole chunk were asked for and are not counted"
    assert found[asked_name]["reason"] == said
    assert found[name]["engine"] == "lmcache"


def test_lmcaches_finished_stores_are_also_those_that_kept_nothing(tmp_path: Path) -> None:
    name = "lmcache_mp_num_finished_stores_total"
    spans = [
        asked(0, 0),
        of_cache("store", 60, 1280, "gpu", "host", transfer_id="a"),
        of_cache("drop", 70, 0, "gpu", "host", transfer_id="b", outcome="skipped"),
    ]
    row = numbers(tmp_path, spans, page(name, 0, 2), **LMCACHE)[name]
    assert sides(row) == (2, 1, 1, False)
    assert row["reason"] == "1 store kept nothing"


def test_lmcaches_reads_are_also_its_own_and_what_was_found_and_not_copied(tmp_path: Path) -> None:
    name = "lmcache_mp.l1_read"
    spans = [
        asked(640, 640),
        lookup(1280, component="lmcache", requested_tokens=1280),
        of_cache("load", 20, 768, "host", "gpu", transfer_id="a", attributes={"objects": "3"}),
        of_cache("store", 60, None, "host", "disk", transfer_id="b", attributes={"key_count": "5"}),
        prefill(1280, 256),
    ]
    row = numbers(tmp_path, spans, page(name, 0, 10), **LMCACHE)[name]
    assert sides(row) == (10, 3, 7, False)
    assert row["reason"] == (
        "5 chunks were read to be stored in the tier below; "
        "2 chunks were found, which counts as read, and not copied"
    )


def test_numbers_beyond_64_bits_are_null(tmp_path: Path) -> None:
    assert sides(numbers(tmp_path, WHOLE, page(HITS, 0, 1e30))[HITS]) == (None, 1280, None, None)


def test_sums_beyond_64_bits_are_null_and_nothing_breaks(tmp_path: Path) -> None:
    huge = [asked(0, 2**62, name=f"r{number}", prompt_tokens=2**62, output_tokens=1) for number in range(4)]
    steps = [prefill(2**62 - 1, 1, name=f"r{number}") for number in range(4)]
    found = numbers(tmp_path, [*huge, *steps], page("vllm:prefix_cache_queries_total", 0, 7))
    assert sides(found["vllm:prefix_cache_queries_total"]) == (7, None, None, None)


def test_times_that_no_clock_shows_have_numbers_all_the_same(tmp_path: Path) -> None:
    metrics = [*seconds(QUEUE, 1e300), *seconds(PREFILL, float("inf")), *page(HITS, 0, float("nan"))]
    process = [{**VLLM, "process": "p0"}]
    found = numbers(tmp_path, list(ROWS), metrics, process=process)
    assert {found[name]["reported"] for name in (QUEUE, PREFILL, HITS)} == {None}
