"""--kv-events: tcp://HOST:PORT or ipc://PATH, and what else is known of the publisher, after commas.

tcp://127.0.0.1:5557                                    connect to a publisher that binds
tcp://127.0.0.1:5557,replay=tcp://127.0.0.1:5558        and ask there for what was missed
tcp://127.0.0.1:5557,bind                               wait for publishers that connect
file:///DYN_FILE_KV                                     every channel that Dynamo lists in its folder
"""

from __future__ import annotations

import os
from dataclasses import dataclass
from pathlib import Path
from urllib.parse import unquote

from kvtrace.collect import addresses
from kvtrace.errors import UsageError

OPTION = "--kv-events"
_TCP, _IPC, _FILE = "tcp://", "ipc://", "file://"
_LONGEST_IPC = 107
"""Bytes of a Unix socket's path (sun_path)."""


@dataclass(frozen=True, slots=True)
class Subscription:
    """Where to subscribe: `url` as ZeroMQ takes it, or the folder in which Dynamo lists its channels."""

    url: str
    replay: str | None = None
    bind: bool = False
    folder: Path | None = None


def subscription(text: str) -> Subscription:
    """What one --kv-events says.

    Raises:
        UsageError: no URL, an option that does not exist, or an address open to others to bind at.
    """
    url, *options = text.split(",")
    replay: str | None = None
    bind = False
    for option in options:
        name, equals, value = option.partition("=")
        if name == "replay" and equals and replay is None:
            replay = _endpoint(value, text)
        elif option == "bind" and not bind:
            bind = True
        else:
            raise UsageError(f"{OPTION} {text}: after a comma come replay=URL or bind, each once.")
    if url.startswith(_FILE):
        if options:
            raise UsageError(f"{OPTION} {text}: a folder of channels takes no options.")
        return Subscription(url, folder=_folder(url))
    return Subscription(_endpoint(url, text, bind=bind), replay, bind)


def _endpoint(url: str, text: str, *, bind: bool = False) -> str:
    if url.startswith(_IPC) and len(url) > len(_IPC):
        if len(os.fsencode(url.removeprefix(_IPC))) > _LONGEST_IPC:
            raise UsageError(f"{OPTION} {text}: the path is too long for a socket; choose a shorter one.")
        return url
    if not url.startswith(_TCP):
        raise UsageError(f"{OPTION} {text}: is no tcp://HOST:PORT, ipc://PATH or file:///FOLDER.")
    where = addresses.address(url.removeprefix(_TCP), OPTION)
    if bind and not where.is_here:
        raise UsageError(
            f"{OPTION} {text}: other machines reach this address, ZeroMQ asks for no token; bind 127.0.0.1."
        )
    if not bind and where.port == 0:
        raise UsageError(f"{OPTION} {text}: name the port at which events are published.")
    return f"{_TCP}{where}"


def _folder(url: str) -> Path:
    path = Path(unquote(url.removeprefix(_FILE)))
    if not path.is_absolute():
        raise UsageError(f"{OPTION} {url}: name the whole path, as in file:///tmp/dynamo.")
    return path
