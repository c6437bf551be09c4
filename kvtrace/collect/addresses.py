"""HOST:PORT to listen at: on this machine alone, unless a token is asked of whoever sends.

An address is bound by one process: nobody shares a port with us (SO_REUSEPORT), and a port that is taken is
said before anything starts.
"""

from __future__ import annotations

import hmac
import ipaddress
import os
import socket
from typing import TYPE_CHECKING, NamedTuple

from kvtrace.errors import UsageError

if TYPE_CHECKING:
    from pathlib import Path

TOKEN_VARIABLE = "KVTRACE_COLLECT_TOKEN"  # noqa: S105 - the variable's name
_SCHEME = "bearer"


class Address(NamedTuple):
    """A numeric host and a port; 0 is any free one."""

    host: str
    port: int

    def __str__(self) -> str:
        """HOST:PORT, an IPv6 host in brackets."""
        return f"[{self.host}]:{self.port}" if ":" in self.host else f"{self.host}:{self.port}"

    @property
    def is_here(self) -> bool:
        """Whether only this machine reaches it."""
        return ipaddress.ip_address(self.host.partition("%")[0]).is_loopback


def address(text: str, option: str) -> Address:
    """HOST:PORT as a person writes it; a name is looked up.

    Raises:
        UsageError: it is none, or nobody knows the name.
    """
    host, colon, port = text.rpartition(":")
    host = host.removeprefix("[").removesuffix("]")
    if not colon or host in ("", "*") or not port.isdecimal() or int(port) > 65535:
        raise UsageError(f"{option} {text}: is no HOST:PORT; write it as 127.0.0.1:4317.")
    try:
        found = socket.getaddrinfo(host, int(port), type=socket.SOCK_STREAM)
    except (OSError, UnicodeError) as error:
        raise UsageError(
            f"{option} {text}: nobody knows this host; name an address of this machine."
        ) from error
    return Address(str(found[0][4][0]), int(port))


def token(file: Path | None) -> str | None:
    """The token of a file, else of KVTRACE_COLLECT_TOKEN; None without either.

    Raises:
        UsageError: the file cannot be read, or holds no token.
    """
    if file is None:
        return os.environ.get(TOKEN_VARIABLE, "").strip() or None
    try:
        found = file.read_text(encoding="ascii").strip()
    except (OSError, UnicodeDecodeError) as error:
        reason = getattr(error, "strerror", None) or "it is no ASCII text"
        raise UsageError(f"--token-file {file}: cannot be read ({reason}); write a token into it.") from error
    if not found or not found.isprintable() or " " in found:
        raise UsageError(f"--token-file {file}: holds no token; write one line without blanks into it.")
    return found


def guarded(where: Address, option: str, secret: str | None) -> None:
    """Refuse to listen to other machines without a token.

    Raises:
        UsageError: that is what was asked.
    """
    if secret is None and not where.is_here:
        raise UsageError(
            f"{option} {where}: other machines reach this address; name a --token-file (or set "
            f"{TOKEN_VARIABLE}) that senders must know, or listen at 127.0.0.1."
        )


def bound(where: Address, option: str) -> socket.socket:
    """A listening socket that is ours alone.

    Raises:
        UsageError: the address is taken, or none of this machine.
    """
    family = socket.AF_INET6 if ":" in where.host else socket.AF_INET
    listening = socket.socket(family, socket.SOCK_STREAM)
    try:
        listening.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)  # not REUSEPORT: a last run's remains
        listening.bind(tuple(where))
        listening.listen(128)
    except OSError as error:
        listening.close()
        raise taken(where, option, error.strerror or str(error)) from error
    return listening


def taken(where: Address, option: str, reason: str) -> UsageError:
    """What is said of an address that cannot be had."""
    return UsageError(
        f"{option} {where}: cannot listen there ({reason}); choose another port, or 0 for a free one."
    )


def permitted(header: str | None, secret: str | None) -> bool:
    """Whether an `authorization` header shows the token; compared in constant time."""
    if secret is None:
        return True
    scheme, _, shown = (header or "").partition(" ")
    return scheme.lower() == _SCHEME and hmac.compare_digest(shown.strip().encode(), secret.encode())
