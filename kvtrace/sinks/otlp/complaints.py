"""What OpenTelemetry's exporters log when they fail: a reason, not lines over an engine's output."""

from __future__ import annotations

import logging

_LOGGER = "opentelemetry"
_LONGEST = 200


class Complaints(logging.Handler):
    """Keeps the last warning of OpenTelemetry's libraries; from now on they write nothing to the terminal."""

    def __init__(self) -> None:
        super().__init__(logging.WARNING)
        self.last: str | None = None
        logger = logging.getLogger(_LOGGER)
        for other in [handler for handler in logger.handlers if isinstance(handler, Complaints)]:
            logger.removeHandler(other)
        logger.addHandler(self)
        logger.propagate = False

    def emit(self, record: logging.LogRecord) -> None:
        """Keep the message, shortened."""
        self.last = " ".join(record.getMessage().split())[:_LONGEST]
