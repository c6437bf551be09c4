"""kvtrace model: what a model's cache takes, from its configuration alone."""

from __future__ import annotations

from dataclasses import asdict
from pathlib import Path  # noqa: TC003 - the parser reads annotations
from typing import TYPE_CHECKING, Annotated, Any, Literal

import polars as pl
from cyclopts import Parameter

from kvtrace.cli._rows import FormatOption, OutputOption, write
from kvtrace.errors import UsageError
from kvtrace.geometry import Placement, capacity, groups, read_model

if TYPE_CHECKING:
    from kvtrace.geometry import Capacity, Model

_WHOLE = ("group", "span_tokens")
"""What only a group has."""


def model(
    config: Path,
    /,
    *,
    tp: Annotated[int, Parameter(help="Ranks that share each layer.")] = 1,
    pp: Annotated[int, Parameter(help="Pipeline stages that share the layers.")] = 1,
    block_size: Annotated[int, Parameter(help="Tokens of a block.")] = 16,
    dtype: Annotated[
        str, Parameter(help="How the cache stores a number; auto: as the configuration says.")
    ] = "auto",
    tokens: Annotated[
        int | None, Parameter(help="Length of a request; default: max_position_embeddings.")
    ] = None,
    by: Annotated[
        Literal["group"] | None, Parameter(help="group: a row for each kind of layer and size.")
    ] = None,
    form: FormatOption = None,
    output: OutputOption = None,
) -> None:
    """Say how many bytes a token, a block, a sequence and a request take in a model's KV cache.

    From a Hugging Face config.json: a sum over its layers by what each keeps. It is what the model's state
    takes, before an engine pads pages to equal sizes. What the configuration does not say, or what is not
    known here, is an error that names the field.

    Columns:
        model, dtype: `model_type`, and how the cache stores a number
        tp, pp, block_size, tokens: what the figures are for
        group: what the layers keep (with --by group): full, window, chunked, latent, indexer, shared, or
            the kind of recurrent state
        span_tokens: how many tokens back these layers keep them; null is all (with --by group)
        bytes_per_token: one logical copy of what still grows at this many tokens
        bytes_per_token_per_rank: of it what the fullest rank holds, replicas included
        bytes_per_token_all_ranks: of it what all ranks hold together
        bytes_per_block: one logical copy of a block in every layer that keeps tokens
        bytes_per_block_per_rank: of it what the fullest rank holds
        bytes_per_sequence: one logical copy of what a request holds besides, growing no more: states, and
            windows and chunks that are full
        bytes_per_request: the most that a request of this many tokens holds, in whole blocks, one logical
            copy
        layers: hidden layers; of a group those that keep it

    Example:
        kvtrace model config.json --tp 8 --tokens 32768
    """
    described = read_model(config, dtype=dtype)
    placement = Placement(tp, pp)
    length = tokens if tokens is not None else _length(described, config)
    rows = (
        groups(described, placement, block_size=block_size, tokens=length)
        if by == "group"
        else (capacity(described, placement, block_size=block_size, tokens=length),)
    )
    asked = {
        "model": described.model_type, "dtype": described.dtype, "tp": tp, "pp": pp,
        "block_size": block_size, "tokens": length,
    }  # fmt: skip
    frame = _frame(asked, rows, whole=by is None)
    if by is None and form in (None, "table") and output is None:  # one row, read more easily downwards
        said = frame.row(0, named=True)
        frame = pl.DataFrame(
            {"what": list(said), "value": [f"{v:,}" if isinstance(v, int) else v for v in said.values()]}
        )
    write(frame, form, output, inapplicable=frozenset({"span_tokens"}))


def _length(described: Model, config: Path) -> int:
    if described.most_tokens is not None:
        return described.most_tokens
    if all(layer.token_bytes(1) == 0 for layers in described.stack for layer in layers):
        return 1  # states alone: no length changes anything
    raise UsageError(f"{config}: max_position_embeddings: is missing; name the length with --tokens.")


def _frame(asked: dict[str, Any], rows: tuple[Capacity, ...], *, whole: bool) -> pl.DataFrame:
    left_out = _WHOLE if whole else ()
    figures = [{k: v for k, v in asdict(row).items() if k not in left_out} for row in rows]
    texts = ("model", "dtype", "group")
    schema = {
        name: pl.String if name in texts else pl.Int64 for row in figures[:1] for name in (*asked, *row)
    }
    return pl.DataFrame([asked | row for row in figures], schema=schema)
