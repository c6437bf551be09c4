"""The command line: one file a command, named as the command; the only place that prints.

    _app.py      finds the commands by listing this folder, and registers them unimported
    _docs.py     what docstrings say: prose, examples, columns
    _rows.py     rows out: --format table|csv|json|parquet and -o
    _table.py    rows for a person at a terminal
    _text.py     text that comes from outside, made harmless

`main` alone catches errors: each becomes one sentence on stderr and exit code 2 (3: runs that cannot be
compared).
"""

from __future__ import annotations

import io
import os
import sys

from kvtrace import __version__
from kvtrace.cli._text import sentence
from kvtrace.errors import KvtraceError, NotComparableError, UsageError

USAGE = 2
NOT_COMPARABLE = 3
INTERRUPTED = 130
BROKEN_PIPE = 141


def main(argv: list[str] | None = None) -> int:
    """Run one command and return its exit code; argv without the program's name."""
    words = sys.argv[1:] if argv is None else argv
    for stream in (sys.stdout, sys.stderr):
        if isinstance(stream, io.TextIOWrapper):  # a terminal without UTF-8 gets escapes, not an error
            stream.reconfigure(errors="backslashreplace")
    if words == ["--version"]:  # 150 ms of a parsing library less
        print(__version__)
        return 0
    try:
        code = _dispatch(words)
        sys.stdout.flush()
    except NotComparableError as error:
        _refuse(str(error))
        return NOT_COMPARABLE
    except KvtraceError as error:
        return _refuse(str(error))
    except KeyboardInterrupt:
        return INTERRUPTED
    except BrokenPipeError:
        _forget_stdout()
        return BROKEN_PIPE
    except Exception as error:  # noqa: BLE001 - the one place that may: a user never sees a traceback
        if os.environ.get("KVTRACE_DEBUG") == "1":
            import traceback  # the first line of everything else need not wait for it

            traceback.print_exc()
        return _refuse(
            f"{type(error).__name__}: {error} - this is a bug in kvtrace {__version__}; please report it "
            "with the command and what it prints under KVTRACE_DEBUG=1."
        )
    return code


def _dispatch(words: list[str]) -> int:
    """Parse and run; what cannot be parsed is a sentence as well."""
    if words[:1] == ["run"]:  # an engine's environment may have no parsing library, and its command waits
        from kvtrace.cli.run import run_words, wants_help

        if not wants_help(words[1:]):
            return run_words(words[1:])
    try:
        from cyclopts import CycloptsError  # `import kvtrace.cli` stays light
    except ImportError as error:  # installed without its libraries, as into an engine's environment
        raise UsageError(
            f"{words[0] if words else 'kvtrace'}: kvtrace is installed here without what its commands need "
            f"({error}); only kvtrace run works. pip install kvtrace where you analyse."
        ) from error
    from kvtrace.cli._app import command_line

    _check_command(words)
    try:
        result = command_line()(words, exit_on_error=False, print_error=False, result_action="return_value")
    except CycloptsError as error:
        return _refuse(f"{error} See kvtrace --help.")
    return result if isinstance(result, int) else 0


def _check_command(words: list[str]) -> None:
    """Name the nearest command before the parser imports all of them to do the same."""
    from kvtrace.cli._docs import commands

    if not words or words[0].startswith("-") or words[0] in commands():
        return
    import difflib

    near = difflib.get_close_matches(words[0], commands(), n=1)
    hint = f"Did you mean {near[0]}?" if near else f"There are {', '.join(commands())}."
    raise UsageError(f"{words[0]}: no such command. {hint}")


def _refuse(message: str) -> int:
    print(f"kvtrace: {sentence(message)}", file=sys.stderr)
    return USAGE


def _forget_stdout() -> None:
    """The reader of our pipe is gone (`| head`): nothing may be flushed into it at exit either."""
    try:
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
    except (OSError, ValueError):
        sys.stdout = open(os.devnull, "w", encoding="utf-8")  # noqa: SIM115, PTH123 - lives as long as the process
