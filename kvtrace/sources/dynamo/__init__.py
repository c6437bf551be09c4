"""What NVIDIA Dynamo writes: predictions of a router, what workers loaded, and where copies were.

    request_trace.py   requests as the front end saw them, their forecast and their keys
    router_log.py      which worker a router chose, and what it saw of each tier
    event_plane.py     where blocks were, and loads of workers, from a passive tap of its ZMQ event plane
    replay_report.py   an offline simulation: nothing in it happened
    names.py           its words in ours: workers, tiers, keys

A request's internal id is its uuid; the API server calls it `chatcmpl-<uuid>`, the caller `x-request-id`.
`cached_tokens` of a router is a forecast weighted with credits (a host block counts 0.75 by default): it goes
into predicted_tokens; what a worker loaded is in the response's usage, reported_cached_tokens.
"""
