"""The plan file (TOML): what is fixed, what drives the load, and what each group starts.

    [fixed]                             compared with what the runs say; what is left out is not checked
    model = "tiny"                      as the engine names it
    gpus = 1                            tensor x pipeline x data parallel
    prompt_tokens = [900, 1100]         of every request: one number, or from and to; output_tokens likewise
    arrivals = "4 at once"              words of yours that all runs of the plan must share, as
    prefix_working_set_tokens = 8192    this number
    slo = { ttft_ns = 500_000_000 }     targets of the question slo
    may_differ = ["block_size"]         factors that are being tested, beside those that always may

    [load]                              see running/: how rounds are driven
    command = "vllm bench serve ... --request-id-prefix {request_id_prefix}"
    warmup = "..."                      before each measured round, not measured itself
    rounds = 5

    [group.tiered]                      in this order; each is held against its base, else the one before
    engine = "vllm serve ... --port {port}"
    backend = "lmcache server --port {backend_port}"

    [group.tiered_cut]
    base = "tiered"                     everything that it does not say itself is that of its base
    disconnect_at = 0.5                 the backend is killed when so large a share of the round is answered

Commands run in the experiment's own folder, hidden until it is whole: there a relative path is looked up, not
where `kvtrace experiment` was called. Write whole paths.

Read strictly: a word that is not known is an error that names the nearest known one.
"""

from __future__ import annotations

import difflib
import hashlib
import json
from typing import TYPE_CHECKING, Any

import msgspec

from kvtrace.diff.factors import FIXED, FIXED_OF_RUN
from kvtrace.diff.toml import read_toml
from kvtrace.errors import UsageError

if TYPE_CHECKING:
    from pathlib import Path

    from kvtrace.run import Run

MORE_FIXED = ("version", "max_num_seqs", "max_num_batched_tokens", "scheduling_policy")
"""Of an engine's configuration, beyond what `diff` holds fixed: a group changes the cache, not the engine."""
LENGTHS = ("prompt_tokens", "output_tokens")
PREFIX = "kvx-"
MOST_SECONDS = 1_000_000
MOST = 2**62
MOST_NAME = 100
MOST_BASES = 64
"""How many groups may stand on each other."""


class Slo(msgspec.Struct, forbid_unknown_fields=True, frozen=True):
    """Targets of the question `slo`; those that are null are not asked."""

    ttft_ns: int | None = None
    itl_p50_ns: int | None = None
    itl_p99_ns: int | None = None
    e2e_ns: int | None = None


def own_slo(run: Run) -> Slo | None:
    """The targets that run.json names (kvtrace experiment writes those of its plan)."""
    said = run.meta.get("slo")
    try:
        return msgspec.convert(said, Slo) if isinstance(said, dict) else None
    except msgspec.ValidationError:
        return None


class Fixed(msgspec.Struct, forbid_unknown_fields=True, frozen=True):
    """What must be the same in all groups."""

    model: str | None = None
    gpus: int | None = None
    prompt_tokens: int | tuple[int, int] | None = None
    output_tokens: int | tuple[int, int] | None = None
    arrivals: str | None = None
    prefix_working_set_tokens: int | None = None
    slo: Slo | None = None
    may_differ: tuple[str, ...] = ()


class Load(msgspec.Struct, forbid_unknown_fields=True, frozen=True):
    """What drives the load, round by round.

    requests: how many a round asks, which a group that is disconnected midway needs
    progress: the counter of answered requests on the engine's page of metrics
    settle_s: the pause between a warm-up and its measured round, in which stores may end
    """

    command: str | None = None
    warmup: str | None = None
    rounds: int = 1
    requests: int | None = None
    request_id_prefix: str = PREFIX
    progress: str = "vllm:request_success_total"
    settle_s: float = 2.0
    timeout_s: float = 3600.0
    interleaved: bool = False


def workload(load: Load) -> str:
    """A name for what is asked of the engine: two loads of one name may be compared, however often played."""
    asked = [load.command, load.warmup, load.requests, load.request_id_prefix]
    return f"load {hashlib.sha256(json.dumps(asked).encode()).hexdigest()[:12]}"


class Group(msgspec.Struct, forbid_unknown_fields=True, frozen=True):
    """What a group starts.

    ready, backend_ready: pages that answer 200 as soon as it serves; the backend without one: its port
    reset: the page that empties the engine's own prefix cache before each round; "": there is none
    """

    engine: str | None = None
    backend: str | None = None
    base: str | None = None
    disconnect_at: float | None = None
    rounds: int | None = None
    ready: str | None = None
    backend_ready: str | None = None
    reset: str | None = None
    environment: dict[str, str] = {}
    start_s: float | None = None


class Plan(msgspec.Struct, forbid_unknown_fields=True, frozen=True):
    """A plan file; `groups` are in the order of the file, what a base says filled in."""

    fixed: Fixed = Fixed()
    load: Load = Load()
    groups: dict[str, Group] = {}


def read_plan(path: Path) -> Plan:
    """A plan file.

    Raises:
        UsageError: it cannot be read, is not TOML, or a table, key, word or number in it is not known.
    """
    content = read_toml(path)
    _known(f"{path}", content, ("fixed", "load", "group"))
    fixed = _table(f"{path}: [fixed]", content.get("fixed", {}), Fixed)
    load = _table(f"{path}: [load]", content.get("load", {}), Load)
    said = content.get("group", {})
    if not isinstance(said, dict):
        raise UsageError(f"{path}: group must be tables; write [group.NAME].")
    groups = {name: _table(f"{path}: [group.{name}]", entry, Group) for name, entry in said.items()}
    _numbers(path, load, groups)
    _amounts(path, fixed)
    _factors(path, fixed)
    return Plan(fixed, load, {name: _inherited(path, name, groups) for name in groups})


def _table(where: str, entry: Any, kind: type[Any]) -> Any:
    """One table as what it is; unknown words name the nearest known one."""
    if not isinstance(entry, dict):
        raise UsageError(f"{where}: must be a table.")
    _known(where, entry, kind.__struct_fields__)
    if isinstance(entry.get("slo"), dict):
        _known(f"{where} slo", entry["slo"], Slo.__struct_fields__)
    try:
        return msgspec.convert(entry, kind)
    except msgspec.ValidationError as error:
        reason, _, place = str(error).partition(" - at `$.")
        raise UsageError(f"{where} {place.rstrip('`')}: {reason}.") from error


def _known(where: str, words: Any, known: tuple[str, ...]) -> None:
    for word in words:
        if word not in known:
            near = difflib.get_close_matches(word, known, n=1)
            hint = f"did you mean {near[0]}?" if near else f"there are {', '.join(known)}."
            raise UsageError(f"{where}: {word} is not known; {hint}")


def _numbers(path: Path, load: Load, groups: dict[str, Group]) -> None:
    """Numbers that mean nothing."""
    where = f"{path}: [load]"
    if load.rounds < 1 or (load.requests is not None and load.requests < 1):
        raise UsageError(f"{where}: rounds and requests must be 1 at least.")
    if not (0 <= load.settle_s <= MOST_SECONDS and 0 < load.timeout_s <= MOST_SECONDS):
        raise UsageError(
            f"{where}: settle_s and timeout_s must be seconds from 0 on, {MOST_SECONDS} at most."
        )
    for name, group in groups.items():
        cut, mine = group.disconnect_at, f"{path}: [group.{name}]"
        bad = not name.strip() or "/" in name or name.startswith((".", "-")) or not name.isprintable()
        if bad or len(name.encode(errors="replace")) > MOST_NAME:
            raise UsageError(
                f"{path}: [group.{name!a}]: a group's name becomes a folder; leave out /, what cannot be "
                f"printed, a leading dot or dash, and what is longer than {MOST_NAME} bytes."
            )
        if cut is not None and not 0 <= cut < 1:
            raise UsageError(f"{mine}: disconnect_at is a share of the load, from 0 to below 1, not {cut}.")
        if group.rounds is not None and group.rounds < 1:
            raise UsageError(f"{mine}: rounds must be 1 at least.")
        if group.start_s is not None and not 0 < group.start_s <= MOST_SECONDS:
            raise UsageError(f"{mine}: start_s must be seconds above 0, {MOST_SECONDS} at most.")


def _amounts(path: Path, fixed: Fixed) -> None:
    """Fixed numbers that no run can have."""
    where = f"{path}: [fixed]"
    slo = msgspec.structs.asdict(fixed.slo) if fixed.slo else {}
    counts = {"gpus": fixed.gpus, "prefix_working_set_tokens": fixed.prefix_working_set_tokens} | slo
    for name, value in counts.items():
        if value is not None and not 0 < value <= MOST:
            raise UsageError(f"{where}: {name} must be above 0, and {MOST} at most.")
    for name in LENGTHS:
        wanted = getattr(fixed, name)
        low, high = (wanted, wanted) if isinstance(wanted, int) else wanted or (0, 0)
        if not 0 <= low <= high:
            raise UsageError(f"{where}: {name} is a number from 0 on, or [from, to].")


def _factors(path: Path, fixed: Fixed) -> None:
    """What may differ must be something that would otherwise be held fixed."""
    fields = (*FIXED, *MORE_FIXED, *FIXED_OF_RUN, *LENGTHS)
    for factor in fixed.may_differ:
        _known(f"{path}: [fixed] may_differ", [factor.rpartition(".")[2]], fields)


def _inherited(path: Path, name: str, groups: dict[str, Group], seen: tuple[str, ...] = ()) -> Group:
    """A group with what its base says where it says nothing; its own base stays named."""
    group = groups[name]
    if group.base is None:
        return group
    if group.base in (name, *seen):
        raise UsageError(f"{path}: [group.{name}]: its base leads back to itself.")
    _known(f"{path}: [group.{name}] base", [group.base], tuple(groups))
    if len(seen) >= MOST_BASES:
        raise UsageError(f"{path}: [group.{name}]: more than {MOST_BASES} groups stand on each other.")
    below = _inherited(path, group.base, groups, (*seen, name))
    filled = {
        field: getattr(group, field) if getattr(group, field) is not None else getattr(below, field)
        for field in Group.__struct_fields__
    }
    return Group(**filled | {"base": group.base, "environment": {**below.environment, **group.environment}})
