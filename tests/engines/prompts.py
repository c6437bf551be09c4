"""Synthetic prompts: random words, one token each, the same words for the same number."""

from __future__ import annotations

import random
from dataclasses import dataclass

from tests.engines import model

TOKENS = 1500


@dataclass(frozen=True, kw_only=True)
class Prompt:
    """Prompt `number`; its first `shared_tokens` words are those of prompt `shares`."""

    number: int
    tokens: int = TOKENS
    shares: int = 0
    shared_tokens: int = 0
    answer_tokens: int | None = None
    """How long the answer is; the usual length where it is not said."""

    def text(self) -> str:
        """The words, separated by blanks."""
        own = _words(self.number, self.tokens)
        return " ".join(_words(self.shares, TOKENS)[: self.shared_tokens] + own[self.shared_tokens :])


def plain(*numbers: int) -> list[Prompt]:
    """Prompts of the usual length."""
    return [Prompt(number=number) for number in numbers]


def _words(number: int, count: int) -> list[str]:
    source = random.Random(number)
    return [model.word(source.randrange(len(model.SPECIAL), model.VOCABULARY)) for _ in range(count)]
