"""What one layer keeps: a record a token, or a state a sequence.

full     every token, keys and values of each KV head (MHA, GQA, MQA)
window   the last tokens of a sliding window         chunked  the tokens of the current chunk
latent   one compressed vector a token (MLA), one "head" whatever the number of heads
indexer  one key a token, which sparse attention searches
shared   nothing of its own: reads the keys and values of an earlier layer
state    mamba, mamba2, gated_delta, kda, lightning, short_conv: a state a sequence, whatever its length
"""

from __future__ import annotations

from dataclasses import dataclass

from kvtrace.errors import UsageError


@dataclass(frozen=True, slots=True)
class TokenLayer:
    """A layer with one record a token and KV head; a `span` bounds how many tokens back it keeps them."""

    kind: str
    heads: int
    record_bytes: int
    span: int | None = None

    def token_bytes(self, tp: int) -> int:
        """A token on one of tp ranks; tp = 1 is the logical copy. Fewer heads than ranks are replicated.

        Raises:
            UsageError: the KV heads cannot be divided so.
        """
        if self.heads % tp and tp % self.heads:
            raise UsageError(f"--tp {tp}: num_key_value_heads is {self.heads}; neither divides the other.")
        return max(1, self.heads // tp) * self.record_bytes

    def state_bytes(self, tp: int) -> int:  # noqa: ARG002 - the same question to every layer
        """Nothing a sequence."""
        return 0

    def grows_at(self, tokens: int) -> bool:
        """Does a token more take more room?"""
        return self.span is None or tokens < self.span

    def most_blocks(self, tokens: int, block: int) -> int:
        """The most blocks that a request holds on its way to this many tokens.

            blocks   |  0  |  1  |  2  |      a window of W tokens that begins inside a block
            window       [...........]        touches up to ceil((W - 1) / block) + 1 of them

        A chunk's begin is taken to be a block's begin.
        """
        reached = -(-tokens // block)
        if self.span is None or tokens <= self.span:
            return reached
        if self.kind == "chunked":
            return -(-self.span // block)
        return min(reached, -(-(self.span - 1) // block) + 1)


@dataclass(frozen=True, slots=True)
class StatePart:
    """One tensor of a state: `divided` by the ranks, times `each`.

    `groups` of `group_each` more are divided too; where they are fewer than the ranks every rank has its own.
    """

    field: str
    divided: int
    each: int
    number_bytes: int
    groups: int = 0
    group_each: int = 0

    def bytes_on_rank(self, tp: int) -> int:
        """Bytes on one of tp ranks.

        Raises:
            UsageError: it cannot be divided so.
        """
        groups = self.groups if self.groups % tp == 0 else tp
        width = self.divided + groups * self.group_each
        if self.divided % tp or width % tp or (self.groups % tp and self.groups > tp):
            raise UsageError(f"--tp {tp}: does not divide {self.field}.")
        return width // tp * self.each * self.number_bytes


@dataclass(frozen=True, slots=True)
class StateLayer:
    """A layer that keeps a state a sequence."""

    kind: str
    parts: tuple[StatePart, ...]
    span: None = None

    def token_bytes(self, tp: int) -> int:  # noqa: ARG002 - the same question to every layer
        """Nothing a token."""
        return 0

    def state_bytes(self, tp: int) -> int:
        """The state of one sequence on one of tp ranks; tp = 1 is the logical copy."""
        return sum(part.bytes_on_rank(tp) for part in self.parts)

    def grows_at(self, tokens: int) -> bool:  # noqa: ARG002 - the same question to every layer
        """Never."""
        return False

    def most_blocks(self, tokens: int, block: int) -> int:  # noqa: ARG002 - the same question
        """None: a state is in no block of tokens."""
        return 0


Layer = TokenLayer | StateLayer
Stack = tuple[tuple[Layer, ...], ...]
"""What each hidden layer keeps, from the first: one thing, two (attention and state), or none."""
