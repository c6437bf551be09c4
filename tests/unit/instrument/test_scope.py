"""Which request is this code working for?"""

from __future__ import annotations

import asyncio
import contextvars
import subprocess
import sys
import threading
from typing import TYPE_CHECKING

import kvtrace
import pytest
from kvtrace.instrument import scope

if TYPE_CHECKING:
    from collections.abc import Iterator


def who() -> str | None:
    here = scope.current()
    return None if here is None else here.request_id


def test_scopes_nest_and_end() -> None:
    assert who() is None
    with kvtrace.request("outer"):
        with kvtrace.request("inner"):
            assert who() == "inner"
        assert who() == "outer"
    assert who() is None


def test_a_scope_ends_when_what_is_inside_raises() -> None:
    with pytest.raises(ZeroDivisionError), kvtrace.request("r1"):
        raise ZeroDivisionError
    assert who() is None


def test_one_object_may_be_entered_again_inside_itself() -> None:
    mine = kvtrace.request("r1")
    with mine, kvtrace.request("r2"):
        with mine:
            assert who() == "r1"
        assert who() == "r2"
    assert who() is None


def test_several_requests_are_members_and_no_single_one() -> None:
    with kvtrace.request("a", "b", transfer_id="t"):
        here = scope.current()
        assert here is not None
        assert (here.request_id, here.members, here.transfer_id) == (None, ("a", "b"), "t")


def test_a_thread_keeps_its_own_scope() -> None:
    seen: list[str | None] = []

    def work(name: str) -> None:
        seen.append(who())
        with kvtrace.request(name):
            seen.append(who())

    with kvtrace.request("main"):
        threads = [threading.Thread(target=work, args=(f"t{number}",)) for number in range(2)]
        for thread in threads:
            thread.start()
            thread.join()
        assert who() == "main"
    assert seen == [None, "t0", None, "t1"]


def test_a_thread_that_gets_a_copy_of_the_context_is_in_the_scope() -> None:
    seen: list[str | None] = []
    with kvtrace.request("r1"):
        context = contextvars.copy_context()
    thread = threading.Thread(target=context.run, args=(lambda: seen.append(who()),))
    thread.start()
    thread.join()
    assert seen == ["r1"]


def test_tasks_that_take_turns_keep_their_own_scopes() -> None:
    async def work(name: str) -> list[str | None]:
        seen = []
        with kvtrace.request(name):
            for _ in range(3):
                await asyncio.sleep(0)
                seen.append(who())
        return seen

    async def main() -> list[list[str | None]]:
        return list(await asyncio.gather(work("a"), work("b")))

    assert asyncio.run(main()) == [["a"] * 3, ["b"] * 3]


def test_a_generator_that_is_closed_in_another_context_raises_nothing() -> None:
    def work() -> Iterator[None]:
        with kvtrace.request("r1"):
            yield

    generator = work()
    contextvars.copy_context().run(next, generator)
    generator.close()
    assert who() is None


def test_the_package_has_them_by_name_and_nothing_else_new() -> None:
    assert kvtrace.request is scope.request
    with pytest.raises(AttributeError, match="no attribute 'requests'"):
        _ = kvtrace.requests
    with pytest.raises(AttributeError, match="no attribute 'copies'"):
        _ = kvtrace.instrument.copies


def test_without_a_recording_a_scope_imports_no_recorder_thread_and_no_torch() -> None:
    code = (
        "import os, sys; os.environ.pop('KVTRACE_OUT', None)\n"
        "import kvtrace\n"
        "with kvtrace.request('r1'): pass\n"
        "print('torch' in sys.modules, 'kvtrace.instrument.torch_cuda.copies' in sys.modules)\n"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert done.stdout.split() == ["False", "False"]
