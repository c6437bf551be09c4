"""kvtrace schema: the published contract."""

from __future__ import annotations

from kvtrace.schema.publish import contract_json


def schema() -> None:
    """Print the published schema as JSON: tables, columns, types, meanings and closed lists.

    Example:
        kvtrace schema > kvtrace-v1.json
    """
    print(contract_json(), end="")
