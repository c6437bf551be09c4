"""For whom is a library called that knows nothing of requests?

Mooncake's and NIXL's calls carry no request id: what a scope says (`kvtrace.request(id)`) is all there is.
"""

from __future__ import annotations

from kvtrace.instrument import scope


def by(otherwise: str) -> tuple[str | None, str | None, str]:
    """Request id, transfer id and attribution of a call made now; `otherwise`: attribution without a scope.

    A call for several requests is pinned to the operation, not to one of them.
    """
    current = scope.current()
    if current is None:
        return None, None, otherwise
    if current.request_id is None:
        return None, current.transfer_id, "operation" if current.members else otherwise
    return current.request_id, current.transfer_id, "request"
