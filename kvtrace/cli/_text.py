"""Text that comes from outside (request ids, file names), made harmless for a terminal and a CI log."""

from __future__ import annotations

_WORKFLOW_COMMANDS = ("::", "##[")


def escaped(text: str) -> str:
    r"""The text with control, bidirectional and other invisible characters written as escapes (`\n`)."""
    return text if text.isprintable() else "".join(_shown(character) for character in text)


def safe(text: str) -> str:
    r"""Escaped, and with a backslash before what a CI system would read as a command (`::set-env`).

    Such systems look at the first words of a line, whatever blanks stand before them.
    """
    shown = escaped(text)
    return f"\\{shown}" if shown.lstrip().startswith(_WORKFLOW_COMMANDS) else shown


def sentence(message: str) -> str:
    """One line for stderr, whatever the message held."""
    return safe(" ".join(message.split()))


def _shown(character: str) -> str:
    return character if character.isprintable() else repr(character)[1:-1]
