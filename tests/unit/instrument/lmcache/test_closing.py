"""A server's end: what it still holds is said, then its recording is closed, whatever the end is like."""

from __future__ import annotations

from types import SimpleNamespace
from typing import TYPE_CHECKING, Any

import pytest
from kvtrace import recorder
from kvtrace.instrument.lmcache import closing

if TYPE_CHECKING:
    from tests.unit.instrument.conftest import Told


class LookupModule:
    def report_status(self) -> dict[str, int]:
        return {"active_prefetch_jobs": 1}


def server(close: Any, **more: Any) -> Any:
    """A compositor as LMCache's is, wrapped."""
    kind = type("MPCacheServer", (), {"close": close})
    closing.install(SimpleNamespace(MPCacheServer=kind))
    made: Any = kind()
    page = {"total_object_count": 6, "read_locked_count": 2, "write_locked_count": 0, "temporary_count": 0}
    made.context = SimpleNamespace(
        storage_manager=SimpleNamespace(_l1_manager=SimpleNamespace(report_status=lambda: page)),
        session_manager=SimpleNamespace(active_count=lambda: 3),
    )
    made._modules = [object(), LookupModule()]
    for name, value in more.items():
        setattr(made, name, value)
    return made


@pytest.fixture
def closed(monkeypatch: pytest.MonkeyPatch) -> list[str]:
    """When the recording was closed."""
    found: list[str] = []
    monkeypatch.setattr(recorder, "close", lambda: found.append("recording"))
    return found


def test_what_is_left_is_named_as_on_its_status_page(told: Told, closed: list[str]) -> None:
    server(lambda _: closed.append("server")).close()
    assert closed == ["server", "recording"]
    assert {row["name"].removeprefix("lmcache_status."): row["value"] for row in told.table("metric")} == {
        "storage_manager.l1_manager.total_object_count": 6.0,
        "storage_manager.l1_manager.read_locked_count": 2.0,
        "storage_manager.l1_manager.write_locked_count": 0.0,
        "storage_manager.l1_manager.temporary_count": 0.0,
        "active_sessions": 3.0, "active_prefetch_jobs": 1.0,
    }  # fmt: skip


def test_a_server_whose_end_fails_fails_and_is_recorded_to_its_end(told: Told, closed: list[str]) -> None:
    def fails(_self: Any) -> None:
        raise OSError("no")

    with pytest.raises(OSError, match="no"):
        server(fails).close()
    assert closed == ["recording"]
    assert told.losses == []


def test_a_server_without_these_counts_ends_all_the_same(told: Told, closed: list[str]) -> None:
    server(lambda _: closed.append("server"), context=SimpleNamespace()).close()
    assert closed == ["server", "recording"]
    assert [cause for cause, _ in told.losses] == ["hook_failure"]
