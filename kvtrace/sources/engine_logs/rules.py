"""Which messages mean something: found by their first word, then by their whole form."""

from __future__ import annotations

import re
from dataclasses import dataclass
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Mapping

    from kvtrace.sources.engine_logs.forms import Record
    from kvtrace.sources.engine_logs.log import Log


@dataclass(frozen=True, slots=True)
class Rule:
    """A message of one product: its form, and what to do with a record that has it.

    product: vllm or lmcache
    start: what the message begins with; the first word of it is what finds the rule
    form: all of it, from its beginning
    mean: adds rows to the log; `time_ns` is the record's
    """

    product: str
    start: str
    form: re.Pattern[str]
    mean: Callable[[Log, Record, int, re.Match[str]], None]


def rule(
    product: str, form: str, mean: Callable[[Log, Record, int, re.Match[str]], None], *, start: str = ""
) -> Rule:
    """A rule; without a start its form begins with plain words."""
    return Rule(product, start or form, re.compile(form, re.ASCII | re.DOTALL), mean)


def by_first_word(rules: Iterable[Rule]) -> Mapping[tuple[str, str], list[Rule]]:
    """(product, first word) -> the rules that may fit, in their order."""
    found: dict[tuple[str, str], list[Rule]] = {}
    for each in rules:
        found.setdefault((each.product, first_word(each.start)), []).append(each)
    return found


def first_word(message: str) -> str:
    """What finds a rule: `Stored`, `L1`, `[req_id=`."""
    word = message[:64].split(" ", 1)[0]
    return word[: word.index("=") + 1] if word.startswith("[") and "=" in word else word
