"""The entry point: idle unless asked, once a process, never an error, one warning for an unknown version."""

from __future__ import annotations

import logging
import subprocess
import sys
from types import ModuleType
from typing import TYPE_CHECKING

import pytest
from kvtrace.instrument import importing, wrapping
from kvtrace.instrument.lmcache import client, inprocess
from kvtrace.instrument.vllm import plugin, register

if TYPE_CHECKING:
    from pathlib import Path

    from tests.unit.instrument.conftest import Told


@pytest.fixture(autouse=True)
def fresh(monkeypatch: pytest.MonkeyPatch, told: Told) -> None:
    assert not told.rows
    monkeypatch.setattr(plugin, "_installed", False)
    monkeypatch.delenv("KVTRACE_WARNED", raising=False)
    monkeypatch.setattr(sys, "meta_path", list(sys.meta_path))


def test_without_a_run_the_plugin_imports_nothing() -> None:
    code = (
        "import os, sys; os.environ.pop('KVTRACE_OUT', None)\n"
        "from kvtrace.instrument.vllm import register; register()\n"
        "print([name for name in sys.modules if name.startswith('kvtrace.')])"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert eval(done.stdout) == ["kvtrace.instrument", "kvtrace.instrument.vllm"]


def test_with_a_run_every_part_waits_for_its_module(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("KVTRACE_OUT", str(tmp_path))
    register()
    register()
    lmcache = len(client.PARTS) + len(inprocess.PARTS)
    assert len(importing.status()) == len(plugin.PARTS) + lmcache + 1  # and the copies of torch
    assert all(why.startswith("not here") for why in importing.status().values())
    assert sum(isinstance(finder, importing.Watcher) for finder in sys.meta_path) == 1


def test_a_run_that_is_gone_leaves_the_engine_alone(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("KVTRACE_OUT", str(tmp_path / "gone"))
    register()
    assert importing.status() == {}


def test_whatever_is_wrong_with_the_plugin_the_engine_starts(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    monkeypatch.setenv("KVTRACE_OUT", str(tmp_path))
    monkeypatch.setattr(plugin, "install", lambda: 1 / 0)
    register()
    assert "kvtrace records nothing here: ZeroDivisionError" in caplog.text


def test_an_unknown_version_is_warned_of_once_with_what_is_not_wrapped(
    monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    other = ModuleType("vllm.version")
    monkeypatch.setitem(sys.modules, "vllm.version", other)
    other.__version__ = "0.99.1"  # type: ignore[attr-defined]
    monkeypatch.setattr(
        importing, "_statuses", {part: f"not here: {module}" for module, part, *_ in plugin.PARTS}
    )
    wrapping.after(dict, "no_such_method", print)
    for _ in range(2):
        plugin.warn_of_an_unknown_version()
    (record,) = [each for each in caplog.records if each.levelno == logging.WARNING]
    assert "0.99.1" in record.getMessage()
    assert "dict.no_such_method (not wrapped: no such method in this version)" in record.getMessage()
    assert (
        "KV events (not wrapped: no module vllm.distributed.kv_events in this version)" in record.getMessage()
    )


def test_a_known_version_is_not_warned_of(
    monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    known = ModuleType("vllm.version")
    known.__version__ = "0.32.4"  # type: ignore[attr-defined]
    monkeypatch.setitem(sys.modules, "vllm.version", known)
    plugin.warn_of_an_unknown_version()
    assert caplog.records == []
