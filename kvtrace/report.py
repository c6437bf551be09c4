r"""Panels -> one self-contained HTML page: what is in the run, what was lost, and then the pictures.

The page asks nothing of the network: plotly.js travels in it once, packed, figures are inert JSON, and a
content security policy admits exactly two scripts by their hash (the page's runner and plotly.js). Every
name that came from outside is text: Jinja escapes HTML, `<` is \u003c in JSON, and panels escape the
pseudo-HTML of plotly's labels. The same run gives the same bytes.
"""

from __future__ import annotations

import base64
import gzip
import hashlib
import inspect
import os
import tomllib
from dataclasses import dataclass, field
from functools import cache
from importlib.resources import files
from pathlib import Path
from typing import TYPE_CHECKING, Any

from kvtrace import __version__
from kvtrace.errors import UsageError
from kvtrace.panels import panel

if TYPE_CHECKING:
    from collections.abc import Sequence
    from types import ModuleType

    from kvtrace.panels._card import Story, Table
    from kvtrace.panels._facts import Facts
    from kvtrace.run import Run

MOST_BYTES = 8_000_000
OVERVIEW = "overview.toml"
_KEYS = frozenset({"name", "title", "short", "options"})


@dataclass(frozen=True)
class Entry:
    """One panel of a dashboard: which, with which options, under which title."""

    name: str
    options: dict[str, Any] = field(default_factory=dict)
    title: str | None = None
    short: str | None = None


@dataclass(frozen=True)
class Card:
    """One panel of one run, ready for the page: text, and the figure as inert JSON."""

    anchor: str
    title: str
    short: str
    reading: str
    empty: str | None
    notes: tuple[str, ...]
    figure: str | None
    height: int
    table: Table | None
    stories: tuple[Story, ...] = ()


@dataclass(frozen=True)
class Section:
    """One run on the page."""

    anchor: str
    facts: Facts
    cards: tuple[Card, ...]


def write_report(runs: Sequence[Run], output: Path, *, dashboard: Path | None = None) -> None:
    """Write one self-contained HTML page about one or several runs; a file that is there is replaced.

    Raises:
        UsageError: no run, `output` is a directory or lies in none, the dashboard asks for what does not
            exist, or the page would exceed 8 MB (many runs).
    """
    if not runs:
        raise UsageError("report: give at least one run.")
    if output.is_dir():
        raise UsageError(
            f"{output}: is a directory; name the HTML file to write, such as {output / 'report.html'}."
        )
    if not output.parent.is_dir():
        raise UsageError(f"{output}: its folder does not exist; make it first.")
    text = page(runs, read_dashboard(dashboard)).encode("utf-8", "backslashreplace")
    if len(text) > MOST_BYTES:
        raise UsageError(
            f"{output}: the page would have {len(text):,} bytes, more than {MOST_BYTES:,}; "
            "give fewer runs, or a --dashboard whose panels have smaller limits (top, most)."
        )
    partial = output.with_name(f".{output.name}.{os.getpid()}.tmp")
    try:
        partial.write_bytes(text)
        partial.replace(output)
    except OSError as error:
        raise UsageError(
            f"{output}: cannot be written ({error.strerror or error}); choose another -o."
        ) from error
    finally:
        partial.unlink(missing_ok=True)


def page(runs: Sequence[Run], entries: Sequence[Entry]) -> str:
    """The whole page as text."""
    import jinja2

    over_all = [entry for entry in entries if takes_all(panel(entry.name))]
    shared = tuple(_card(runs, entry, f"all-{number}") for number, entry in enumerate(over_all))
    each = [entry for entry in entries if entry not in over_all]
    sections = [_section(run, f"run{number}", each) for number, run in enumerate(runs)]
    names = [section.facts.name for section in sections]
    packed, plotly_hash = _plotly()
    runner = _asset("runner.js")
    policy = (
        f"default-src 'none'; script-src '{_sha256(runner)}' '{plotly_hash}'; style-src 'unsafe-inline'; "
        "img-src data: blob:; base-uri 'none'; form-action 'none'"
    )
    template = jinja2.Environment(
        autoescape=True, trim_blocks=True, undefined=jinja2.StrictUndefined
    ).from_string(_asset("report.html.j2"))
    return template.render(
        title=names[0]
        if len(names) == 1
        else f"{len(names)} runs: {', '.join(names[:4])}{' …' if len(names) > 4 else ''}",
        shared=shared,
        runs=sections,
        policy=policy,
        style=_asset("style.css"),
        runner=runner,
        plotly=packed,
        version=__version__,
    )


def _section(run: Run, anchor: str, entries: Sequence[Entry]) -> Section:
    from kvtrace.panels._facts import facts

    cards = tuple(_card([run], entry, f"{anchor}-{number}") for number, entry in enumerate(entries))
    return Section(anchor, facts(run), cards)


def takes_all(module: ModuleType) -> bool:
    """Whether a panel draws all runs of a page at once: data(*runs)."""
    kinds = (parameter.kind for parameter in inspect.signature(module.data).parameters.values())
    return inspect.Parameter.VAR_POSITIONAL in kinds


def _card(runs: Sequence[Run], entry: Entry, anchor: str) -> Card:
    module = panel(entry.name)
    found = module.data(*runs, **entry.options)
    notes, table, stories = (getattr(module, name, None) for name in ("notes", "table", "stories"))
    figure = None if found.empty else module.draw(found)
    return Card(
        anchor=anchor,
        title=entry.title or module.TITLE,
        short=entry.short or entry.name.replace("_", " "),
        reading=module.READING,
        empty=found.empty,
        notes=notes(found) if notes and not found.empty else (),
        figure=None if figure is None else _inert(figure.to_json()),
        height=0 if figure is None else int(figure.layout.height or 0),
        table=table(found) if table and not found.empty else None,
        stories=stories(found) if stories and not found.empty else (),
    )


def _inert(json: str) -> str:
    """JSON that cannot end its own script element, nor a line of JavaScript."""
    return (
        json.replace("<", "\\u003c")
        .replace(">", "\\u003e")
        .replace("\u2028", "\\u2028")
        .replace("\u2029", "\\u2029")
    )


def _sha256(script: str) -> str:
    return "sha256-" + base64.b64encode(hashlib.sha256(script.encode()).digest()).decode()


def _asset(name: str) -> str:
    return files("kvtrace").joinpath("page", name).read_text(encoding="utf-8")


@cache
def _plotly() -> tuple[str, str]:
    """plotly.js packed (gzip, base64), and the hash under which the page may run it."""
    from plotly.offline import get_plotlyjs

    script: str = get_plotlyjs()
    return base64.b64encode(gzip.compress(script.encode(), 9, mtime=0)).decode(), _sha256(script)


def read_dashboard(path: Path | None = None) -> list[Entry]:
    """Panels, their order and options; without a path the overview that comes with kvtrace.

    Raises:
        UsageError: no such file, not TOML, no such panel, no such option, or an option of another type.
    """
    file = shipped() if path is None else path
    try:
        content = tomllib.loads(file.read_text(encoding="utf-8"))
    except (OSError, UnicodeDecodeError) as error:
        raise UsageError(f"{file}: cannot be read ({error}).") from error
    except tomllib.TOMLDecodeError as error:
        raise UsageError(f"{file}: is not TOML ({error}).") from error
    panels = content.pop("panel", [])
    if content or not isinstance(panels, list) or not all(isinstance(entry, dict) for entry in panels):
        raise UsageError(f"{file}: takes [[panel]] entries and nothing else{_named(content)}.")
    if not panels:
        raise UsageError(f"{file}: names no panel; add a [[panel]] with a name.")
    return [_entry(f"{file}: panel {number}", entry) for number, entry in enumerate(panels, start=1)]


def shipped(name: str = OVERVIEW) -> Path:
    """A dashboard inside an installed package, else in the checkout beside it."""
    package = Path(str(files("kvtrace")))
    installed = package / "_dashboards" / name
    return installed if installed.is_file() else package.parent / "dashboards" / name


def _entry(where: str, entry: dict[str, Any]) -> Entry:
    """One checked entry; where it is wrong, the sentence says what there is."""
    if unknown := set(entry) - _KEYS:
        raise UsageError(f"{where}: takes {', '.join(sorted(_KEYS))}, not {', '.join(sorted(unknown))}.")
    for key in ("name", "title", "short"):
        if key in entry and not isinstance(entry[key], str):
            raise UsageError(f"{where}: {key} must be text.")
    if "name" not in entry:
        raise UsageError(f"{where}: says no name.")
    options = entry.get("options", {})
    if not isinstance(options, dict):
        raise UsageError(f"{where}: options must be a table, such as {{ top = 10 }}.")
    try:
        module = panel(entry["name"])
    except UsageError as error:
        raise UsageError(f"{where}: {error}") from error
    _check_options(f"{where} ({entry['name']})", module, options)
    return Entry(entry["name"], options, entry.get("title"), entry.get("short"))


def _check_options(where: str, module: ModuleType, options: dict[str, Any]) -> None:
    known = {
        name: parameter.default
        for name, parameter in inspect.signature(module.data).parameters.items()
        if parameter.kind is inspect.Parameter.KEYWORD_ONLY
    }
    for name, value in options.items():
        if name not in known:
            has = f"its options are {', '.join(sorted(known))}" if known else "it takes none"
            raise UsageError(f"{where}: no option {name}; {has}.")
        expected = type(known[name])
        if known[name] is not None and type(value) is not expected:
            raise UsageError(
                f"{where}: {name} must be {'text' if expected is str else expected.__name__}, not {value!r}."
            )


def _named(content: dict[str, Any]) -> str:
    return f", not {', '.join(sorted(content))}" if content else ""
