"""What do some requests have in common that others have not? Only columns of the noun request.

A trait is named when at least 90% of these have it and at most 10% of the others, and when as many would have
it by chance, with all traits and bounds that were tried, less than once in a hundred (hypergeometric).
Who did not observe a trait counts against it: of these as without it, of the others as with it.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, NamedTuple

import numpy as np
import polars as pl

from kvtrace.analyses._text import visible
from kvtrace.diff.measuring import keys as keys_of

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence

    from kvtrace.run import Run

LEAST_OF_THESE, MOST_OF_OTHERS = 0.9, 0.1
CHANCE = 0.01
_BOUNDED = {
    "prompt_tokens": ("with prompts over {} tokens", "with prompts of at most {} tokens"),
    "output_tokens": ("with more than {} tokens put out", "with at most {} tokens put out"),
}
_NAMED = {"model": "of model {}", "engine": "of engine {}", "identity_id": "of identity {}"}


class _Trait(NamedTuple):
    """In words; how many of these have it, and of the others."""

    words: str
    these: int
    others: int


@dataclass(frozen=True)
class _Split:
    """A column's values: of these, of the others; null: not observed."""

    these: pl.Series
    others: pl.Series

    @property
    def unknown(self) -> int:
        """Others that may have any trait."""
        return self.others.null_count()

    @property
    def tried(self) -> int:
        """How many traits such values allow: a bound from either side, or each value."""
        return 2 * pl.concat([self.these, self.others]).n_unique()


def known(runs: Sequence[Run], keys: pl.Series) -> pl.DataFrame:
    """A row a key, in this order: what every run says of the request alike; else null."""
    told = pl.concat(_columns(run) for run in runs)
    names = [*_BOUNDED, *_NAMED]
    alike = told.group_by("key").agg(
        pl.when(pl.col(name).is_not_null().all() & (pl.col(name).n_unique() == 1)).then(pl.col(name).first())
        for name in names
    )
    return pl.DataFrame({"key": keys}).join(alike, on="key", how="left", maintain_order="left").select(names)


def common(traits: pl.DataFrame, these: pl.Series) -> str | None:
    """The trait that parts these requests from the others best, in words; null: none does."""
    from scipy.stats import hypergeom

    number, others = int(these.sum()), int((~these).sum())
    if not number or not others:
        return None
    splits = {
        name: _Split(traits[name].filter(these), traits[name].filter(~these)) for name in traits.columns
    }
    fitting = [
        trait
        for name, split in splits.items()
        for trait in (_bounds if name in _BOUNDED else _values)(name, split)
        if trait.these >= LEAST_OF_THESE * number and trait.others <= MOST_OF_OTHERS * others
    ]
    if not fitting:
        return None
    best = max(fitting, key=lambda trait: trait.these / number - trait.others / others)
    having, tried = best.these + best.others, sum(split.tried for split in splits.values())
    if hypergeom.sf(best.these - 1, number + others, having, number) * tried > CHANCE:
        return None
    whose = "all" if best.these == number else f"{best.these:,} of them"
    return (
        f"{whose} {best.words}, as {best.others:,} of the others" if best.others else f"{whose} {best.words}"
    )


def _columns(run: Run) -> pl.DataFrame:
    engines = run.meta.get("engines")
    told = engines.items() if isinstance(engines, dict) else ()
    models = {name: str(each["model"]) for name, each in told if isinstance(each, dict) and each.get("model")}
    rows = run.connection().sql(
        "SELECT request_id, prompt_tokens, output_tokens, engine, identity_id FROM request"
    ).pl()  # fmt: skip
    model = pl.col("engine").replace_strict(models, default=None, return_dtype=pl.String)
    return rows.with_columns(model=model).join(keys_of(run).drop_nulls("key"), on="request_id", how="inner")


def _values(name: str, split: _Split) -> Iterator[_Trait]:
    """Each value that these have."""
    others = dict(split.others.drop_nulls().value_counts().iter_rows())
    for value, number in split.these.drop_nulls().value_counts(sort=True).iter_rows():
        yield _Trait(_NAMED[name].format(visible(value)), number, others.get(value, 0) + split.unknown)


def _bounds(name: str, split: _Split) -> Iterator[_Trait]:
    """The bound between two values that parts best, from above and from below."""
    these, others = (np.sort(side.drop_nulls().to_numpy()) for side in (split.these, split.others))
    values = np.unique(np.concatenate([these, others]))
    if values.size < 2:
        return
    low = [np.searchsorted(side, values[:-1], side="right") for side in (these, others)]
    high = [these.size - low[0], others.size - low[1]]
    for (of_these, of_others), words in zip((high, low), _BOUNDED[name], strict=True):
        best = int(np.argmax(of_these / split.these.len() - of_others / split.others.len()))
        bound = f"{_round(int(values[best]), int(values[best + 1])):,}"
        yield _Trait(words.format(bound), int(of_these[best]), int(of_others[best]) + split.unknown)


def _round(low: int, high: int) -> int:
    """The roundest number from low on and below high; whole numbers throughout, so that it parts the two."""
    step = 10 ** (len(str(max(high, 1))) - 1)
    while (rounded := -(-low // step) * step) >= high:
        step //= 10
    return rounded
