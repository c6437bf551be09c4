"""A run beside the raw files that it was made of, and what both are asked."""

from __future__ import annotations

import json
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from pathlib import Path

    from kvtrace.run import Run

SECOND = 1_000_000_000
CHUNK_TOKENS = 256
KV_BYTES_PER_TOKEN = 2048


TOKENS = """
    WITH served AS (
        SELECT request_id, computed_before, scheduled_tokens, prompt_tokens
        FROM member JOIN request USING (request_id)
        WHERE computed_before < prompt_tokens
    )
    SELECT
        alias AS client_id, prompt_tokens, gpu_hit_tokens, selected_tokens, reported_cached_tokens,
        min(served.computed_before) - any_value(request.gpu_hit_tokens) AS loaded_tokens,
        sum(least(scheduled_tokens, prompt_tokens - computed_before))::BIGINT AS computed_tokens
    FROM request JOIN served USING (request_id, prompt_tokens) JOIN alias USING (request_id)
    WHERE alias.kind = 'client'
    GROUP BY ALL
"""
"""Where the prompt tokens of every request came from, of one admission each."""


@dataclass(frozen=True)
class Recording:
    """A run and the raw files that it was made of."""

    run: Run
    raw: Path

    def rows(self, query: str) -> list[tuple[Any, ...]]:
        return self.run.connection().sql(query).fetchall()

    def responses(self) -> dict[str, dict[str, Any]]:
        """What the client saw, by its own request id."""
        lines = (self.raw / "responses.jsonl").read_text().splitlines()
        return {found["request_id"]: found for found in map(json.loads, lines)}

    def marks_ns(self) -> dict[str, int]:
        found: dict[str, int] = json.loads((self.raw / "recording.json").read_text())["marks_ns"]
        return found

    def by_client(self) -> dict[str, dict[str, Any]]:
        """The noun request by the client's id."""
        frame = self.run.connection().sql(
            "SELECT alias, request.* FROM request JOIN alias USING (request_id) WHERE kind = 'client'"
        )
        return {row["alias"]: row for row in frame.pl().iter_rows(named=True)}
