"""recording.json: how a folder of raw recordings was made, in the words of whoever recorded it.

It goes into run.json as it is: scenario, commands, configuration that changes meaning, engine versions, and
whether anything is synthetic.
"""

from __future__ import annotations

from typing import Any

import msgspec

from kvtrace.errors import InputError

FIELDS = ("scenario", "captured", "engines", "synthetic")
"""What such a description has to say."""


def looks_like(head: bytes) -> bool:
    """Whether a file begins like such a description."""
    return head.lstrip().startswith(b"{") and b'"captured"' in head and b'"scenario"' in head


def decode(raw: bytes, source: str) -> dict[str, Any]:
    """The description.

    Raises:
        InputError: it is no JSON object, or says less than FIELDS.
    """
    try:
        found = msgspec.json.decode(raw, type=dict[str, Any])
    except (msgspec.MsgspecError, RecursionError) as error:
        raise InputError(f"{source}: is no JSON object ({error}); mend it or leave it out.") from error
    missing = [field for field in FIELDS if field not in found]
    if missing:
        raise InputError(f"{source}: does not say {', '.join(missing)}; add it or leave the file out.")
    return found
