"""Where spans go: an exporter of OpenTelemetry's own, by the URL and the OTEL_* variables.

The protocol is what OTEL_EXPORTER_OTLP_TRACES_PROTOCOL or OTEL_EXPORTER_OTLP_PROTOCOL says, else what the URL
shows: a path or port 4318 is HTTP, port 4317 or a bare HOST:PORT is gRPC, anything else HTTP (OpenTelemetry's
default). Headers, timeout, compression and certificates are read by the exporters from their own variables.
"""

from __future__ import annotations

import os
from importlib.util import find_spec
from typing import TYPE_CHECKING
from urllib.parse import urlsplit, urlunsplit

from kvtrace.errors import UsageError

if TYPE_CHECKING:
    from typing import Literal
    from urllib.parse import SplitResult

    from opentelemetry.sdk.trace.export import SpanExporter

    Protocol = Literal["grpc", "http/protobuf"]

_GRPC_PORT = 4317
_PROTOCOLS = ("grpc", "http/protobuf")
_VARIABLES = ("OTEL_EXPORTER_OTLP_TRACES_PROTOCOL", "OTEL_EXPORTER_OTLP_PROTOCOL")
_PACKAGES = {
    "grpc": "opentelemetry.exporter.otlp.proto.grpc",
    "http/protobuf": "opentelemetry.exporter.otlp.proto.http",
}
_TRACES_PATH = "/v1/traces"


def check(url: str) -> None:
    """Refuse, before any command starts, what we could not send to.

    Raises:
        UsageError: no URL, a protocol that we cannot speak, or the exporter is not installed.
    """
    protocol = protocol_of(url)
    try:
        installed = find_spec(_PACKAGES[protocol]) is not None
    except ModuleNotFoundError:
        installed = False
    if not installed:
        raise UsageError(f"--otlp {shown(url)}: needs OpenTelemetry's exporter; pip install 'kvtrace[otlp]'.")


def _split(url: str) -> SplitResult:
    try:
        parts = urlsplit(url if "://" in url else f"grpc://{url}")
        port = parts.port
    except ValueError as error:
        raise UsageError(f"--otlp {url}: is no URL ({error}).") from error
    if parts.scheme not in {"http", "https", "grpc"} or not parts.hostname:
        raise UsageError(
            f"--otlp {shown(url)}: is no http:// or https:// URL; write it as http://127.0.0.1:4317."
        )
    return (
        parts
        if port is not None or parts.scheme != "grpc"
        else parts._replace(netloc=f"{parts.netloc}:{_GRPC_PORT}")
    )


def protocol_of(url: str) -> Protocol:
    """GRPC or HTTP.

    Raises:
        UsageError: no URL, or a variable names a protocol that we cannot speak.
    """
    parts = _split(url)
    for variable in _VARIABLES:
        said = os.environ.get(variable, "").strip()
        if said and said not in _PROTOCOLS:
            raise UsageError(f"{variable}={said}: not a protocol of ours; there are {', '.join(_PROTOCOLS)}.")
        if said:
            return "grpc" if said == "grpc" else "http/protobuf"
    if parts.scheme == "grpc":
        return "grpc"
    return "grpc" if parts.port == _GRPC_PORT and parts.path in {"", "/"} else "http/protobuf"


def exporter(url: str) -> SpanExporter:
    """The exporter of the URL; it connects when it first exports."""
    parts = _split(url)
    if protocol_of(url) == "grpc":
        from opentelemetry.exporter.otlp.proto.grpc.trace_exporter import OTLPSpanExporter as Grpc

        secure = parts.scheme == "https"
        return Grpc(endpoint=f"{'https' if secure else 'http'}://{parts.netloc}", insecure=not secure)
    from opentelemetry.exporter.otlp.proto.http.trace_exporter import OTLPSpanExporter as Http

    path = parts.path.rstrip("/") or _TRACES_PATH
    scheme = "http" if parts.scheme == "grpc" else parts.scheme
    return Http(endpoint=urlunsplit((scheme, parts.netloc, path, parts.query, "")))


def shown(url: str) -> str:
    """The URL without a user's name, password or query: it goes to a terminal and into the run."""
    parts = urlsplit(url if "://" in url else f"grpc://{url}")
    host = parts.netloc.rpartition("@")[2]
    return f"{host}{parts.path}" if "://" not in url else f"{parts.scheme}://{host}{parts.path}"
