"""The page: complete, bounded, the same twice, and nothing from outside is ever markup."""

from __future__ import annotations

import base64
import gzip
import hashlib
import json
import re
import tempfile
from functools import cache
from html.parser import HTMLParser
from pathlib import Path

import pytest
from kvtrace import report
from kvtrace.errors import UsageError
from kvtrace.panels import panel, panels
from tests.rows import write_run
from tests.unit.panels.drawn import HOSTILE, request, small, span


class Page(HTMLParser):
    """Elements, scripts and visible text of a page."""

    def __init__(self, text: str) -> None:
        super().__init__()
        self.tags: list[tuple[str, dict[str, str | None]]] = []
        self.scripts: list[tuple[dict[str, str | None], str]] = []
        self.words: list[str] = []
        self.feed(text)

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.tags.append((tag, dict(attrs)))
        if tag == "script":
            self.scripts.append((dict(attrs), ""))

    def handle_data(self, data: str) -> None:
        if self.cdata_elem == "script":
            attributes, before = self.scripts[-1]
            self.scripts[-1] = (attributes, before + data)
        elif self.cdata_elem is None:
            self.words.append(data)

    @property
    def text(self) -> str:
        return " ".join(" ".join(self.words).split())

    @property
    def policy(self) -> str:
        found = next(a for tag, a in self.tags if a.get("http-equiv") == "Content-Security-Policy")
        return found["content"] or ""


@pytest.fixture
def output(tmp_path: Path) -> Path:
    return tmp_path / "report.html"


def written(*, steps: bool, **meta: object) -> Page:
    """The page of a small run, written once a test process: many tests read the same one."""
    return Page(_written(steps, json.dumps(meta)))


@cache
def _written(steps: bool, meta: str) -> str:  # noqa: FBT001
    with tempfile.TemporaryDirectory() as folder:
        output = Path(folder) / "report.html"
        report.write_report([write_run(Path(folder) / "run", json.loads(meta), **small(steps=steps))], output)
        return output.read_text(encoding="utf-8")


def test_the_page_needs_nothing_from_outside() -> None:
    page = written(steps=True)
    assert not [tag for tag, attributes in page.tags if {"src", "srcset", "action"} & set(attributes)]
    assert not [tag for tag, _ in page.tags if tag in {"link", "iframe", "object", "base", "img"}]
    assert all((a.get("href") or "#").startswith("#") for tag, a in page.tags if tag == "a")
    assert "default-src 'none'" in page.policy


def test_the_policy_admits_exactly_the_runner_and_plotly_by_their_hash() -> None:
    page = written(steps=True)
    running = [body for attributes, body in page.scripts if "type" not in attributes]
    (packed,) = [body for attributes, body in page.scripts if attributes.get("id") == "plotly"]
    library = gzip.decompress(base64.b64decode(packed))
    hashes = {
        "sha256-" + base64.b64encode(hashlib.sha256(code).digest()).decode()
        for code in (running[0].encode(), library)
    }
    assert len(running) == 1
    assert set(re.findall(r"sha256-[^']+", page.policy)) == hashes


@pytest.mark.parametrize("steps", [True, False])
def test_hostile_names_are_text_everywhere(steps: bool) -> None:  # noqa: FBT001
    page = written(steps=steps, recording={"scenario": HOSTILE[0], "captured": HOSTILE[2]})
    assert HOSTILE[0] in page.text
    assert {attributes.get("type") for attributes, _ in page.scripts} == {
        None,
        "application/json",
        "application/octet-stream",
    }
    for attributes, body in page.scripts:
        if attributes.get("type") == "application/json":
            assert "<" not in body
            json.loads(body)


def test_what_was_lost_says_where_why_and_what_follows() -> None:
    page = written(steps=True)
    assert "3 store records of lmcache/0" in page.text
    assert "sequence gap, numbered messages are missing" in page.text
    assert "Counts and sums of stores are at least what is shown" in page.text
    assert "Arrived twice and counted once, which is no loss: 2 records" in page.text


def test_a_loss_of_the_scheduler_says_that_windows_become_upper_bounds(tmp_path: Path, output: Path) -> None:
    tables = {
        "span": [request("r0", 0, 5, 10), span("r0", "queue", 0, 1)],
        "loss": [{"source": "s", "process": "e0/scheduler", "op": "step", "cause": "dropped", "count": 4}],
    }
    report.write_report([write_run(tmp_path / "run", **tables)], output)
    assert "4 step records of e0/scheduler (s): dropped" in output.read_text()
    assert "Windows that overlap the gap are upper bounds" in output.read_text()


@pytest.mark.parametrize(
    ("meta", "said"),
    [
        ({"synthetic": False}, "Nothing in it is synthetic"),
        ({"synthetic": "by hand"}, "It is synthetic: by hand"),
        ({}, "Nobody said whether anything in it is synthetic"),
    ],
)
def test_the_page_says_whether_anything_is_synthetic(meta: dict[str, object], said: str) -> None:
    assert said in written(steps=True, **meta).text


def test_without_steps_numbers_are_bounds_and_no_quantile_is_shown() -> None:
    page = written(steps=False)
    assert "No step of the engine was recorded" in page.text
    assert "<= " in page.text
    assert "p99" not in page.text.replace("between tokens, p99", "a target, and no quantile")
    assert "request in steps. Without it: exposure is an upper bound" in page.text


def test_what_only_some_requests_have_is_said_to_be_observed_in_part() -> None:
    assert "first token (9 of 10)" in written(steps=True).text


def test_spans_that_no_rule_knows_are_said_to_be_there(tmp_path: Path, output: Path) -> None:
    unknown = [
        span(None, "step", at, at + 1, at) | {"op": None, "name": name}
        for at, name in enumerate(("request", "request", "Startup"))
    ]
    tables = {"span": [request("r0", 0, 5, 10), *unknown]}
    report.write_report([write_run(tmp_path / "run", **tables)], output)
    assert "3 spans without an operation that kvtrace knows: kept as rows" in Page(output.read_text()).text


def test_a_run_in_which_every_span_is_known_does_not_speak_of_unknown_ones() -> None:
    assert "without an operation" not in written(steps=True).text


def test_numbers_too_large_to_sum_do_not_stop_the_page(tmp_path: Path, output: Path) -> None:
    rows = [span("r0", "load", n, n + 1, n, tier_from="host", tier_to="gpu", bytes=1 << 62) for n in range(3)]
    report.write_report([write_run(tmp_path / "run", span=[request("r0", 0, 5, 10), *rows])], output)
    assert "12,288 PiB" in Page(output.read_text()).text


def test_an_empty_run_is_a_page_of_sentences(tmp_path: Path, output: Path) -> None:
    report.write_report([write_run(tmp_path / "run")], output)
    page = Page(output.read_text())
    assert "This run holds no timed record at all." in page.text
    assert not [a for a, _ in page.scripts if a.get("type") == "application/json"]


def test_several_runs_share_one_plotly(tmp_path: Path, output: Path) -> None:
    runs = [write_run(tmp_path / name, **small(steps=True)) for name in ("one", "two")]
    report.write_report(runs, output)
    page = Page(output.read_text())
    assert len([a for a, _ in page.scripts if a.get("id") == "plotly"]) == 1
    ids = [a["id"] for _, a in page.tags if "id" in a]
    assert len(ids) == len(set(ids))
    assert "2 runs: one, two" in page.text


def test_the_same_run_gives_the_same_bytes(tmp_path: Path) -> None:
    run = write_run(tmp_path / "run", **small(steps=True))
    for name in ("a.html", "b.html"):
        report.write_report([run], tmp_path / name)
    assert (tmp_path / "a.html").read_bytes() == (tmp_path / "b.html").read_bytes()


def test_a_long_run_stays_below_the_cap(tmp_path: Path, output: Path) -> None:
    rows = [request("r" * 5000, 0, 1, 9000)]
    for number in range(4000):
        rows += [
            span(
                f"r{number}" * 300,
                "load",
                number,
                number + 1,
                number,
                tier_from="host",
                tier_to="gpu",
                component="c" * 4000,
            ),
            span(
                None,
                "step",
                number,
                number + 1,
                number,
                members=[{"request_id": "r" * 5000, "scheduled_tokens": 1}],
            ),
            span(
                f"r{number}",
                "lookup",
                number,
                number + 1,
                number,
                requested_tokens=number * 7,
                found_tokens=number * 3,
            ),
        ]
    losses = [{"source": f"s{n}" * 1000, "cause": "dropped", "count": 1} for n in range(500)]
    report.write_report([write_run(tmp_path / "run", span=rows, loss=losses)], output)
    assert output.stat().st_size < 5_000_000


def test_an_existing_file_is_replaced_and_nothing_else_is_left(tmp_path: Path, output: Path) -> None:
    output.write_text("old")
    report.write_report([write_run(tmp_path / "run")], output)
    assert output.read_text().startswith("<!doctype html>")
    assert sorted(path.name for path in tmp_path.iterdir()) == ["report.html", "run"]


def test_a_directory_or_a_missing_folder_is_refused(tmp_path: Path) -> None:
    run = write_run(tmp_path / "run")
    with pytest.raises(UsageError, match="is a directory; name the HTML file"):
        report.write_report([run], tmp_path)
    with pytest.raises(UsageError, match="its folder does not exist"):
        report.write_report([run], tmp_path / "no" / "report.html")
    with pytest.raises(UsageError, match="at least one run"):
        report.write_report([], tmp_path / "report.html")


def test_a_page_over_the_cap_is_refused_with_the_way_out(
    tmp_path: Path, output: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(report, "MOST_BYTES", 1000)
    with pytest.raises(UsageError, match="give fewer runs, or a --dashboard"):
        report.write_report([write_run(tmp_path / "run")], output)
    assert not output.exists()


def test_the_overview_names_every_panel_once() -> None:
    named = [entry.name for entry in report.read_dashboard()]
    assert sorted(named) == sorted(name for name in panels() if not report.takes_all(panel(name)))
    assert named[0] == "exposure"


def test_an_installed_package_finds_its_overview(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "_dashboards").mkdir()
    (tmp_path / "_dashboards" / "overview.toml").write_text('[[panel]]\nname = "lookups"\n')
    monkeypatch.setattr(report, "files", lambda _package: tmp_path)
    assert [entry.name for entry in report.read_dashboard()] == ["lookups"]


@pytest.mark.parametrize(
    ("text", "said"),
    [
        ("", "names no panel"),
        ("panel = 3", "takes .*entries and nothing else"),
        ("[other]", "not other"),
        ("[[panel", "is not TOML"),
        ("[[panel]]", "panel 1: says no name"),
        ('[[panel]]\nname = "exposur"', "panel 1: exposur: no such panel. Did you mean exposure"),
        ('[[panel]]\nname = "lookups"\ncolour = 1', "takes .* not colour"),
        ('[[panel]]\nname = "lookups"\noptions = { top = 1 }', "no option top; it takes none"),
        ('[[panel]]\nname = "slowest"\noptions = { most = 1 }', "no option most; its options are by, top"),
        ('[[panel]]\nname = "slowest"\noptions = { top = "5" }', "top must be int, not '5'"),
        ('[[panel]]\nname = "slowest"\noptions = { by = 5 }', "by must be text, not 5"),
        ('[[panel]]\nname = "slowest"\noptions = 5', "options must be a table"),
        ("[[panel]]\nname = 5", "name must be text"),
    ],
)
def test_a_wrong_dashboard_is_one_clear_sentence(text: str, said: str, tmp_path: Path) -> None:
    path = tmp_path / "own.toml"
    path.write_text(text)
    with pytest.raises(UsageError, match=said):
        report.read_dashboard(path)


def test_a_dashboard_of_ones_own_chooses_titles_and_order(tmp_path: Path, output: Path) -> None:
    path = tmp_path / "own.toml"
    path.write_text(
        '[[panel]]\nname = "lookups"\ntitle = "<Mine>"\n[[panel]]\nname = "slowest"\noptions = { top = 1 }\n'
    )
    report.write_report([write_run(tmp_path / "run", **small(steps=True))], output, dashboard=path)
    text = Page(output.read_text()).text
    assert text.index("<Mine>") < text.index("Where did the slowest requests")
    assert "Which transfer time" not in text
