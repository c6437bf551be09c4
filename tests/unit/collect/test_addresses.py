"""Where a collector listens: this machine alone, or with a token, and nobody else at the same port."""

from __future__ import annotations

import socket
from typing import TYPE_CHECKING

import pytest
from kvtrace.collect.addresses import Address, address, bound, guarded, permitted, token
from kvtrace.errors import UsageError

if TYPE_CHECKING:
    from pathlib import Path


@pytest.mark.parametrize(
    ("text", "found"),
    [("127.0.0.1:4317", ("127.0.0.1", 4317)), ("[::1]:0", ("::1", 0)), ("0.0.0.0:80", ("0.0.0.0", 80))],
)
def test_an_address_is_a_host_and_a_port(text: str, found: tuple[str, int]) -> None:
    assert address(text, "--x") == found
    assert str(address(text, "--x")) == text


@pytest.mark.parametrize(
    "text", ["4317", "127.0.0.1", ":4317", "127.0.0.1:x", "127.0.0.1:65536", "no.such.host.:1"]
)
def test_anything_else_is_one_sentence(text: str) -> None:
    with pytest.raises(UsageError, match=r"--otlp-grpc .*(is no HOST:PORT|nobody knows)"):
        address(text, "--otlp-grpc")


@pytest.mark.parametrize("host", ["0.0.0.0", "192.0.2.1", "::", "10.0.0.1"])
def test_an_address_that_others_reach_needs_a_token(host: str) -> None:
    with pytest.raises(UsageError, match="--token-file"):
        guarded(Address(host, 4317), "--otlp-grpc", None)
    guarded(Address(host, 4317), "--otlp-grpc", "secret")


@pytest.mark.parametrize("host", ["127.0.0.1", "127.8.8.8", "::1"])
def test_this_machine_alone_needs_none(host: str) -> None:
    guarded(Address(host, 4317), "--otlp-grpc", None)


@pytest.mark.parametrize("kind", [socket.SO_REUSEADDR, socket.SO_REUSEPORT])
def test_a_port_is_never_shared(kind: int) -> None:
    with socket.socket() as other:
        other.setsockopt(socket.SOL_SOCKET, kind, 1)
        other.bind(("127.0.0.1", 0))
        other.listen()
        where = Address(*other.getsockname())
        with pytest.raises(UsageError, match="Address already in use"):
            bound(where, "--otlp-http")


def test_a_token_comes_from_a_file_else_from_the_environment(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.delenv("KVTRACE_COLLECT_TOKEN", raising=False)
    assert token(None) is None
    monkeypatch.setenv("KVTRACE_COLLECT_TOKEN", " ")
    assert token(None) is None
    monkeypatch.setenv("KVTRACE_COLLECT_TOKEN", "there")
    assert token(None) == "there"
    (tmp_path / "token").write_text("here\n")
    assert token(tmp_path / "token") == "here"


@pytest.mark.parametrize("content", ["", "\n", "two words", "gl\xfcck"])
def test_a_file_without_a_token_is_refused(tmp_path: Path, content: str) -> None:
    (tmp_path / "token").write_text(content)
    with pytest.raises(UsageError, match="--token-file"):
        token(tmp_path / "token")
    with pytest.raises(UsageError, match="cannot be read"):
        token(tmp_path / "missing")


@pytest.mark.parametrize(
    "shown", [None, "", "Bearer", "Bearer x", "Basic secret", "secret", "Bearer s\xe9cret"]
)
def test_only_the_token_opens(shown: str | None) -> None:
    assert not permitted(shown, "secret")
    assert permitted(shown, None)
    assert permitted("Bearer secret", "secret")
