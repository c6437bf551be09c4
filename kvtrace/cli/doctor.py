"""kvtrace doctor: what is installed and active, and why something is not."""

from __future__ import annotations

import os
import platform
from importlib.metadata import PackageNotFoundError, distributions, entry_points, version
from pathlib import Path  # noqa: TC003 - the parser reads annotations
from typing import TYPE_CHECKING, Annotated

import polars as pl
from cyclopts import Parameter

from kvtrace import __version__
from kvtrace.cli._rows import FormatOption, OutputOption, write
from kvtrace.instrument import libraries
from kvtrace.launch.environment import PLUGIN

if TYPE_CHECKING:
    from collections.abc import Iterator
    from typing import Any

Row = tuple[str, str, str, str | None]
COLUMNS = {"place": pl.String, "what": pl.String, "state": pl.String, "detail": pl.String}
GROUP = "vllm.general_plugins"
LIMIT_SECONDS = 180.0
_ENGINES = ("vllm", "lmcache")
_NEEDED = {
    "opentelemetry-exporter-otlp-proto-grpc": "kvtrace run --otlp over gRPC",
    "opentelemetry-exporter-otlp-proto-http": "kvtrace run --otlp over HTTP",
}
_KNOWN = {"vllm": "0.32.", "lmcache": "0.5."}  # as kvtrace/instrument/*/plugin.py say; a test compares them


def doctor(
    run: Path | None = None,
    /,
    *,
    python: Annotated[
        str | None, Parameter(help="Another interpreter to look at, with its flags if it gets some.")
    ] = None,
    seconds: Annotated[float, Parameter(help="So long that interpreter may take.")] = LIMIT_SECONDS,
    form: FormatOption = None,
    output: OutputOption = None,
) -> None:
    """Say what is installed and active, and why something is not.

    Without arguments: this environment. With a run: what each of its processes recorded with, what was not
    wrapped and why, and which still record. With --python: whether that interpreter finds kvtrace when
    kvtrace run starts it, which engine it has, and what of it would be wrapped; it imports the engine, which
    takes as long as the engine takes. Flags such as -I shut kvtrace out: name them in quotes. Where there is
    a vLLM, each connector that ships with 0.32 is listed: whether its instruments were seen on a running
    engine, or are only by its source.

    Example:
        kvtrace doctor --python /opt/vllm/bin/python
    """
    rows = [*here()] if run is None and python is None else []
    rows += [] if run is None else [*of_run(run)]
    rows += [] if python is None else [*of_python(python, seconds)]
    write(pl.DataFrame(rows, schema=COLUMNS, orient="row"), form, output, inapplicable=frozenset({"detail"}))


def here() -> Iterator[Row]:
    """What is here; no engine is imported."""
    place = "this environment"
    yield place, "kvtrace", "ok", __version__
    yield place, "python", "ok", platform.python_version()
    found = {
        (entry.metadata["Name"] or "").lower(): entry.version
        for entry in distributions()
        if (entry.metadata["Name"] or "").lower().split("-")[0] in (*_ENGINES, *libraries.LIBRARIES)
    }
    yield from _engines(place, found)
    declared = [entry.value for entry in entry_points(group=GROUP) if entry.name == PLUGIN]
    yield _plugin(place, declared, "kvtrace is not installed here; kvtrace run links it in")
    yield _allowed(place)
    for name, purpose in _NEEDED.items():
        try:
            yield place, purpose, "ok", version(name)
        except PackageNotFoundError:
            yield place, purpose, "absent", f"no {name}; pip install 'kvtrace[otlp]'"


def _engines(place: str, found: dict[str, str]) -> Iterator[Row]:
    for engine in _ENGINES:
        own = {name: number for name, number in found.items() if name.split("-")[0] == engine}
        if not own:
            yield place, engine, "absent", None
        for name, number in sorted(own.items()):
            known = number.startswith(_KNOWN[engine])
            said = number if name == engine else f"{number} ({name})"
            more = f"; kvtrace knows {_KNOWN[engine]}x, what it does not find it does not wrap"
            yield place, engine, "ok" if known else "unknown version", said + ("" if known else more)
        if own and engine == "vllm":
            yield from _connectors(place)
    for name, number in sorted(found.items()):
        known_as = libraries.of(name)
        if known_as is not None:
            yield place, name, known_as[0], f"{number}; kvtrace: {known_as[1]}"


def _connectors(place: str) -> Iterator[Row]:
    """What of each connector that ships was seen on a running engine, and what is only by its source."""
    from kvtrace.instrument.vllm.verified import CONNECTORS

    for name, (state, detail) in CONNECTORS.items():
        yield place, f"connector {name}", state, detail


def _plugin(place: str, declared: list[str], otherwise: str) -> Row:
    return place, "plugin", "ok" if declared else "absent", declared[0] if declared else otherwise


def _allowed(place: str) -> Row:
    allowed = os.environ.get("VLLM_PLUGINS")
    if allowed is None:
        return place, "VLLM_PLUGINS", "ok", "not set: every plugin is loaded"
    if PLUGIN in allowed.split(","):
        return place, "VLLM_PLUGINS", "ok", allowed
    return place, "VLLM_PLUGINS", "without kvtrace", f"{allowed!r}; kvtrace run adds {PLUGIN}"


def of_run(path: Path) -> Iterator[Row]:
    """What each process of a run recorded with, and which still record."""
    from kvtrace.run import open_run
    from kvtrace.schema.frames import SUFFIX
    from kvtrace.schema.layout import SPOOL
    from kvtrace.sources.spool.liveness import start_ticks

    opened = open_run(path)
    query = "SELECT process, role, product, version, map_entries(instruments) FROM process ORDER BY process"
    for process, role, product, number, instruments in opened.connection().sql(query).fetchall():
        place = process or "a process without a name"
        yield place, "process", "ok", " ".join(filter(None, (role, product, number))) or None
        for entry in sorted(instruments or (), key=lambda entry: str(entry["key"])):
            active = entry["value"] == "active"
            yield place, entry["key"], *(("active", None) if active else _reason(entry["value"]))
    for spool in sorted((opened.origin / SPOOL).glob(f"*{SUFFIX}")):
        pid = (spool.stem.split("-")[-2:-1] or [""])[0]
        lives = pid.isdecimal() and start_ticks(int(pid)) is not None
        state = "still written" if lives else "ended"
        yield f"process {pid}", spool.name, state, f"{spool.stat().st_size} bytes in {SPOOL}/"


def _reason(said: str | None) -> tuple[str, str | None]:
    """`not wrapped: no such method` -> state and why."""
    state, colon, why = (said or "unknown").partition(": ")
    return state, why if colon else None


def of_python(python: str, seconds: float) -> Iterator[Row]:
    """Another interpreter, as kvtrace run would start it."""
    from kvtrace.launch.examination import examine

    found = examine(python, seconds=seconds)
    yield python, "python", "ok", f"{found['python']} ({found['executable']})"
    yield _reached(python, found)
    yield from _engines(python, found["versions"])
    yield _plugin(python, found["plugins"], "it does not find kvtrace, so nothing is recorded")
    if found["late"]:
        yield python, "places to wrap", "unknown", f"no answer in {seconds:.0f} s; give more with --seconds"
    if "error" in found:
        yield python, "places to wrap", "unknown", found["error"]
    for name, said in sorted(found.get("wrapped", {}).items()):
        active = said == "active"
        yield python, name, *(("would be wrapped", None) if active else _reason(said))


def _reached(python: str, found: dict[str, Any]) -> Row:
    if found["reached"]:
        return python, "kvtrace run reaches it", "ok", None
    flags = ", ".join(found["flags"]) or "its environment is cleaned, or PYTHONPATH is ignored"
    return python, "kvtrace run reaches it", "not reached", f"{flags}: start it without -E, -I and -S"
