"""What a decoder says of bytes that cannot be what they claim to be."""

from __future__ import annotations


class NonsenseError(ValueError):
    """A frame with a right checksum whose content contradicts itself, or needs what an earlier loss took."""
