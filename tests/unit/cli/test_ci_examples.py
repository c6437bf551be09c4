"""The examples for CI servers in docs/ci are executed as they stand, on files of sample_traces."""

from __future__ import annotations

import os
import re
import shutil
import subprocess
import sys
import zipfile
from pathlib import Path
from xml.etree import ElementTree as ET

import pytest
import yaml
from tests.samples import SAMPLES

ROOT = Path(__file__).parent.parent.parent.parent
CI = ROOT / "docs" / "ci"
SAMPLE = SAMPLES / "dynamo-hosttier" / "raw"
COUNTS = "".join(f'[[exact]]\nmetric = "{name}"\n' for name in ("failed", "hung", "losses"))
"""What one run a side can be held against: counts that must not move."""


def record(folder: Path, *, torn: bool = False) -> None:
    """A recorded round: spans of a sample, and of a torn one a line that was cut off."""
    folder.mkdir(parents=True)
    shutil.copy(SAMPLE / "otlp-traces.jsonl", folder)
    if torn:
        with (folder / "otlp-traces.jsonl").open("a") as file:
            file.write('{"resourceSpans": [\n')


@pytest.fixture
def place(tmp_path: Path) -> Path:
    """A checkout with recorded/base and recorded/head, and the commands that the examples call."""
    for side in ("base", "head"):
        record(tmp_path / "recorded" / side / "1")
    shutil.copytree(CI, tmp_path / "docs" / "ci")
    (tmp_path / "counts.toml").write_text(COUNTS)
    commands = tmp_path / "bin"
    commands.mkdir()
    for name, what in (("kvtrace", "-m kvtrace"), ("python", "")):
        (commands / name).write_text(f'#!/bin/sh\nexec "{sys.executable}" {what} "$@"\n')
        (commands / name).chmod(0o755)
    return tmp_path


def tear(place: Path) -> None:
    shutil.rmtree(place / "recorded" / "head")
    record(place / "recorded" / "head" / "1", torn=True)


def call(place: Path, *command: str, **variables: str) -> subprocess.CompletedProcess[str]:
    """Run in the checkout; pip finds no index, so that nothing is ever fetched."""
    path = f"{place / 'bin'}{os.pathsep}{os.environ['PATH']}"
    environment = {**os.environ, "PATH": path, "PYTHONPATH": str(ROOT), "PIP_NO_INDEX": "1", **variables}
    return subprocess.run(
        command, cwd=place, env=environment, capture_output=True, text=True, check=False, timeout=300
    )


def wheel(folder: Path) -> Path:
    """A folder with a wheel that stands for the published one: this checkout and what it is run with."""
    folder.mkdir()
    paths = [str(ROOT), *(path for path in sys.path if path.endswith("-packages"))]
    info = "kvtrace-1.dist-info"
    with zipfile.ZipFile(folder / "kvtrace-1-py3-none-any.whl", "w") as file:
        file.writestr("kvtrace-checkout.pth", "\n".join(paths))
        file.writestr(f"{info}/METADATA", "Metadata-Version: 2.1\nName: kvtrace\nVersion: 1\n")
        file.writestr(f"{info}/WHEEL", "Wheel-Version: 1.0\nRoot-Is-Purelib: true\nTag: py3-none-any\n")
        file.writestr(f"{info}/entry_points.txt", "[console_scripts]\nkvtrace = kvtrace.cli:main\n")
        file.writestr(f"{info}/RECORD", "")
    return folder


def workflow() -> dict:
    return yaml.safe_load((CI / "kvtrace-diff.yml").read_text())


def play(place: Path) -> int:
    """The workflow's own commands, in order, as its runner starts them; the first that fails ends it."""
    job = workflow()["jobs"]["diff"]
    assert job["defaults"]["run"]["shell"] == "bash"
    (place / "bin" / "kvtrace").unlink()  # the one that the workflow installs is called
    put_first = place / "path"
    put_first.touch()
    own = {**job["env"], "GATES": "counts.toml", "GITHUB_STEP_SUMMARY": str(place / "summary.md"),
           "GITHUB_PATH": str(put_first), "RUNNER_TEMP": str(place / "temp"),
           "PIP_FIND_LINKS": str(wheel(place / "wheels")), "PIP_REQUIRE_VIRTUALENV": "1",
           "PYTHONPATH": ""}  # fmt: skip
    for step in job["steps"]:
        if "run" in step:
            first = [*put_first.read_text().splitlines()[::-1], str(place / "bin"), os.environ["PATH"]]
            done = call(
                place, "bash", "--noprofile", "--norc", "-eo", "pipefail", "-c", step["run"],
                **own, PATH=os.pathsep.join(first),
            )  # fmt: skip
            if done.returncode:
                return done.returncode
    return 0


def verdicts(file: Path) -> dict[str, str]:
    """Test case -> failure, error, skipped or passed."""
    suites = ET.fromstring(file.read_bytes())
    cases = {
        str(case.get("name")): next((child.tag for child in case if child.tag != "system-out"), "passed")
        for case in suites.iter("testcase")
    }
    assert int(suites.get("tests", "")) == len(cases)
    return cases


def test_the_workflow_passes_what_did_not_change_and_leaves_a_summary_and_junit(place: Path) -> None:
    assert play(place) == 0
    assert (place / "summary.md").read_text().startswith("### kvtrace diff: pass\n")
    assert verdicts(place / "kvtrace.xml") == dict.fromkeys(("failed", "hung", "losses"), "passed")


def test_the_workflow_fails_a_regression_after_it_wrote_the_summary_and_junit(place: Path) -> None:
    tear(place)
    assert play(place) == 1
    assert (place / "summary.md").read_text().startswith("### kvtrace diff: regression\n")
    assert verdicts(place / "kvtrace.xml")["losses"] == "failure"


def test_the_workflow_gives_no_more_rights_than_reading_and_pins_every_action() -> None:
    assert workflow()["permissions"] == {"contents": "read"}
    uses = [step["uses"] for step in workflow()["jobs"]["diff"]["steps"] if "uses" in step]
    assert uses
    assert all(re.fullmatch(r"[\w-]+/[\w-]+@[0-9a-f]{40}", each) for each in uses)
    (kept,) = [step for step in workflow()["jobs"]["diff"]["steps"] if "with" in step]
    assert (kept["if"], kept["with"]["path"]) == ("always()", "kvtrace.xml")
    runs = "".join(step.get("run", "") for step in workflow()["jobs"]["diff"]["steps"])
    assert "${{" not in runs  # what others named is never pasted into a command


def test_the_shell_example_says_what_got_worse_and_what_nobody_can_say(place: Path) -> None:
    tear(place)
    worse = call(place, "docs/ci/diff.sh", "recorded/base", "recorded/head", "out")
    assert worse.returncode == 1
    assert r"it takes 3\+3 runs" in worse.stdout  # the gates of time, of one run a side
    assert worse.stdout == (place / "out" / "summary.md").read_text()
    found = verdicts(place / "out" / "kvtrace.xml")
    assert (found["losses"], found["ttft_ns"]) == ("failure", "error")


def test_the_shell_example_stops_at_bad_input_without_a_summary(place: Path) -> None:
    nothing = call(place, "docs/ci/diff.sh", "recorded/none", "recorded/head", "out")
    assert (nothing.returncode, "does not exist" in nothing.stderr) == (2, True), nothing.stderr
    assert not (place / "out" / "summary.md").exists()


@pytest.mark.parametrize(("code", "told"), [(0, 0), (1, 1), (2, 255), (3, 125), (4, 125)])
def test_bisecting_skips_what_cannot_be_said_and_stops_at_bad_input(
    place: Path, code: int, told: int
) -> None:
    (place / "docs" / "ci" / "diff.sh").write_text(f"#!/bin/sh\ntest -d $2 && exit {code}\n")
    (place / "measure").write_text("#!/bin/sh\nmkdir $1\n")
    (place / "measure").chmod(0o755)
    assert call(place, "docs/ci/bisect.sh", "recorded/base", "./measure").returncode == told
    (place / "measure").write_text("#!/bin/sh\nexit 1\n")
    assert call(place, "docs/ci/bisect.sh", "recorded/base", "./measure").returncode == 125


@pytest.mark.parametrize("measure", ["./mesure", "./measure --fast", "./plain"])
def test_bisecting_stops_where_there_is_no_such_command_to_measure_with(place: Path, measure: str) -> None:
    (place / "measure").write_text("#!/bin/sh\nexit 127\n")  # what this commit does not have: skip it
    (place / "measure").chmod(0o755)
    (place / "plain").write_text("not executable")
    assert call(place, "docs/ci/bisect.sh", "recorded/base", "./measure").returncode == 125
    found = call(place, "docs/ci/bisect.sh", "recorded/base", measure)
    assert (found.returncode, f"{measure}: is no command" in found.stderr) == (255, True)


def test_git_bisect_finds_the_commit_that_made_it_worse(place: Path) -> None:
    tear(place)
    shutil.move(place / "recorded" / "head" / "1", place / "torn")
    measure = place / "measure"
    measure.write_text(
        f'#!/bin/sh\nmkdir "$1" && cp -r "{place}/$(cat what)" "$1/1"\n'  # records what is checked out
    )
    measure.chmod(0o755)
    repository = place / "repository"
    repository.mkdir()
    git = ("git", "-C", str(repository), "-c", "user.name=n", "-c", "user.email=e@example.invalid")
    call(place, *git, "init", "-q")
    for number, what in enumerate(("recorded/base/1", "torn", "torn")):
        (repository / "what").write_text(what)
        (repository / "number").write_text(str(number))
        call(place, *git, "add", "-A")
        assert call(place, *git, "commit", "-q", "-m", f"commit {number}").returncode == 0
    call(place, *git, "bisect", "start", "HEAD", "HEAD~2")
    asked = (place / "docs/ci/bisect.sh", place / "recorded/base", measure)
    found = call(place, *git, "bisect", "run", *map(str, asked), GATES=str(place / "counts.toml"))
    assert "is the first bad commit" in found.stdout, found.stdout + found.stderr
    assert "    commit 1" in found.stdout


@pytest.mark.parametrize("file", ["gates.toml", "diff.sh", "bisect.sh", "kvtrace-diff.yml"])
def test_the_page_shows_the_files_as_they_are(file: str) -> None:
    assert (CI / file).read_text() in (ROOT / "docs" / "diff.md").read_text()
