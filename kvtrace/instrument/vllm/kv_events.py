"""Rows of the engine's own KV events: which blocks were stored, removed, cleared, and where.

The scheduler merges the GPU's events and its connector's and hands them to a publisher: there they are read.
Only where the engine has events on: switching them on would change what it does. Token ids are counted.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from kvtrace import recorder
from kvtrace.instrument.vllm import configuration
from kvtrace.instrument.vllm.identity import key_space
from kvtrace.instrument.vllm.products import COMPONENTS
from kvtrace.instrument.vllm.settings import at
from kvtrace.instrument.wrapping import after

if TYPE_CHECKING:
    from types import ModuleType
    from typing import Any

SECONDARY = {"fs": "disk", "obj": "object", "p2p": "peer"}
"""vLLM calls all that lies below the CPU STORAGE and names the tier that owns it."""
_EVENTS = {"BlockStored": "stored", "BlockRemoved": "removed", "AllBlocksCleared": "cleared"}
_ROW = recorder.shape(
    "block",
    (
        "time_ns", "event", "tier", "component", "key_space", "key", "parent_key", "tokens", "object_group",
        "locality", "seq", "medium_raw",
    ),
    evidence="native",
)  # fmt: skip


def install(module: ModuleType) -> None:
    """Wrap the factory of publishers; each class it makes is wrapped on first sight."""
    after(module.EventPublisherFactory, "create", _made)


def _made(publisher: Any, *_: Any, **__: Any) -> None:
    if type(publisher).__name__ != "NullEventPublisher":
        after(type(publisher), "publish", _published)


def _published(_result: Any, publisher: Any, batch: Any, *_: Any, **__: Any) -> None:
    """One row a block; `seq` is the number that the publisher gives to this batch on the wire."""
    own = vars(publisher)
    sequence = own.get("_kvtrace_sequence", 0)
    own["_kvtrace_sequence"] = sequence + 1
    now, space, connector = recorder.now(), *_space(own)
    for event in batch.events:
        _rows(event, now, space, connector, sequence)


def _space(own: dict[str, Any]) -> tuple[str | None, str]:
    """Key space and the connector's component, found once a publisher."""
    found: tuple[str | None, str] | None = own.get("_kvtrace_space")
    if found is None:
        config = configuration.here().config
        space = None if config is None else key_space(config)
        connector = str(at(config, "kv_transfer_config.kv_connector"))
        product, _ = COMPONENTS.get(connector, (connector.lower().replace("connector", ""), "unknown"))
        found = own["_kvtrace_space"] = (space, product)
    return found


def _rows(event: Any, now: int, space: str | None, connector: str, sequence: int) -> None:
    medium = getattr(event, "medium", None)
    tier, part = _place(medium, getattr(event, "ownership", None), connector)
    group = getattr(event, "group_idx", None)
    locality = getattr(event, "locality", None)
    size = getattr(event, "block_size", None) or None
    parent = _text(getattr(event, "parent_block_hash", None))
    kind = _EVENTS.get(type(event).__name__)
    group = None if group is None else str(group)
    locality = locality.lower() if locality else None
    for block in getattr(event, "block_hashes", None) or (None,):
        key = _text(block)
        recorder.record(
            (_ROW, now, kind, tier, part, space, key, parent, size, group, locality, sequence, medium)
        )
        # Placeholders of an offloaded block carry neither tokens nor parent: their keys form no chain.
        parent = key if size else None


def _place(medium: str | None, owner: str | None, connector: str) -> tuple[str, str]:
    """Tier and component. What names no medium is the GPU's own pool."""
    if medium is None or medium == "GPU":
        return "gpu", "vllm.gpu"
    if medium == "CPU":
        return "host", f"{connector}.{owner or 'cpu'}"
    return SECONDARY.get(str(owner), "unknown"), f"{connector}.{owner or medium.lower()}"


def _text(block_hash: Any) -> str | None:
    """A block's key as text: hexadecimal, 16 digits for the short form that vLLM publishes by default."""
    if block_hash is None:
        return None
    return block_hash.hex() if isinstance(block_hash, bytes) else f"{block_hash:016x}"
