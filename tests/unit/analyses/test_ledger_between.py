"""Quantiles over all times between tokens of a run: exact, and in bounded memory."""

from __future__ import annotations

import duckdb
import pytest
from kvtrace.analyses.ledger.tokens_out import quantiles

SHARES = (0.5, 0.9, 0.99)


def put_out(rows: str, **config: str) -> duckdb.DuckDBPyConnection:
    """A connection with the temporary tables; rows are (request_id, end_ns, tokens) as SQL."""
    connection = duckdb.connect(":memory:", config={"threads": "2", **config})
    connection.execute(f"CREATE TEMP TABLE put_out AS {rows}")
    connection.execute("CREATE TEMP TABLE whole AS SELECT DISTINCT request_id FROM put_out")
    return connection


def test_more_times_than_memory_holds_are_counted(tmp_path: object) -> None:
    """6.4 million times take 51 MB as they are."""
    rows = "SELECT 'r' || i % 100, i * 6400 + (i % 1000) * 64, 64 FROM range(100100) t(i)"
    with put_out(
        f"SELECT * FROM ({rows}) t(request_id, end_ns, tokens)",
        memory_limit="40MB",
        temp_directory=str(tmp_path),
    ) as connection:
        values, requests = quantiles(connection, SHARES)
    assert requests == 100
    assert values == [10_100] * 3


@pytest.mark.parametrize("times", [(3,), (1, 2), (5, 1, 3), tuple(range(10)), tuple(range(101)), (7, 7, 0)])
def test_a_quantile_is_the_one_that_the_times_in_order_hold(times: tuple[int, ...]) -> None:
    ends = [sum(times[:n]) for n in range(len(times) + 1)]
    rows = ", ".join(f"('r', {end}, 1)" for end in ends)
    with put_out(f"SELECT * FROM (VALUES {rows}) t(request_id, end_ns, tokens)") as connection:
        values, requests = quantiles(connection, SHARES)
        ((told,),) = connection.execute(
            "SELECT quantile_disc(t, $1) FROM (SELECT unnest($2) AS t)", [list(SHARES), list(times)]
        ).fetchall()
    assert (values, requests) == (told, 1)


def test_several_tokens_at_once_are_as_many_times_and_one_step_is_none() -> None:
    """100 ns for four tokens are four times of 25 ns, beside one of 90."""
    rows = "('r', 0, 2), ('r', 100, 4), ('r', 190, 1), ('alone', 5, 3)"
    with put_out(f"SELECT * FROM (VALUES {rows}) t(request_id, end_ns, tokens)") as connection:
        assert quantiles(connection, (0.5, 0.8, 0.81)) == ([25, 25, 90], 1)
        connection.execute("DELETE FROM put_out WHERE end_ns > 5")
        assert quantiles(connection, SHARES) == ([None, None, None], 0)
