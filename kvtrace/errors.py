"""Everything kvtrace raises on purpose.

    KvtraceError                 one sentence: what, where, and the way out
    ├── UsageError               the caller asked for something that does not exist
    ├── InputError               a file could not be read as what it claims to be
    │   └── UnknownFormatError   no decoder recognises it
    ├── RunError                 a run directory is missing, half-written, or of another schema version
    │   └── RunExistsError       refusing to write over what is there
    ├── QueryError               SQL that is not one SELECT over a run, or that DuckDB refuses
    └── NotComparableError       runs that differ in what must be the same

The command line turns each of them into one line on stderr and exit code 2; the last into exit code 3.
"""

from __future__ import annotations


class KvtraceError(Exception):
    """Base of every error that kvtrace raises on purpose; its text is one sentence."""


class UsageError(KvtraceError):
    """The caller asked for a question, panel, option or noun that does not exist."""


class InputError(KvtraceError):
    """A file could not be read as what it claims to be."""


class UnknownFormatError(InputError):
    """No decoder recognises the file."""


class RunError(KvtraceError):
    """A run directory is missing, half-written, or of another schema version."""


class RunExistsError(RunError):
    """The output directory exists; nothing is ever written over."""


class QueryError(KvtraceError):
    """SQL that is not exactly one SELECT over a run, or that DuckDB refuses."""


class NotComparableError(KvtraceError):
    """Runs that are to be compared differ in what must be the same; the sentence names the factor."""
