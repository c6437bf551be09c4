"""The parser: every command of this folder, registered by import path, so that help imports none of them."""

from __future__ import annotations

from importlib.util import find_spec

from cyclopts import App

from kvtrace import __version__
from kvtrace.analyses import questions, takes
from kvtrace.cli._docs import Doc, commands, parse

_START = """Start with:
    kvtrace run --out run -- python -m vllm.entrypoints.openai.api_server --model MODEL
or beside engines that export by themselves:
    kvtrace collect --out run --otlp-grpc 127.0.0.1:4317 --metrics http://127.0.0.1:8000
or with files that they wrote:
    kvtrace import otlp.binpb lookup_hashes.jsonl --out run
    kvtrace info run
    kvtrace report run"""


def command_line() -> App:
    """The whole command line."""
    app = App(
        name="kvtrace",
        help="Trace analysis for tiered KV caches in LLM serving.",
        help_epilogue=_START,
        help_format="plaintext",
        version=__version__,
        suppress_keyboard_interrupt=False,
    )
    for name, docstring in commands().items():
        doc = parse(docstring)
        if name == "analyze":
            app.command(_analyze(doc))
            continue
        stem = f"{name}_" if find_spec(f"kvtrace.cli.{name}_") else name
        app.command(f"kvtrace.cli.{stem}:{stem}", name=name, help=doc.prose, help_epilogue=_example(doc))
    return app


def _analyze(doc: Doc) -> App:
    """A command a question; its options are imported only when it is the one that is asked."""
    app = App(name="analyze", help=doc.prose, help_epilogue=_example(doc), help_format="plaintext")
    for name, summary in questions().items():
        app.command(
            f"kvtrace.cli.analyze:ask_{name}",
            name=name,
            help=f"{summary}\n\nThe whole definition and every column: kvtrace describe {name}.",
            help_epilogue=f"Example:\n    kvtrace analyze {name} {' '.join(takes(name).names)} --format csv",
        )
    return app


def _example(doc: Doc) -> str:
    lines = doc.sections["Example"].split("\n")
    return "Example:\n" + "\n".join(f"    {line}" for line in lines)
