"""Engine starts that several test files look at: each is played at most once a test run."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import TYPE_CHECKING

import pytest
from kvtrace.importer import import_files
from kvtrace.run import Run, open_run
from tests.engines import native
from tests.engines.configuration import Configuration
from tests.engines.environment import engine_python, skip_when_missing
from tests.engines.record import record_session
from tests.engines.scenarios import SESSIONS
from tests.golden.truths import Recording

if TYPE_CHECKING:
    from pathlib import Path

    from tests.engines.native import Played


@dataclass
class Recordings:
    """The scenarios of the samples, recorded now, each session when it is first asked for."""

    folder: Path
    python: Path
    raws: dict[str, Path] = field(default_factory=dict)
    runs: dict[str, Recording] = field(default_factory=dict)

    def imported(self, name: str) -> Recording:
        """The run that importing the scenario's raw files gives."""
        if name not in self.runs:
            run = open_run(import_files([self._raw(name)], self.folder / f"run-{name}").run)
            self.runs[name] = Recording(run, self._raw(name))
        return self.runs[name]

    def native(self, name: str) -> Run:
        """The run as `kvtrace run` itself left it."""
        self._raw(name)
        return open_run(self.folder / f"native-{name}")

    def _raw(self, name: str) -> Path:
        if name not in self.raws:
            (session,) = (each for each in SESSIONS if name in {one.name for one in each.scenarios})
            raws = record_session(
                session,
                list(session.scenarios),
                python=self.python,
                out=self.folder,
                native=self.folder / f"native-{name}",
            )
            self.raws |= {scenario.name: raw for scenario, raw in zip(session.scenarios, raws, strict=True)}
        return self.raws[name]


@pytest.fixture(scope="session")
def python() -> Path:
    skip_when_missing()
    return engine_python()


@pytest.fixture(scope="session")
def offload(python: Path, tmp_path_factory: pytest.TempPathFactory) -> Played:
    """VLLM's native offloading, with a worker that writes down its own times."""
    folder = tmp_path_factory.mktemp("offload")
    return native.play(native.HOST_SPEC, native.native_offload, python=python, out=folder / "run")


@pytest.fixture(scope="session")
def bare(python: Path, tmp_path_factory: pytest.TempPathFactory) -> Played:
    """The same engine and prompts without kvtrace."""
    configuration = Configuration(connector="native", delay_s=native.DELAY_S, kvtrace=False)
    out = tmp_path_factory.mktemp("bare") / "run"
    return native.play(configuration, native.native_offload, python=python, out=out)


@pytest.fixture(scope="session")
def example(python: Path, tmp_path_factory: pytest.TempPathFactory) -> Played:
    """VLLM's ExampleConnector, which loads inside of steps."""
    out = tmp_path_factory.mktemp("example") / "run"
    return native.play(native.EXAMPLE, native.batches, python=python, out=out)


@pytest.fixture(scope="session")
def multi(python: Path, tmp_path_factory: pytest.TempPathFactory) -> Played:
    """Both of them in one."""
    out = tmp_path_factory.mktemp("multi") / "run"
    return native.play(native.MULTI, native.batches, python=python, out=out)


@pytest.fixture(scope="session")
def slow(python: Path, tmp_path_factory: pytest.TempPathFactory) -> Played:
    """The same with copies slower than requests, with clients that leave, and with too few blocks."""
    folder = tmp_path_factory.mktemp("slow")
    return native.play(native.SLOW, native.disturbed, python=python, out=folder / "run")


@pytest.fixture(scope="session")
def lazy(python: Path, tmp_path_factory: pytest.TempPathFactory) -> Played:
    """LMCache's lazy offload, until it raises inside the scheduler."""
    folder = tmp_path_factory.mktemp("lazy")
    return native.play(native.LAZY, native.until_death, python=python, out=folder / "run", dies=True)


@pytest.fixture(scope="session")
def partial(python: Path, tmp_path_factory: pytest.TempPathFactory) -> Played:
    """LMCache with an L2 that fails to load the third object of every load."""
    folder = tmp_path_factory.mktemp("partial")
    return native.play(native.PARTIAL, native.loads_in_part, python=python, out=folder / "run")


@pytest.fixture(scope="session")
def recordings(tmp_path_factory: pytest.TempPathFactory) -> Recordings:
    skip_when_missing()
    return Recordings(tmp_path_factory.mktemp("engines"), engine_python())
