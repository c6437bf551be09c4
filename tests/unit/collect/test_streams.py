"""KV events from real ZeroMQ publishers: numbers that are missing, addresses, and messages that are none."""

from __future__ import annotations

import json
import time
from contextlib import ExitStack
from typing import TYPE_CHECKING

import pytest
from kvtrace.collect.streams import replaying
from kvtrace.collect.streams.naming import Subscription, subscription
from kvtrace.errors import UsageError
from tests.unit.collect.collecting import collector
from tests.unit.collect.publishing import LOOPBACK, Publisher, plane, stored

if TYPE_CHECKING:
    from pathlib import Path

KEYS = "SELECT seq, key FROM block ORDER BY seq"


def settle() -> None:
    """Let messages pass through sockets and threads; they are counted afterwards."""
    time.sleep(0.7)


def test_events_become_rows_and_token_ids_do_not(tmp_path: Path) -> None:
    with Publisher() as publisher, collector(tmp_path, kv_events=(publisher.url,)) as collecting:
        publisher.subscribed()
        publisher.publish(stored(1), stored(2, parent_block_hash=1))
        publisher.publish({"type": "BlockRemoved", "block_hashes": [1], "medium": "GPU"})
        settle()
    rows = collecting.sql(
        "SELECT event, tier, key, parent_key, tokens, time_ns // 1000000000 AS s, seq FROM block"
    )
    assert rows.rows() == [
        ("stored", "gpu", f"{1:016x}", None, 4, 1_700_000_000, 0),
        ("stored", "gpu", f"{2:016x}", f"{1:016x}", 4, 1_700_000_000, 0),
        ("removed", "gpu", f"{1:016x}", None, None, 1_700_000_001, 1),
    ]
    assert collecting.lost() == {}
    said = json.loads((tmp_path / "run" / "run.json").read_text())
    assert said["content_dropped"] == {"token_ids": 8}
    assert [(i["name"], i["other_rows"]) for i in said["inputs"]] == [(f"kv-events {publisher.url}", 3)]


def test_a_gap_without_a_replay_is_a_loss(tmp_path: Path) -> None:
    with Publisher() as publisher, collector(tmp_path, kv_events=(publisher.url,)) as collecting:
        publisher.subscribed()
        for number in range(6):
            publisher.publish(stored(number), lost=number in (2, 3))
        settle()
    assert collecting.sql(KEYS)["seq"].to_list() == [0, 1, 4, 5]
    gap = collecting.sql("SELECT count, from_ns // 1000000000, to_ns // 1000000000 FROM loss")
    assert gap.rows() == [(2, 1_700_000_001, 1_700_000_004)]


def test_the_replay_fills_gaps_what_was_before_and_what_came_last(tmp_path: Path) -> None:
    with Publisher() as publisher:
        for number in range(3):  # before anybody listens
            publisher.publish(stored(number))
        with collector(tmp_path, kv_events=(f"{publisher.url},replay={publisher.replay}",)) as collecting:
            publisher.subscribed()
            for number in range(3, 9):
                publisher.publish(stored(number), lost=number in (5, 6, 8))
            settle()
    assert collecting.sql(KEYS)["seq"].to_list() == list(range(9))
    assert collecting.lost() == {}


def test_a_replay_shows_what_no_subscription_brought(tmp_path: Path) -> None:
    with Publisher() as publisher:
        publisher.publish(stored(1), lost=True)
        with collector(tmp_path, kv_events=(f"{publisher.url},replay={publisher.replay}",)) as collecting:
            publisher.subscribed()
    assert collecting.sql(KEYS)["seq"].to_list() == [0]
    assert collecting.report is not None
    assert collecting.report.sources[0].notes == ()


def test_a_replay_that_never_answers_leaves_the_gap(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(replaying, "REPLAY_SECONDS", 0.3)
    with Publisher() as publisher:
        dead = "tcp://127.0.0.1:9"
        with collector(tmp_path, kv_events=(f"{publisher.url},replay={dead}",)) as collecting:
            publisher.subscribed()
            for number in range(4):
                publisher.publish(stored(number), lost=number == 1)
            settle()
    assert collecting.sql(KEYS)["seq"].to_list() == [0, 2, 3]
    assert collecting.lost() == {"sequence_gap": 1}


def test_publishers_that_connect_find_a_bound_address(tmp_path: Path) -> None:
    with collector(tmp_path, kv_events=(f"{LOOPBACK},bind",)) as collecting:
        while not collecting._lines:
            time.sleep(0.05)
        url = collecting.address("kv-events")
        with Publisher(url, connect=True) as publisher:
            publisher.subscribed().publish(stored(1))
            settle()
    assert collecting.sql(KEYS)["seq"].to_list() == [0]
    assert collecting.report is not None
    assert collecting.report.sources[0].name == f"kv-events {url}"


def test_a_message_that_is_too_long_is_a_gap_and_ends_nothing(tmp_path: Path) -> None:
    with Publisher() as publisher:
        wanted = (f"{publisher.url}",)
        with collector(tmp_path, kv_events=wanted, max_message_bytes=1 << 16) as collecting:
            publisher.subscribed().publish(stored(0))
            settle()
            publisher.publish(*(stored(number) for number in range(5_000)))
            publisher.subscribed()  # the connection was cut, and is made anew
            publisher.publish(stored(2))
            settle()
    assert collecting.sql(KEYS)["seq"].to_list() == [0, 2]
    assert collecting.lost() == {"sequence_gap": 1}


def test_messages_that_are_none_are_counted(tmp_path: Path) -> None:
    with Publisher() as publisher, collector(tmp_path, kv_events=(publisher.url,)) as collecting:
        publisher.subscribed()
        publisher.send(b"hello")
        publisher.send(b"", b"12345678")
        publisher.send(b"", (0).to_bytes(8, "big"), b"\xc1 no msgpack")
        publisher.send(b"kv-events", b"%016x" % 7, (0).to_bytes(8, "big"), b"\x01\0\0\0\x09 too short")
        publisher.send(
            *plane("kv-events", 1, {"odd": True})[:3], b"\x01" + (2).to_bytes(4, "big") + b"\x81\xa1"
        )
        publisher.publish(stored(1))
        settle()
    assert collecting.sql(KEYS)["seq"].to_list() == [0]
    assert collecting.lost() == {"undecodable": 5}


def test_two_publishers_blocks_are_told_apart(tmp_path: Path) -> None:
    with ExitStack() as stack:
        publishers = [stack.enter_context(Publisher()) for _ in range(2)]
        urls = tuple(publisher.url for publisher in publishers)
        collecting = stack.enter_context(collector(tmp_path, kv_events=urls))
        for publisher in publishers:
            publisher.subscribed().publish(stored(1))
        settle()
    engines = collecting.sql("SELECT engine, count(*) AS n FROM block GROUP BY 1 ORDER BY 1").rows()
    assert engines == sorted((f"unknown at {url}", 1) for url in urls)


def test_channels_that_dynamo_lists_are_found_as_they_appear(tmp_path: Path) -> None:
    listed = tmp_path / "kv" / "v1" / "event_channels"
    with (
        Publisher() as publisher,
        collector(tmp_path, kv_events=(f"file://{tmp_path / 'kv'}",)) as collecting,
    ):
        time.sleep(0.2)
        listed.mkdir(parents=True)
        (listed / "torn").write_text('{"type": "EventCh')
        transport = {"kind": "Zmq", "config": {"endpoint": publisher.url}}
        channel = {"type": "EventChannel", "topic": "kv-events", "transport": transport}
        (listed / "channel-1").write_text(json.dumps(channel))
        publisher.subscribed()
        blocks = [{"block_hash": 5, "tokens_hash": 6}, {"block_hash": 8, "tokens_hash": 9}]
        event = {"event_id": 1, "data": {"stored": {"parent_hash": None, "blocks": blocks}}, "dp_rank": 0}
        said = {"worker_id": 42, "storage_tier": "host_pinned", "event": event}
        publisher.send(*plane("kv-events", 0, [said]))
        publisher.send(*plane("kv-events", 2, [said]))
        settle()
    rows = collecting.sql(
        "SELECT event, tier, engine, key, parent_key, time_ns FROM block ORDER BY time_ns, key"
    )
    assert rows.rows()[:2] == [
        ("stored", "host", "42", f"{5:016x}", None, 1_700_000_000_000_000_000),
        ("stored", "host", "42", f"{8:016x}", f"{5:016x}", 1_700_000_000_000_000_000),
    ]
    assert collecting.lost() == {"sequence_gap": 1}


@pytest.mark.parametrize(
    ("text", "found"),
    [
        ("tcp://127.0.0.1:5557", Subscription("tcp://127.0.0.1:5557")),
        ("ipc:///tmp/events.sock", Subscription("ipc:///tmp/events.sock")),
        (
            "tcp://127.0.0.1:1,replay=tcp://127.0.0.1:2",
            Subscription("tcp://127.0.0.1:1", "tcp://127.0.0.1:2"),
        ),
        ("tcp://127.0.0.1:0,bind", Subscription("tcp://127.0.0.1:0", bind=True)),
        ("tcp://192.0.2.1:5557", Subscription("tcp://192.0.2.1:5557")),
    ],
)
def test_a_subscription_is_a_url_and_what_else_is_known(text: str, found: Subscription) -> None:
    assert subscription(text) == found


@pytest.mark.parametrize(
    "text",
    [
        "", "127.0.0.1:5557", "http://127.0.0.1:5557", "tcp://127.0.0.1", "tcp://127.0.0.1:0", "ipc://",
        "tcp://127.0.0.1:1,replay=", "tcp://127.0.0.1:1,replay=x", "tcp://127.0.0.1:1,bind,bind",
        "tcp://127.0.0.1:1,retry=2", "tcp://0.0.0.0:1,bind", "file://relative", "file:///x,bind", "tcp://*:5557",
        "ipc:///" + "x" * 200,
    ],
)  # fmt: skip
def test_anything_else_is_one_sentence(text: str) -> None:
    with pytest.raises(UsageError, match="--kv-events") as caught:
        subscription(text)
    assert "\n" not in str(caught.value)


def test_an_address_to_bind_that_is_taken_is_said(tmp_path: Path) -> None:
    with Publisher() as publisher:
        wanted = collector(tmp_path, kv_events=(f"{publisher.url},bind",))
        with pytest.raises(UsageError, match="cannot listen there"), wanted:
            pass
    assert list(tmp_path.iterdir()) == []
