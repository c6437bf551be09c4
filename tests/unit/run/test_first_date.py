"""A view takes no parameter: the border between dates and clocks without one is written out there."""

from __future__ import annotations

import re
from importlib import resources

from kvtrace.schema.vocabulary import FIRST_DATE_NS


def test_the_border_in_sql_is_the_one_of_the_words() -> None:
    folder = resources.files("kvtrace") / "sql"
    text = "".join(path.read_text() for path in folder.iterdir() if path.name.endswith(".sql"))
    assert set(re.findall(r"\b31\d{15}\b", text)) == {str(FIRST_DATE_NS)}
