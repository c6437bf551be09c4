"""Times of lines: which year, which zone, and when there is none."""

from __future__ import annotations

from datetime import UTC, datetime

import pytest
from kvtrace.sources.engine_logs.clock import Clock


def ns(*parts: int) -> int:
    return round(datetime(*parts, tzinfo=UTC).timestamp()) * 1_000_000_000  # type: ignore[misc, arg-type]


def test_a_dated_time_is_exact_to_the_millisecond_and_taken_as_utc() -> None:
    assert Clock(None).time_ns(None, "2026-11-30 04:00:00,001") == ns(2026, 11, 30, 4) + 1_000_000


def test_a_time_without_a_year_takes_that_of_the_last_record_that_had_one() -> None:
    clock = Clock(ns(2030, 1, 1))
    clock.time_ns(None, "2026-11-30 04:00:00,000")
    assert clock.time_ns(None, "11-30 04:00:05") == ns(2026, 11, 30, 4, 0, 5)
    assert not clock.by_file_date


def test_a_year_that_comes_later_in_the_file_holds_for_its_beginning_too() -> None:
    clock = Clock(ns(2030, 1, 1))
    assert clock.look_ahead(None, "11-30 04:00:00") is False
    assert clock.look_ahead(None, "2026-11-30 04:00:09,000") is True
    assert clock.time_ns(None, "11-30 04:00:00") == ns(2026, 11, 30, 4)


@pytest.mark.parametrize(
    ("written", "expected"),
    [
        (ns(2026, 11, 30, 5), ns(2026, 11, 30, 4)),  # a moment before it was written
        (ns(2026, 11, 30, 2), ns(2026, 11, 30, 4)),  # a zone east of UTC: up to a day ahead is the same year
        (ns(2027, 2, 1), ns(2026, 11, 30, 4)),  # written after the turn of the year
    ],
)
def test_without_any_year_it_is_the_latest_that_the_files_own_date_allows(
    written: int, expected: int
) -> None:
    clock = Clock(written)
    assert clock.time_ns(None, "11-30 04:00:00") == expected
    assert clock.by_file_date


def test_around_a_turn_of_the_year_the_nearest_year_is_it() -> None:
    clock = Clock(ns(2027, 1, 1, 1))
    times = [clock.time_ns(None, when) for when in ("12-31 23:59:59", "01-01 00:00:01", "12-31 23:59:58")]
    assert times == [ns(2026, 12, 31, 23, 59, 59), ns(2027, 1, 1, 0, 0, 1), ns(2026, 12, 31, 23, 59, 58)]


def test_the_29th_of_february_is_of_a_leap_year() -> None:
    assert Clock(ns(2028, 3, 1)).time_ns(None, "02-29 00:00:00") == ns(2028, 2, 29)
    assert Clock(ns(2026, 3, 1)).time_ns(None, "02-29 00:00:00") is None


def test_a_runtimes_own_time_is_the_time_whatever_the_record_says() -> None:
    clock = Clock(None)
    assert (
        clock.time_ns("2026-11-30T05:00:00.123456789+01:00", "11-30 09:00:00")
        == ns(2026, 11, 30, 4) + 123_456_789
    )
    assert clock.time_ns("2026-11-30T04:00:01Z", "garbage") == ns(2026, 11, 30, 4, 0, 1)
    assert clock.stamped == 2


@pytest.mark.parametrize(
    "when", ["", "13-45 99:99:99", "0000-00-00 00:00:00,000", "9999-12-31 00:00:00,000", "x" * 40]
)
def test_what_is_no_time_is_none_and_counted(when: str) -> None:
    clock = Clock(ns(2026, 11, 30))
    assert clock.time_ns(None, when) is None
    assert clock.unknown == 1


def test_without_a_year_and_without_a_files_date_there_is_no_time() -> None:
    assert Clock(None).time_ns(None, "11-30 04:00:00") is None
