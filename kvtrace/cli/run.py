"""kvtrace run: an engine's own command, instrumented. Imports no library: the command must start at once."""

from __future__ import annotations

import sys
from contextlib import suppress
from pathlib import Path

from kvtrace.cli._text import sentence
from kvtrace.errors import UsageError

_OPTIONS = ("--out", "--otlp", "--group")
_FLAG = "--attach-lmcache"


def run(
    *command: str,
    out: Path | None = None,
    otlp: str | None = None,
    group: str | None = None,
    attach_lmcache: bool = False,
) -> int:
    """Start an engine's own command instrumented; nothing else to configure, nothing to install into it.

    The command keeps its terminal, its signals and its exit code. What it records becomes a run that can
    be read while it lasts, and an engine may live in another virtual environment that knows nothing of
    kvtrace. A Python that is started with -E, -I or -S, with a cleaned environment (sudo, env -i) or on
    another machine is not reached: kvtrace doctor --python PATH says whether yours is.

    vLLM and LMCache's server are recorded by themselves. --attach-lmcache is for an LMCache server that
    something else starts with this environment and that runs no sitecustomize (-S, or one that shadows
    ours): it declares an LMCache device plugin. That is a hook made for hardware and used for what it is
    not: LMCache imports it in each of its processes, and lists a device of our name that is never there.

    Args:
        command: The command and its arguments, after --.
        out: The run to make; it must not exist. Default: kvtrace-run-<time>.
        otlp: Also send what is recorded as OpenTelemetry spans: http://HOST:4317 (gRPC) or :4318 (HTTP).
        group: Name of the group the run belongs to.
        attach_lmcache: Also attach to LMCache by its device plugins, for servers not reached otherwise.

    Example:
        kvtrace run --out run -- python -m vllm.entrypoints.openai.api_server --model MODEL
    """
    from kvtrace.launch import launch

    if not command:
        raise UsageError("run: name the command to start, as in kvtrace run --out run -- python serve.py.")
    return launch(command, out=out, otlp=otlp, group=group, attach_lmcache=attach_lmcache, say=_say)


def _say(text: str) -> None:
    """A sentence beside the command's own output; if nobody reads it any more, recording goes on."""
    if sys.stderr is not None:  # closed by whoever started us: print would take stdout instead
        with suppress(OSError):
            print(f"kvtrace: {sentence(text)}", file=sys.stderr, flush=True)


def run_words(words: list[str]) -> int:
    """The same from the words of a command line, without the parsing library.

    Options end at `--` or at the first word that is none; all behind it is the command's, `--` included.

    Raises:
        UsageError: an option that does not exist, or has no value.
    """
    given: dict[str, str] = {}
    attach = False
    rest = list(words)
    while rest and rest[0].startswith("-"):
        word = rest.pop(0)
        if word == "--":
            break
        if word == _FLAG:
            attach = True
            continue
        name, equals, value = word.partition("=")
        if name not in _OPTIONS:
            import difflib  # 4 ms that a command need not wait for

            known = (*_OPTIONS, _FLAG)
            near = difflib.get_close_matches(name, known, n=1)
            hint = f"Did you mean {near[0]}?" if near else f"There are {', '.join(known)}."
            raise UsageError(f"run {name}: no such option. {hint}")
        if not equals:
            if not rest or rest[0] == "--":
                raise UsageError(f"run {name}: needs a value.")
            value = rest.pop(0)
        if name in given:
            raise UsageError(f"run {name}: given twice.")
        given[name] = value
    out = Path(given["--out"]) if given.get("--out") else None
    return run(*rest, out=out, otlp=given.get("--otlp"), group=given.get("--group"), attach_lmcache=attach)


def wants_help(words: list[str]) -> bool:
    """Whether help is asked of us, not of the command."""
    rest = list(words)
    while rest and rest[0].startswith("-") and rest[0] != "--":
        word = rest.pop(0)
        if word in {"--help", "-h"}:
            return True
        if word in _OPTIONS and rest:
            rest.pop(0)
    return False
