"""Two answers to one prompt, token by token; needs numpy or torch alone, as an engine's environment has them.

matrices.py    logits wherever they lie
distances.py   how far apart two answers are
"""

from __future__ import annotations

from kvtrace.analyses._logits.distances import Distance, of_logits, of_tokens
from kvtrace.analyses._logits.matrices import matrix_of, torch_or_none

__all__ = ["Distance", "matrix_of", "of_logits", "of_tokens", "torch_or_none"]
