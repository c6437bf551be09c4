"""A TOML file that a person wrote: a gate file, a plan."""

from __future__ import annotations

import tomllib
from typing import TYPE_CHECKING, Any

from kvtrace.errors import UsageError

if TYPE_CHECKING:
    from pathlib import Path


def read_toml(path: Path) -> dict[str, Any]:
    """What the file holds.

    Raises:
        UsageError: it cannot be read, is not TOML, or is nested too deeply.
    """
    try:
        return tomllib.loads(path.read_text(encoding="utf-8"))
    except (OSError, UnicodeDecodeError) as error:
        raise UsageError(f"{path}: cannot be read ({error}).") from error
    except RecursionError as error:
        raise UsageError(f"{path}: is nested too deeply.") from error
    except ValueError as error:  # a number of thousands of digits is one that is no TOMLDecodeError
        raise UsageError(f"{path}: is not TOML ({str(error).partition(';')[0]}).") from error
