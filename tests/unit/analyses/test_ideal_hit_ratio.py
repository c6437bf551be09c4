"""What a cache without limit could have served: keys of prompts, in the order of their requests."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest
from kvtrace.analyses.ideal_hit_ratio import COLUMNS, ideal_hit_ratio
from kvtrace.importer import import_files
from kvtrace.run import open_run
from tests.rows import write_run

if TYPE_CHECKING:
    from kvtrace.run import Run

RECORDED = Path(__file__).parents[1] / "sources" / "recorded"
Row = dict[str, Any]


def asked(
    name: str, keys: str, at: int | None, *, size: int | None = 10, space: str = "s", **more: Any
) -> list[Row]:
    """The keys of a request, a letter each."""
    return [
        {"request_id": name, "attempt": 1, "position": place, "key_space": space, "key": key,
         "tokens": size, "time_ns": at, "source": "drawn", **more}
        for place, key in enumerate(keys)
    ]  # fmt: skip


def prompt(name: str, tokens: int | None) -> Row:
    return {"op": "request", "request_id": name, "start_ns": 1, "prompt_tokens": tokens}


def answer(folder: Path, keys: list[Row], prompts: dict[str, int | None]) -> list[Row]:
    spans = [prompt(name, tokens) for name, tokens in prompts.items()]
    return ideal_hit_ratio(write_run(folder / "run", span=spans, request_key=keys)).to_dicts()


def test_a_run_without_keys_has_the_columns(tmp_path: Path) -> None:
    frame = ideal_hit_ratio(write_run(tmp_path / "run"))
    assert (frame.schema, frame.height) == (COLUMNS, 0)


def test_a_hit_is_the_beginning_that_was_asked_for_before(tmp_path: Path) -> None:
    """Four requests, one after the other.

    r0  a b c      nothing before it
    r1  a b d e    a b
    r2  a b d      all of it
    r3  x b d      nothing: behind a miss nothing counts
    """
    keys = [*asked("r0", "abc", 1), *asked("r1", "abde", 2), *asked("r2", "abd", 3), *asked("r3", "xbd", 4)]
    (row,) = answer(tmp_path, keys, {"r0": 35, "r1": 40, "r2": 30, "r3": 30})
    assert row == {
        "key_space": "s", "requests": 4, "keys": 13, "distinct_keys": 6, "hit_keys": 5, "of_keys": 5 / 13,
        "counted_requests": 4, "prompt_tokens": 135, "hit_tokens": 50, "of_prompt": 50 / 135,
    }  # fmt: skip


def test_the_order_is_that_of_the_times_and_not_of_the_names(tmp_path: Path) -> None:
    keys = [*asked("r0", "ab", 9), *asked("r1", "abc", 3)]
    (row,) = answer(tmp_path, keys, {"r0": 20, "r1": 1000})
    assert (row["hit_keys"], row["hit_tokens"]) == (2, 20)


def test_keys_of_another_space_are_other_keys(tmp_path: Path) -> None:
    keys = [*asked("r0", "ab", 1), *asked("r1", "ab", 2, space="t")]
    rows = answer(tmp_path, keys, {"r0": 20, "r1": 20})
    assert [(row["key_space"], row["hit_keys"]) for row in rows] == [("s", 0), ("t", 0)]


def test_a_missing_place_ends_the_hit(tmp_path: Path) -> None:
    """r1's second key was not readable: what follows it is not at its place."""
    keys = [*asked("r0", "abc", 1), *(row for row in asked("r1", "abc", 2) if row["key"] != "b")]
    (row,) = answer(tmp_path, keys, {"r0": 30, "r1": 30})
    assert (row["keys"], row["hit_keys"]) == (5, 1)


def test_only_the_first_inquiry_of_a_request_counts(tmp_path: Path) -> None:
    keys = [*asked("r0", "ab", 1), *asked("r0", "ab", 5, attempt=2), *asked("r1", "ab", 3)]
    (row,) = answer(tmp_path, keys, {"r0": 20, "r1": 20})
    assert (row["requests"], row["keys"], row["hit_keys"]) == (2, 4, 2)


def test_a_key_that_two_sources_tell_counts_once(tmp_path: Path) -> None:
    keys = [*asked("r0", "ab", 1), *asked("r0", "ab", 1, source="other")]
    (row,) = answer(tmp_path, keys, {"r0": 20})
    assert (row["keys"], row["hit_keys"]) == (2, 0)


def test_what_is_not_known_of_a_request_is_in_no_sum_of_tokens(tmp_path: Path) -> None:
    """r1's prompt, r2's tokens of keys; the keys of both count, and serve others."""
    keys = [*asked("r0", "ab", 1), *asked("r1", "abc", 2), *asked("r2", "abc", 3, size=None)]
    keys += asked("r3", "abc", 4)
    (row,) = answer(tmp_path, keys, {"r0": 25, "r1": None, "r2": 30, "r3": 30})
    assert (row["requests"], row["hit_keys"], row["counted_requests"]) == (4, 8, 2)
    assert (row["prompt_tokens"], row["hit_tokens"]) == (55, 30)


def test_where_no_prompt_is_known_the_ratio_of_tokens_is_null(tmp_path: Path) -> None:
    (row,) = answer(tmp_path, [*asked("r0", "ab", 1), *asked("r1", "ab", 2)], {})
    assert (row["of_keys"], row["counted_requests"]) == (0.5, 0)
    assert (row["prompt_tokens"], row["hit_tokens"], row["of_prompt"]) == (None, None, None)


def test_no_hit_is_longer_than_its_prompt(tmp_path: Path) -> None:
    (row,) = answer(tmp_path, [*asked("r0", "ab", 1), *asked("r1", "ab", 2)], {"r0": 20, "r1": 15})
    assert row["hit_tokens"] == 15


def test_without_a_time_a_request_comes_last(tmp_path: Path) -> None:
    (row,) = answer(tmp_path, [*asked("r0", "abc", None), *asked("r1", "ab", 2)], {"r0": 30, "r1": 20})
    assert row["hit_tokens"] == 20


@pytest.fixture(scope="module")
def imported(tmp_path_factory: pytest.TempPathFactory) -> Run:
    """Every recorded workload trace in one run."""
    files = sorted(RECORDED.glob("workload-*"))
    return open_run(import_files(files, tmp_path_factory.mktemp("ideal") / "run").run)


def test_the_known_answers_of_the_recorded_traces(imported: Run) -> None:
    """Counted by hand.

    mooncake   ten requests of a public trace share their first block: 9; the eleventh is the first again,
               14 blocks; the twelfth begins with four of the fourth's
    bailian    of 3, 3, 4, 5 keys 0, 1, 2, 4 came back
    tester     of 192, 191, 100, 100, 191, 192 keys of a public conversation 0, 125, 39, 100, 191, 192
    """
    found = {row["key_space"].split(":")[0]: row for row in ideal_hit_ratio(imported).to_dicts()}
    mooncake, bailian, tester = (
        found[name] for name in ("mooncake-trace", "bailian-trace", "kv-cache-tester")
    )
    assert (mooncake["keys"], mooncake["hit_keys"]) == (228 + 14 + 6, 9 + 14 + 4)
    assert mooncake["distinct_keys"] == mooncake["keys"] - mooncake["hit_keys"]
    assert mooncake["hit_tokens"] == 9 * 512 + 6758 + 4 * 512
    assert (bailian["keys"], bailian["hit_keys"], bailian["hit_tokens"]) == (15, 7, 7 * 16)
    assert bailian["of_prompt"] == 112 / (40 + 33 + 64 + 66)
    assert (tester["keys"], tester["hit_keys"], tester["distinct_keys"]) == (966, 647, 319)
    assert tester["of_prompt"] == 647 * 64 / (12343 + 12236 + 6411 + 6411 + 12236 + 12343)
