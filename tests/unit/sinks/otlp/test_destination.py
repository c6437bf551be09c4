from __future__ import annotations

import pytest
from kvtrace.errors import UsageError
from kvtrace.sinks.otlp import destination
from kvtrace.sinks.otlp.delivery import Delivery
from kvtrace.sinks.otlp.destination import check, protocol_of, shown
from tests.unit.sinks.otlp.drawn import drained
from tests.unit.sinks.otlp.receivers import http

VARIABLES = ("OTEL_EXPORTER_OTLP_PROTOCOL", "OTEL_EXPORTER_OTLP_TRACES_PROTOCOL")


@pytest.fixture(autouse=True)
def _no_variables(monkeypatch: pytest.MonkeyPatch) -> None:
    for name in VARIABLES:
        monkeypatch.delenv(name, raising=False)


@pytest.mark.parametrize(
    ("url", "protocol"),
    [
        ("http://127.0.0.1:4317", "grpc"),
        ("https://collector:4317/", "grpc"),
        ("collector:9999", "grpc"),
        ("http://127.0.0.1:4318", "http/protobuf"),
        ("http://127.0.0.1:4317/v1/traces", "http/protobuf"),
        ("https://otlp.example.com", "http/protobuf"),
    ],
)
def test_the_url_shows_the_protocol(url: str, protocol: str) -> None:
    assert protocol_of(url) == protocol


@pytest.mark.parametrize("variable", VARIABLES)
def test_a_variable_names_the_protocol(variable: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv(variable, "grpc")
    assert protocol_of("http://127.0.0.1:4318") == "grpc"
    monkeypatch.setenv(variable, "http/json")
    with pytest.raises(UsageError, match="http/json"):
        protocol_of("http://127.0.0.1:4318")


@pytest.mark.parametrize("url", ["", "ftp://x:1", "http://", "http://x:port"])
def test_what_is_no_url_is_refused(url: str) -> None:
    with pytest.raises(UsageError):
        check(url)


def test_a_missing_exporter_is_refused_with_what_to_install(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(destination, "find_spec", lambda _name: None)
    with pytest.raises(UsageError, match=r"kvtrace\[otlp\]"):
        check("http://127.0.0.1:4317")


def test_a_base_url_gets_the_path_of_traces_and_headers_come_from_the_variable(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setenv("OTEL_EXPORTER_OTLP_HEADERS", "x-tenant=blue")
    monkeypatch.setenv("OTEL_EXPORTER_OTLP_COMPRESSION", "gzip")
    with http() as received:
        sending = Delivery(received.url.removesuffix("/v1/traces"))
        sending.offer(drained())
        sending.close()
    assert received.paths == ["/v1/traces"]
    assert received.headers[0]["x-tenant"] == "blue"
    assert received.headers[0]["Content-Encoding"] == "gzip"


def test_names_and_passwords_of_a_url_are_not_shown() -> None:
    assert shown("https://user:secret@host:4318/v1/traces?key=1") == "https://host:4318/v1/traces"
    assert shown("user:secret@host:4317") == "host:4317"
