"""SQL from anyone: one SELECT, inside the run, bounded; everything else is refused in one sentence."""

from __future__ import annotations

import time
from pathlib import Path

import polars as pl
import pytest
from kvtrace.errors import QueryError
from kvtrace.run import Run, guard
from tests.rows import write_run


@pytest.fixture
def run(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Run:
    """A run of two steps, a file beside it, links to that file inside; the caller stands elsewhere."""
    (tmp_path / "outside.csv").write_text("secret\nxyz\n")
    (tmp_path / "elsewhere").mkdir()
    monkeypatch.chdir(tmp_path / "elsewhere")
    steps = [{"op": "step", "span_id": n, "start_ns": n, "end_ns": n + 1} for n in (0, 1)]
    opened = write_run(tmp_path / "run", span=steps)
    (opened.path / "link.csv").symlink_to(tmp_path / "outside.csv")
    return opened


def refused(run: Run, query: str, **params: object) -> str:
    """The sentence with which it is refused; nothing was written anywhere."""
    before = sorted(run.path.parent.rglob("*"))
    with pytest.raises(QueryError) as caught:
        run.sql(query, **params)
    assert sorted(run.path.parent.rglob("*")) == before
    text = str(caught.value)
    assert text.startswith("sql: ")
    assert "\n" not in text
    return text


def test_a_select_over_nouns_and_tables_is_answered(run: Run) -> None:
    assert run.sql("SELECT count(*) AS n FROM step WHERE start_ns >= $at", at=1).rows() == [(1,)]
    assert run.sql("SELECT 1;").rows() == [(1,)]
    assert run.sql("FROM span").height == 2
    assert run.sql("SELECT * FROM step WHERE false").columns[:2] == ["run_id", "name"]
    assert run.sql("SELECT 1 AS a, 2 AS a").columns == ["a", "a_1"]


@pytest.mark.parametrize("pattern", ["span/part-0.parquet", "span/*.parquet", "**/*.parquet"])
def test_the_run_s_own_files_may_be_read_by_path(run: Run, pattern: str) -> None:
    assert run.sql(f"SELECT count(*) FROM read_parquet('{run.path}/{pattern}')").rows() == [(2,)]
    assert run.sql("SELECT count(*) FROM read_parquet($file)", file=f"{run.path}/{pattern}").rows() == [(2,)]


@pytest.mark.parametrize(
    "query",
    [
        "",
        ";",
        "SELECT 1; SELECT 2",
        "SELECT 1; DROP VIEW span",
        "COPY (SELECT 1) TO '{run}/x.csv'",
        "COPY (SELECT 1) TO 'attack.csv'",
        "EXPLAIN SELECT 1",
        "EXPLAIN ANALYZE COPY (SELECT 1) TO '{run}/x.csv'",
        "ATTACH '{run}/x.db'",
        "ATTACH ':memory:' AS other",
        "CREATE VIEW mine AS SELECT 1",
        "CREATE OR REPLACE VIEW span AS SELECT 1",
        "CREATE TABLE mine AS SELECT 1",
        "DROP VIEW span",
        "INSERT INTO span SELECT * FROM span",
        "PRAGMA database_list",
        "SET memory_limit = '100GB'",
        "RESET lock_configuration",
        "INSTALL httpfs",
        "LOAD httpfs",
        "CALL pragma_version()",
        "EXPORT DATABASE '{run}/out'",
        "USE memory",
        "PREPARE p AS SELECT 1",
        "BEGIN",
        "PIVOT span ON op USING count(*)",  # DuckDB makes a type for it first: two statements
    ],
)
def test_what_is_not_exactly_one_select_is_not_run(run: Run, query: str) -> None:
    assert "exactly one SELECT" in refused(run, query.format(run=run.path))


@pytest.mark.parametrize(
    "source",
    [
        "'/etc/passwd'",
        "read_csv('/etc/passwd')",
        "read_text('/etc/passwd')",
        "read_blob('/proc/self/environ')",
        "read_json('/etc/passwd')",
        "sniff_csv('/etc/passwd')",
        "parquet_metadata('/etc/passwd')",
        "glob('/etc/*')",
        "glob('{run}/../*')",
        "'{run}/../outside.csv'",
        "read_csv('{run}/../outside.csv')",
        "read_csv('{run}/span/../../outside.csv')",
        "read_csv('../outside.csv')",
        "read_csv('{run}/link.csv')",
        "read_csv('{run}2/outside.csv')",
        "'https://example.com/x.parquet'",
        "read_parquet('s3://bucket/x.parquet')",
        "sqlite_scan('outside.db', 't')",
        "query('COPY (SELECT 1) TO ''{run}/x.csv''')",
        "query_table('/etc/passwd')",
        "json_execute_serialized_sql(json_serialize_sql('SELECT * FROM read_text(''/etc/passwd'')'))",
        "enable_logging('QueryLog', storage='file', storage_path='{run}/log')",
        "enable_profiling(save_location='{run}/profile.json')",
        "duckdb_secrets()",
    ],
)
def test_nothing_outside_the_run_can_be_reached(run: Run, source: str) -> None:
    refused(run, f"SELECT * FROM {source.format(run=run.path)}")


def test_neither_the_environment_nor_python_s_variables_can_be_read(run: Run) -> None:
    mine = pl.DataFrame({"secret": [1]})
    refused(run, "SELECT getenv('HOME')")
    refused(run, "SELECT * FROM mine")
    assert mine.height == 1


def test_no_data_is_changed_by_a_select_that_inserts(run: Run) -> None:
    refused(run, "WITH x AS (INSERT INTO span SELECT * FROM span) SELECT * FROM x")


@pytest.mark.parametrize(
    ("kind", "expression"),
    [
        ("INTERVAL", "INTERVAL 1 DAY"),
        ("INTERVAL", "[INTERVAL 1 DAY]"),
        ("INTERVAL", "[INTERVAL 1 DAY]::INTERVAL[1]"),
        ("INTERVAL", "{'a': [INTERVAL 1 DAY]}"),
        ("INTERVAL", "MAP {1: INTERVAL 1 DAY}"),
        ("UNION", "union_value(a := 1)"),
        ("BIGNUM", "1::BIGNUM"),
        ("VARIANT", "1::VARIANT"),
        ("GEOMETRY", "'POINT(1 1)'::GEOMETRY"),
    ],
)
def test_a_column_that_no_data_frame_holds_is_named_with_the_way_out(
    run: Run, kind: str, expression: str
) -> None:
    found = refused(run, f"SELECT 1 AS one, {expression} AS how_long")
    assert found == (
        f"sql: column how_long has type {kind}, which no data frame holds; cast it, as in how_long::VARCHAR."
    )
    assert run.sql(f"SELECT ({expression})::VARCHAR AS text").schema == {"text": pl.String}


@pytest.mark.parametrize(
    "expression",
    [
        "5::HUGEINT", "1.5::DECIMAL(38, 2)", "uuid()", "MAP {'a': 1}", "'a'::ENUM('a', 'b')", "'[1]'::JSON",
        "NULL",
        "[1, 2]::INT[2]", "DATE '2020-01-01'", "TIMESTAMPTZ '2020-01-01'", "'x'::BLOB", "{'interval': 1}",
    ],
)  # fmt: skip
def test_other_types_come_out(run: Run, expression: str) -> None:
    assert run.sql(f"SELECT {expression} AS x").height == 1


@pytest.mark.parametrize(
    "query",
    [
        "SELECT sum(a.range * b.range) FROM range(1000000) a, range(1000000) b",  # before the first row
        "SELECT * FROM range(100000000000)",  # while rows come
    ],
)
def test_a_query_that_takes_too_long_is_given_up(
    run: Run, monkeypatch: pytest.MonkeyPatch, query: str
) -> None:
    monkeypatch.setattr(guard, "TIME_LIMIT_SECONDS", 0.3)
    monkeypatch.setattr(guard, "ANSWER_LIMIT_BYTES", 1 << 40)
    monkeypatch.setattr(guard, "_BATCH_ROWS", 1000)
    began = time.monotonic()
    assert refused(run, query) == "sql: gave up after 0 s; ask for less."
    assert time.monotonic() - began < 20


def test_a_query_that_needs_too_much_memory_is_refused_and_spills_nothing(
    run: Run, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(guard, "MEMORY_LIMIT", "100MB")
    text = (
        "SELECT * FROM (SELECT hash(range)::VARCHAR || repeat('x', 50) AS y FROM range(10000000)) ORDER BY y"
    )
    assert refused(run, text) == "sql: needs more memory than 100MB; ask for less."
    assert list(Path.cwd().iterdir()) == []


def test_an_answer_that_is_too_large_is_refused(run: Run, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(guard, "ANSWER_LIMIT_BYTES", 1_000_000)
    found = refused(run, "SELECT * FROM range(100000000000)")
    assert found == "sql: the answer is larger than 1,000,000 bytes; aggregate, filter or add a LIMIT."


def test_a_mistake_is_one_sentence(run: Run) -> None:
    assert "reserved word" in refused(run, "SELECT window FROM span")
    assert "nobody" in refused(run, "SELECT * FROM nobody")
    assert "parameters" in refused(run, "SELECT $missing")
    assert "mismatch" in refused(run, "SELECT 1", unused=2)
    refused(run, "SELECT $x", x=object())
    refused(run, "SELECT 'a'::INTEGER")
    refused(run, "SELECT CASE WHEN range = 900000 THEN 'a'::INTEGER ELSE range END FROM range(1000000)")
    refused(run, "SELEC")
    assert "UTF-8" in refused(run, "SELECT '\udc80'")


def test_a_run_whose_path_needs_quotes_can_be_asked(tmp_path: Path) -> None:
    run = write_run(tmp_path / "it's a [run] 100%", span=[{"op": "step", "start_ns": 0, "end_ns": 1}])
    assert run.sql("SELECT count(*) FROM step").rows() == [(1,)]
    assert run.connection().sql("SELECT count(*) FROM step").fetchall() == [(1,)]
