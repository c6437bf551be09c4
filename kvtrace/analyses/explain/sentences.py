"""Six sentences about one request, each with the rows it stands on."""

from __future__ import annotations

from datetime import UTC, datetime
from typing import TYPE_CHECKING

from kvtrace.analyses._text import (
    CLASS_WORDS,
    NOT_OBSERVED,
    bounded,
    count,
    duration,
    many,
    share,
    visible,
)
from kvtrace.analyses.explain.blame import whom
from kvtrace.analyses.explain.offer import offer
from kvtrace.analyses.explain.targets import targets
from kvtrace.analyses.explain.unseen import unseen

if TYPE_CHECKING:
    from collections.abc import Sequence

    from kvtrace.analyses.explain.gathering import Row, Story

Said = tuple[str, str]
"""A sentence and its evidence."""


def sentences(story: Story) -> list[Said]:
    """What it was, where time and tokens went, whom it waited for, what the cache gave, what is unseen."""
    return [what(story), where(story), tokens(story), whom(story), offer(story), unseen(story)]


def spans(rows: Sequence[Row], most: int = 4) -> str:
    """Evidence: operations and span ids, the usual sixteen hex digits."""
    named = [
        f"{row['op']} {NOT_OBSERVED if row['span_id'] is None else format(row['span_id'], '016x')}"
        for row in rows[:most]
    ]
    more = len(rows) - most
    return ", ".join(named) + (f" and {more:,} more" if more > 0 else "")


def what(story: Story) -> Said:
    """What the request was and how long it took."""
    row = story.request
    names = ", ".join(
        f"{alias['kind']} id {visible(alias['alias'])}"
        for alias in story.aliases
        if alias["alias"] != row["request_id"]
    )
    when = f"arrived {_moment(row['start_ns'])}" if row["start_ns"] is not None else "arrived when nobody saw"
    prompt = "a prompt of unknown length"
    if row["prompt_tokens"] is not None:
        prompt = f"a prompt of {many(row['prompt_tokens'], 'token')}"
    first = "its first token was not observed"
    if row["ttft_ns"] is not None:
        first = f"its first token came after {duration(row['ttft_ns'])}"
    if row["end_ns"] is None:
        end = "it has no end, as far as was recorded"
    else:
        put_out = "an unknown number of tokens"
        if row["output_tokens"] is not None:
            put_out = many(row["output_tokens"], "token")
        end = f"it ended after {duration(row['duration_ns'])} with {put_out} put out"
    status = visible(row["status"]) if row["status"] else NOT_OBSERVED
    said = (
        f"{visible(row['request_id'])}{f' ({names})' if names else ''} {when} on {visible(row['engine'])} "
        f"with {prompt}; {first}, and {end} (status {status})."
    )
    more, stands_on = targets(story)
    return f"{said}{more}", f"request {row['request_id']}{stands_on}"


def _moment(ns: int) -> str:
    """A time of day with milliseconds."""
    moment = datetime.fromtimestamp(ns // 1_000_000_000, tz=UTC)
    return f"at {moment:%Y-%m-%d %H:%M:%S}.{ns // 1_000_000 % 1000:03d} UTC"


def where(story: Story) -> Said:
    """The two largest classes of its partition, to the first token and to the end."""
    told = [
        part
        for window, words in (("ttft", "first token"), ("e2e", "end"))
        if (part := _largest(story.exposed(window), words))
    ]
    if not told:
        return "Where its time went cannot be told: its window is empty.", "exposure"
    text = "; ".join(told)
    note = " (upper bounds: nobody saw when it computed)" if story.bound == "upper" else ""
    return f"{text[0].upper()}{text[1:]}{note}.", "exposure, windows ttft and e2e"


def _largest(rows: list[Row], words: str) -> str | None:
    whole = sum(row["exposed_ns"] or 0 for row in rows)
    largest = [row for row in rows if row["exposed_ns"]][:2]
    if not largest:
        return None
    parts = [
        f"{bounded(duration(row['exposed_ns']), row['bound'])} "
        f"({bounded(share(row['exposed_ns'], whole), row['bound'])}) went into "
        f"“{CLASS_WORDS.get(row['class'], row['class'])}”"
        for row in largest
    ]
    return f"of the {duration(whole)} to its {words}, {' and '.join(parts)}"


def tokens(story: Story) -> Said:
    """Where its prompt tokens came from; what nobody saw reads so."""
    row = story.verdict
    prompt = story.request["prompt_tokens"]
    whole = "Of its prompt tokens" if prompt is None else f"Of its {many(prompt, 'prompt token')}"
    later = f", computed again later {count(row['later'])}" if row["later"] else ""
    said = (
        f"{whole}: in the GPU before {count(row['gpu_hit'])}, found by the cache {count(row['found'])}, "
        f"selected to be loaded {count(row['selected'])}, loaded {count(row['loaded'])}, computed "
        f"{count(row['computed'])}{later}."
    )
    return said, spans([*story.of("lookup"), *story.of("load")]) or "request"
