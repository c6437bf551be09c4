"""Every table of a run, column by column.

Times are int64 unix nanoseconds, intervals are half-open, null means "not observed" and is never 0.
`type` is one of TYPES; the Arrow types that belong to them are in sinks/parquet/arrow.py.
"""

from __future__ import annotations

from dataclasses import dataclass

TYPES: tuple[str, ...] = (
    "string", "int64", "uint64", "float64", "bool", "uint8",
    "map<string,string>", "map<string,int64>", "list<member>",
)  # fmt: skip


@dataclass(frozen=True, slots=True)
class Column:
    """One column: its name, its type (one of TYPES), and what it means, with its unit."""

    name: str
    type: str
    doc: str


def _columns(text: str) -> tuple[Column, ...]:
    """Read `name type: meaning` lines, the form in which the tables below are written."""
    rows = []
    for line in text.strip().splitlines():
        head, doc = line.strip().split(": ", 1)
        name, kind = head.split(" ", 1)
        rows.append(Column(name, kind, doc))
    return tuple(rows)


MEMBER = _columns("""
    request_id string: the request served
    phase string: prefill or decode, as the engine says
    scheduled_tokens int64: tokens of this request that the operation computes
    output_tokens int64: tokens this request puts out in it
    computed_before int64: tokens of this request that were there before it
""")
"""Fields of one entry of `members`."""

SPAN = _columns("""
    run_id string: the run that recorded the row
    op string: the operation, one of schema.vocabulary.OPS; null for a span that no rule knows
    name string: the producer's own name for the span
    request_id string: the engine's internal request id; null when the row serves several or none
    transfer_id string: ties the observers of one physical transfer together
    start_ns int64: start, unix ns
    end_ns int64: end, unix ns; null while open
    submit_ns int64: when the transfer was asked for, unix ns
    usable_ns int64: when the scheduler may use what was loaded, unix ns
    tier_from string: physical medium the state leaves, one of TIERS
    tier_to string: physical medium the state reaches, one of TIERS
    component string: the product's own name of the part, such as lmcache.l1
    state_kind string: kv, window, recurrent, indexer or static
    purpose string: reuse, handoff, prefetch or promotion
    tokens int64: tokens the operation covers
    bytes int64: bytes moved
    blocks int64: GPU blocks the operation covers or needs
    attempt int64: 1 for the first inquiry or admission, counting up after preemption or failure
    outcome string: one of OUTCOMES
    reason string: why, from the operation's closed list in REASONS
    mode string: read, write or reserve, for locks
    free_blocks int64: GPU blocks that were free at the decision
    queued_ns int64: when the work was queued, unix ns
    engine string: one scheduler with its front end and workers
    process string: one operating-system process
    observer string: who saw it, one of OBSERVERS
    rank int64: tensor- or pipeline-parallel rank
    device string: device as the producer names it
    stream string: device stream as the producer names it
    clock string: host or gpu
    attribution string: what the row can be pinned to: request, operation, key or aggregate
    evidence string: native, shim, derived or predicted
    trace_id string: W3C trace id, 32 hex digits
    span_id uint64: span id; printf('%016x') gives its usual form
    parent_span_id uint64: span id of the parent
    identity_id string: the identity rows that describe the state
    prompt_tokens int64: request: tokens of the prompt
    output_tokens int64: request: tokens put out
    gpu_hit_tokens int64: request: prompt tokens found in GPU memory at first admission
    selected_tokens int64: request: tokens the scheduler decided to load beyond its GPU hit
    reported_cached_tokens int64: request: cached tokens as the engine reported them to the caller
    predicted_tokens int64: route, request: cached tokens that a router forecast
    first_token_ns int64: request: first token leaves, unix ns, as the front end saw it
    status string: request: ok, error, aborted or open
    user_request_id string: request: the id that ties prefill and decode requests of one user call
    parent_request_id string: request: the request this one is a child of (n > 1)
    workload_key string: request: what pairs it with the same request of another run
    requested_tokens int64: lookup: tokens asked for
    found_tokens int64: lookup: tokens reported as found, counted from the first prompt token
    found_by_tier map<string,int64>: lookup: tokens found by tier
    members list<member>: every request the operation serves, with its tokens
    attributes map<string,string>: all that has no column, as text
    bucket uint8: md5_number_upper(request_id) % 64; 255 for rows without a request
""")

BLOCK = _columns("""
    run_id string: the run that recorded the row
    time_ns int64: when, unix ns
    event string: one of BLOCK_EVENTS
    tier string: physical medium
    component string: the product's own name of the part
    key_space string: producer:algorithm:model; keys compare only inside one
    key string: block or chunk key, as text
    parent_key string: key of the block before it
    request_id string: the request it belongs to, when known
    tokens int64: tokens of the block
    bytes int64: bytes of the block
    mode string: read, write or reserve
    count int64: how many locks or references
    ttl_ns int64: time to live, ns
    reason string: why, as the engine says
    engine string: engine
    process string: process
    rank int64: rank
    object_group string: group of layers or objects the key belongs to
    locality string: local or remote, as the engine says
    seq int64: sequence number of the message that carried it
    span_id uint64: span it belongs to
    identity_id string: identity of the state
    token_digest string: keyed digest of the block's tokens and all before them
    medium_raw string: the engine's own word for the medium
    evidence string: native, shim, derived or predicted
""")

REQUEST_KEY = _columns("""
    run_id string: the run that recorded the row
    request_id string: the request that asked
    attempt int64: 1 for its first inquiry
    position int64: 0 for the first key of the prompt
    key_space string: producer:algorithm:model
    key string: the key, as text
    tokens int64: tokens the key stands for
    time_ns int64: when it was asked, unix ns
    source string: where the row comes from
""")

METRIC = _columns("""
    run_id string: the run that recorded the row
    time_ns int64: when it was read, unix ns
    name string: metric name
    kind string: counter, gauge, histogram or summary
    labels map<string,string>: labels
    value float64: value
    process string: process
""")

ALIAS = _columns("""
    run_id string: the run that recorded the row
    alias string: another name of a request
    kind string: client, external, response (the id in the answer), session, trace or internal
    request_id string: the request it names
    source string: who says so
    evidence string: native, shim or derived
""")

IDENTITY = _columns("""
    run_id string: the run that recorded the row
    identity_id string: ties the fields of one identity together
    side string: writer or reader
    field string: model, revision, tokenizer, dtype, block_size, hash_seed ...
    value string: its value
    source string: where it was read
    enforced_by string: key, backend or nobody
""")

PROCESS = _columns("""
    run_id string: the run that recorded the row
    process string: service.instance.id, else host.name/process.pid
    engine string: engine it belongs to
    host string: host name, as the producer gives it
    boot_id string: boot id of the machine
    role string: what it is: api, scheduler, worker, server, client, router
    product string: service.name or product name
    version string: version of the product
    instruments map<string,string>: instrument -> active, or why not
    first_ns int64: first record, unix ns
    last_ns int64: last record, unix ns
    anchors map<string,string>: clock anchors: monotonic ns -> unix ns
    attributes map<string,string>: what else its resource said
""")

LOSS = _columns("""
    run_id string: the run that recorded the row
    source string: file or stream it was lost from
    process string: process whose records are missing; null when that cannot be known
    op string: operation that is missing; null when that cannot be known
    cause string: one of LOSS_CAUSES
    count int64: how many records
    from_ns int64: earliest time the missing records can have, unix ns; null = unknown
    to_ns int64: latest time the missing records can have, unix ns; null = unknown
    detail string: what was seen, in words
""")

TABLES: dict[str, tuple[Column, ...]] = {
    "span": SPAN,
    "block": BLOCK,
    "request_key": REQUEST_KEY,
    "metric": METRIC,
    "alias": ALIAS,
    "identity": IDENTITY,
    "process": PROCESS,
    "loss": LOSS,
}
"""Table name -> its columns, in the order in which they are stored."""

TABLE_DOCS: dict[str, str] = {
    "span": "one row an operation, one wide table: nulls are cheap",
    "block": "one row a key event",
    "request_key": "which keys a request asked for",
    "metric": "samples of metrics",
    "alias": "other names of requests; any writer adds",
    "identity": "what the state is, field by field, on the writing and the reading side",
    "process": "one row an operating-system process that recorded something",
    "loss": "what is missing, where, and why",
}
