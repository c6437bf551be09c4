"""What engines, servers and tenants said of their state, and in which fields two of them differ."""

from __future__ import annotations

from dataclasses import dataclass
from itertools import permutations
from typing import TYPE_CHECKING

from kvtrace.analyses.compatibility._keepers import TECHNICAL, concerns, keeper

if TYPE_CHECKING:
    from collections.abc import Iterator

    from kvtrace.run import Run

OPEN = ("per request", "unknown", "")
"""Values that say nothing of one request's state."""
RANDOM = "random"
"""A seed that every process draws for itself and keeps secret: no two are the same."""
_SHAPED = ("lmcache", "lmcache.inprocess", "vllm.offloading", "nixl")
"""Products whose keys depend on what engines said of themselves."""


@dataclass(frozen=True)
class Difference:
    """A field, its value on either side, and who keeps such state from being read."""

    field: str
    writer: str
    reader: str
    enforced_by: str | None


@dataclass(frozen=True)
class Identities:
    """Identity -> side -> field -> (value, who keeps it, as its row said)."""

    rows: dict[str, dict[str, dict[str, tuple[str, str | None]]]]

    @classmethod
    def of(cls, run: Run) -> Identities:
        """Read from the run; of a field told twice the first value in their order."""
        query = """
            SELECT identity_id, coalesce(side, 'writer'), field, min(value), arg_min(enforced_by, value)
            FROM identity WHERE identity_id IS NOT NULL AND field IS NOT NULL AND value IS NOT NULL
            GROUP BY ALL ORDER BY ALL
        """
        found: dict[str, dict[str, dict[str, tuple[str, str | None]]]] = {}
        for name, side, field, value, told in run.connection().sql(query).fetchall():
            found.setdefault(name, {}).setdefault(side, {})[field] = (value, told)
        return cls(found)

    def knows(self, name: str | None) -> bool:
        """Whether anything is known of this engine or server."""
        return name in self.rows

    def differences(
        self, of: str, writer: str | None, reader: str | None, *, own: bool = False
    ) -> list[Difference]:
        """Fields of a product's state that are known on both sides and differ; nothing where it is one.

        `own`: these are identities of the product itself, not of engines that use it.
        """
        if writer is None or reader is None or writer == reader:
            return []
        left, right = self._fields(writer, "writer"), self._fields(reader, "reader")
        found = [
            Difference(field, left[field][0], right[field][0], keeper(of, field, left[field][1]))
            for field in sorted(left.keys() & right.keys())
            if (own or concerns(of, field)) and _differ(field, left[field][0], right[field][0])
        ]
        return list(_of_world(found))

    def technical(self, of: str, writer: str | None, reader: str | None) -> list[Difference]:
        """Those in which the keys of the very same state differ, as the makers of the keys said."""
        found = self.differences(of, self.own(of, writer), self.own(of, reader), own=True)
        return [each for each in found if each.field in TECHNICAL]

    def own(self, of: str, name: str | None) -> str | None:
        """The identity that tells how this product makes its keys: a cache inside an engine has its own."""
        inside = f"{name}:{of.split('.')[0]}"
        return inside if inside in self.rows else name

    def apart(self) -> list[tuple[str, str, str]]:
        """(product, writer, reader) whose keys differ by what both said: one cannot find the other's."""
        names = [name for name in self.rows if self._fields(name, "writer").keys() - {"cache_salt"}]
        return [
            (of, writer, reader)
            for of in _SHAPED
            for writer, reader in permutations(names, 2)
            if any(each.enforced_by == "key" for each in self.differences(of, writer, reader))
        ]

    def _fields(self, name: str, side: str) -> dict[str, tuple[str, str | None]]:
        """What this side said, and what only the other did; derived values included."""
        sides = self.rows.get(name, {})
        found = {field: each for one in (*sides.values(), sides.get(side, {})) for field, each in one.items()}
        if found.get("kv_cache_dtype", ("",))[0] == "auto" and "dtype" in found:
            found["kv_cache_dtype"] = (found["dtype"][0], found["kv_cache_dtype"][1])
        degrees = [found.get(f"{kind}_parallel_size", ("",))[0] for kind in ("tensor", "pipeline")]
        if all(degree.isdecimal() and len(degree) < 10 for degree in degrees):
            found["world_size"] = (str(int(degrees[0]) * int(degrees[1])), None)
        return found


def _differ(field: str, left: str, right: str) -> bool:
    if left in OPEN or right in OPEN:
        return False
    if field == "hash_seed" and left == right == RANDOM:
        return True
    return left.removeprefix("torch.") != right.removeprefix("torch.")


def _of_world(found: list[Difference]) -> Iterator[Difference]:
    """One row for what a world size keeps apart: the degrees that make it differ are the cause."""
    world = next((each for each in found if each.field == "world_size"), None)
    for each in found:
        if each is world:
            continue
        if each.field in ("tensor_parallel_size", "pipeline_parallel_size") and world is not None:
            yield Difference(each.field, each.writer, each.reader, world.enforced_by)
        else:
            yield each
