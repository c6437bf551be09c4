"""Attribute names that carry what people wrote: prompts, completions, token ids.

They are counted and dropped where they arrive. `--keep-content` opts in and stamps run.json.
"""

from __future__ import annotations

EXACT: frozenset[str] = frozenset(
    {
        "gen_ai.prompt",
        "gen_ai.completion",
        "gen_ai.input.messages",
        "gen_ai.output.messages",
        "gen_ai.system_instructions",
        "gen_ai.tool.definitions",
        "gen_ai.tool.call.arguments",
        "gen_ai.tool.call.result",
        "gen_ai.retrieval.documents",
        "input.value",
        "output.value",
        "token_ids",
        "token_chunks",
        "prompt",
        "prompt_token_ids",
        "completion",
        "output_token_ids",
        "messages",
        "content",
    }
)
"""Whole names (OpenTelemetry GenAI, OpenInference, vLLM, LMCache)."""

PREFIXES: tuple[str, ...] = (
    "gen_ai.prompt.",
    "gen_ai.completion.",
    "gen_ai.input.messages.",
    "gen_ai.output.messages.",
    "llm.prompts",
    "llm.completions",
    "llm.input_messages",
    "llm.output_messages",
)
"""Beginnings of names (OpenLLMetry and OpenInference number their messages)."""

EVENTS: frozenset[str] = frozenset(
    {
        "gen_ai.content.prompt",
        "gen_ai.content.completion",
        "gen_ai.system.message",
        "gen_ai.user.message",
        "gen_ai.assistant.message",
        "gen_ai.tool.message",
        "gen_ai.choice",
        "gen_ai.client.inference.operation.details",
    }
)
"""Names of span events that are content as a whole."""


def is_content(attribute: str) -> bool:
    """Whether an attribute's value is something that a person or a model wrote."""
    return attribute in EXACT or attribute.startswith(PREFIXES)
