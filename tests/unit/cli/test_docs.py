from __future__ import annotations

from kvtrace.cli._docs import columns, commands, parse

DOC = """What is asked?

    Prose that goes
    on.

    More prose.

    Columns:
        request_id: the request
        low_ns, high_ns (int64): a bound, ns: both
            continued here
        class: one of these: a, b

    Example:
        kvtrace x
            | kvtrace y
    """


def test_a_docstring_falls_into_prose_and_sections() -> None:
    doc = parse(DOC)
    assert doc.summary == "What is asked?"
    assert doc.prose == "What is asked?\n\nProse that goes on.\n\nMore prose."
    assert doc.sections["Example"] == "kvtrace x\n    | kvtrace y"


def test_columns_may_share_a_meaning_and_go_on_in_the_next_line() -> None:
    bound = "a bound, ns: both continued here"
    assert columns(DOC) == {
        "request_id": "the request", "low_ns": bound, "high_ns": bound, "class": "one of these: a, b",
    }  # fmt: skip


def test_commands_are_found_by_listing_the_folder() -> None:
    found = commands()
    assert {"import", "info", "sql", "analyze", "list"} <= set(found)
    assert all("kvtrace " in parse(text).sections["Example"] for text in found.values())
