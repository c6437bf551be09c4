"""However a server is started it is recorded, or the run says why it is not; it runs in any case."""

from __future__ import annotations

import os
import subprocess
from typing import TYPE_CHECKING

import pytest
from kvtrace.instrument.lmcache.prefetches import Prefetches
from kvtrace.instrument.lmcache.subscriber import REFUSED, Storage
from tests.engines.lmcache_alone.server import CHUNKS
from tests.engines.lmcache_alone.test_plain import rows

if TYPE_CHECKING:
    from pathlib import Path

    from tests.engines.lmcache_alone.server import Played

pytestmark = pytest.mark.engine


def test_a_server_that_sitecustomize_does_not_reach_is_reached_by_its_device_plugins(
    attached: Played,
) -> None:
    assert attached.said == {"from_l2": [CHUNKS, []]}
    query = "SELECT op, count(*) FROM span WHERE op IN ('lookup', 'load', 'store') GROUP BY 1 ORDER BY 1"
    assert dict(rows(attached, query)).keys() == {"load", "lookup", "store"}
    assert rows(attached, "SELECT * FROM loss") == []


def test_another_version_is_recorded_as_such_and_warned_of_once(attached: Played) -> None:
    assert rows(attached, "SELECT product, version FROM process") == [("lmcache", "9.9.9")]
    assert attached.log.count("kvtrace knows LMCache 0.5.* and found 9.9.9: not wrapped: nothing.") == 1


def test_a_server_that_publishes_nothing_says_so_and_runs(silenced: Played) -> None:
    assert silenced.said == {"from_l2": [0, []]}
    ((product, instruments),) = rows(silenced, "SELECT product, instruments FROM process")
    assert product == "lmcache"
    off = "not active: the server runs with --disable-observability"
    assert (instruments["events of LMCache"], instruments["calls of LMCache's storage"]) == (off, off)
    query = "SELECT count(*) FROM span WHERE evidence = 'native'"
    assert rows(silenced, query) == [(0,)]


def test_what_needs_no_event_is_recorded_all_the_same(silenced: Played) -> None:
    query = "SELECT DISTINCT name, evidence FROM span"
    assert rows(silenced, query) == [("prefetch.submitted", "shim")]


def test_every_event_of_lmcache_is_decoded_but_those_that_carry_tokens(python: Path) -> None:
    code = "from lmcache.v1.mp_observability.event import EventType as E; print(*(kind.value for kind in E))"
    done = subprocess.run(
        [str(python), "-c", code],
        env={**os.environ, "LMCACHE_DISABLE_BANNER": "1"},
        capture_output=True,
        text=True,
        timeout=120,
        check=True,
    )
    names = set(done.stdout.splitlines()[-1].split())
    refused = {name for name in names if any(part in name for part in REFUSED)}
    assert refused == {"mp.tokens"}
    assert set(Storage().handlers(Prefetches(), 0)) == names - refused
