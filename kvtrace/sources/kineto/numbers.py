"""A number of a trace as the text that it is written as.

Kineto writes microseconds with three decimals: whole nanoseconds. Read as a float64 they are none any more
beyond 2^42 us, which a trace reaches after 51 days of its base time (88511388202.755 us is in a public one
of an H100), so that copies overlap that do not, and gaps close. The text is exact.
"""

from __future__ import annotations

import re
from decimal import Decimal, InvalidOperation

from kvtrace.sources.records import LATEST_NS

_QUOTED = re.compile(rb'"?(-?\d{1,19})"?')
DECIMALS = 3
SURE_DIGITS = 18
"""So many digits are below 2^63, whatever they are."""
MOST_DIGITS = 20
_LONGEST = 64
_BEGINS = tuple(b"%c" % each for each in b"-0123456789")


def nanoseconds(text: bytes) -> int | None:
    """Microseconds as whole ns, the nearest, half to even; None for no number, or one beyond 64 bits."""
    whole, _, fraction = text.partition(b".")
    digits = whole + (fraction if len(fraction) == DECIMALS else b"000" if not fraction else b"-")
    if whole and digits.isdigit() and len(digits) <= SURE_DIGITS:
        return int(digits)
    if len(text) > _LONGEST or text[:1] not in _BEGINS:
        return None
    try:
        exact = Decimal(text.decode())
    except (InvalidOperation, UnicodeDecodeError):
        return None
    if not exact:
        return 0
    if not exact.is_finite() or exact.adjusted() > MOST_DIGITS:
        return None
    ns = round(exact * 1000) if exact.adjusted() > -MOST_DIGITS else 0
    return ns if -LATEST_NS <= ns <= LATEST_NS else None


def whole_text(text: bytes) -> int | None:
    """A whole number, which older traces write in quotes; None for anything else."""
    found = _QUOTED.fullmatch(text)
    value = int(found[1]) if found else None
    return value if value is not None and -LATEST_NS <= value <= LATEST_NS else None
