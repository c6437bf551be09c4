"""Whatever comes in or wherever it should go: one sentence, and nothing half-written."""

from __future__ import annotations

import gzip
import os
import random
import subprocess
import sys
from functools import cache
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import TYPE_CHECKING

import pytest
from kvtrace.errors import InputError, KvtraceError, RunError, RunExistsError, UnknownFormatError, UsageError
from kvtrace.importer import FORMATS, import_files
from tests.unit.importer.drawn import (
    ENCODINGS,
    EXTERNAL,
    INTERNAL,
    hash_log,
    imported,
    lines,
    llm_request,
    losses,
    op,
    query,
    written,
    zstd,
)

if TYPE_CHECKING:
    from collections.abc import Iterator

ROOT = Path(__file__).parents[3]
GOOD = lines(llm_request(EXTERNAL, 10, 100, queue_ms=5), op("wait", 40, 41, None, reason="load"))
MIB = 1 << 20


def refused(*inputs: Path, out: Path, kind: type[KvtraceError] = InputError, **options: object) -> str:
    """The one sentence; nothing appeared beside `out` or in its place."""
    before = sorted(out.parent.iterdir()) if out.parent.is_dir() else None
    with pytest.raises(kind) as caught:
        import_files(list(inputs), out, **options)  # type: ignore[arg-type]
    if before is not None:
        assert sorted(out.parent.iterdir()) == before
    sentence = str(caught.value)
    assert "\n" not in sentence
    assert sentence.endswith(".")
    return sentence


def test_no_input_is_an_error(tmp_path: Path) -> None:
    assert "no input" in refused(out=tmp_path / "run")


def test_a_missing_file_is_named(tmp_path: Path) -> None:
    good = written(tmp_path / "good", GOOD)
    assert "gone.binpb: does not exist" in refused(good, tmp_path / "gone.binpb", out=tmp_path / "run")


def test_an_empty_file_alone_is_nothing_to_import(tmp_path: Path) -> None:
    assert "nothing (empty)" in refused(written(tmp_path / "nothing", b""), out=tmp_path / "run")


def test_an_empty_file_beside_others_is_left_out(tmp_path: Path) -> None:
    run = imported(tmp_path, GOOD, b"")
    assert [entry["format"] for entry in run.meta["inputs"]] == ["otlp-json", "empty"]
    assert losses(run) == []


def test_an_empty_folder_is_nothing_to_import(tmp_path: Path) -> None:
    (tmp_path / "folder").mkdir()
    assert "empty folder" in refused(tmp_path / "folder", out=tmp_path / "run")


def test_a_folder_of_unknown_files_names_them(tmp_path: Path) -> None:
    folder = tmp_path / "folder"
    folder.mkdir()
    written(folder / "notes.txt", b"text\n")
    assert "notes.txt (unknown)" in refused(folder, out=tmp_path / "run")


LCT = b"\x83\xa4type\xa6header\xa5magic\xc4\x04LMCT" + b"x" * 200
BROKEN = {
    "storage.lct": (900).to_bytes(4, "big") + LCT,
    "joined.lct": (128).to_bytes(4, "big") + LCT,
    "recording.json": b'{"captured": 1, "scenario": "x", ',
}
"""Files that show what they are and cannot be read."""


@pytest.mark.parametrize("name", BROKEN)
def test_a_broken_file_in_a_folder_is_left_out_and_a_loss(tmp_path: Path, name: str) -> None:
    (tmp_path / "folder").mkdir()
    broken = written(tmp_path / "folder" / name, BROKEN[name])
    assert name in refused(broken, out=tmp_path / "run")
    written(tmp_path / "folder" / "good", GOOD)
    run = imported(tmp_path / "beside", tmp_path / "folder")
    ((source, cause, detail),) = run.sql("SELECT source, cause, detail FROM loss").rows()
    assert (source, cause) == (name, "undecodable")
    assert str(tmp_path) not in detail


@pytest.mark.parametrize(
    "content",
    [b"text\n", b"\x89PNG\r\n", b"PAR1" + bytes(50), b'{"resourceLogs":[]}', bytes(4096), b"{}", b"[1,2]"],
)
def test_an_unknown_file_given_by_name_is_an_error_that_names_it(tmp_path: Path, content: bytes) -> None:
    strange, good = written(tmp_path / "strange file", content), written(tmp_path / "good", GOOD)
    sentence = refused(good, strange, out=tmp_path / "run", kind=UnknownFormatError)
    assert str(strange) in sentence
    assert "--format" in sentence


def test_a_format_that_does_not_exist_is_an_error_that_lists_them(tmp_path: Path) -> None:
    sentence = refused(written(tmp_path / "good", GOOD), out=tmp_path / "run", kind=UsageError, format="xml")
    assert all(name in sentence for name in FORMATS)


@pytest.mark.parametrize("form", ["auto", *FORMATS])
def test_random_bytes_are_refused_in_every_format(tmp_path: Path, form: str) -> None:
    noise = written(tmp_path / "noise", random.Random(5).randbytes(100_000))
    refused(noise, out=tmp_path / "run", format=form)


@pytest.mark.parametrize("form", FORMATS)
def test_a_good_file_read_in_a_format_that_it_is_not_is_refused(tmp_path: Path, form: str) -> None:
    content = hash_log((INTERNAL, 12, 5)) if form.startswith(("otlp", "recording")) else GOOD
    refused(written(tmp_path / "file", content), out=tmp_path / "run", format=form)


@cache
def noisy(encoding: str, count: int) -> bytes:
    rng = random.Random(7)
    return ENCODINGS[encoding](
        *(op("load", 10 + n, 11 + n, more={"noise": rng.randbytes(20).hex()}) for n in range(count))
    )


@pytest.mark.parametrize("encoding", [name for name in ENCODINGS if not name.startswith("body")])
@pytest.mark.parametrize("part", [0.5, 0.9, 0.999])
def test_a_cut_file_keeps_what_came_before_and_says_what_is_lost(
    tmp_path: Path, encoding: str, part: float
) -> None:
    count, whole = 2_000, noisy(encoding, 2_000)
    run = imported(tmp_path, whole[: int(len(whole) * part) - 7])
    ((kept,),) = query(run, "SELECT count(*) FROM span")
    assert 0.4 * count * part < kept < count
    assert [(cause, lost > 0) for cause, _, lost in losses(run)] == [("undecodable", True)]


@pytest.mark.parametrize("encoding", ["body", "body, gzip", "body, zstd"])
def test_a_cut_body_is_refused_alone_and_counted_beside_others(tmp_path: Path, encoding: str) -> None:
    whole = ENCODINGS[encoding](*(op("load", 10 + n, 11 + n) for n in range(200)))
    (tmp_path / "folder").mkdir()
    cut = written(tmp_path / "folder" / "cut", whole[: len(whole) // 2])
    assert "undecodable" in refused(cut, out=tmp_path / "run", format="otlp-proto-body")
    written(tmp_path / "folder" / "good", GOOD)
    run = imported(tmp_path / "beside", tmp_path / "folder")
    assert query(run, "SELECT count(*) FROM span") == [(3,)]
    assert [(cause, lost > 0) for cause, _, lost in losses(run)] == [("undecodable", True)]


def test_a_broken_line_between_good_ones_is_counted(tmp_path: Path) -> None:
    run = imported(
        tmp_path,
        GOOD + b'{"resourceSpans":[{"scopeSpans": 7}]}\n' + GOOD[:50] + b"\n" + lines(op("load", 1, 2)),
    )
    assert query(run, "SELECT count(*) FROM span") == [(4,)]
    assert losses(run) == [("undecodable", None, 2)]


def child(script: str, *arguments: object, prefix: tuple[str, ...] = ()) -> list[str]:
    """Lines that a child process prints."""
    done = subprocess.run(
        [*prefix, sys.executable, "-c", script, *map(str, arguments)], cwd=ROOT, check=False, text=True,
        env={**os.environ, "PYTHONPATH": str(ROOT)}, capture_output=True, timeout=120,
    )  # fmt: skip
    assert done.returncode == 0, done.stderr
    return done.stdout.splitlines()


STOPPED = "expands more than 1000 times: reading stopped"
ZEROS = "nothing but zeros where frames should be: the rest is not read"
BOMBS = {
    "json gzip": ("otlp-json", b'{"resourceSpans": [', "refused InputError 0"),
    "line zstd": ("otlp-json", GOOD, f"3; rows; {STOPPED}"),
    "frames gzip": ("otlp-proto-frames", ENCODINGS["frames"](op("load", 1, 2)), f"1; rows; {ZEROS}"),
    "body zstd": ("otlp-proto-body", ENCODINGS["body"](op("load", 1, 2)), "refused InputError 0"),
    "log gzip": (
        "lmcache-hash-log",
        hash_log((INTERNAL, 12, 5)),
        f"5; rows; {STOPPED}",
    ),
}
EXPLODE = """
import sys
from pathlib import Path
import pyarrow.parquet as pq
from kvtrace.errors import KvtraceError
from kvtrace.importer import import_files
folder = Path(sys.argv[1])
for number, form in enumerate(sys.argv[2:]):
    try:
        rows = import_files([folder / str(number)], folder / f"run-{number}", format=form).rows
        lost = pq.read_table(folder / f"run-{number}" / "loss")["detail"].to_pylist()
        print(rows.get("span", 0) + rows.get("request_key", 0), "rows", *sorted(lost), sep="; ")
    except KvtraceError as error:
        print("refused", type(error).__name__, str(error).count("\\n"))
peak, = (line.split()[1] for line in open("/proc/self/status") if line.startswith("VmHWM"))
print(int(peak) // 1024)
"""


def test_bombs_of_a_gibibyte_stay_within_limits(tmp_path: Path) -> None:
    zeros = {"gzip": gzip.compress(bytes(16 * MIB)) * 64, "zstd": zstd(bytes(16 * MIB)) * 64}
    for number, (bomb, (_, head, _)) in enumerate(BOMBS.items()):
        pack = bomb.split()[1]
        written(tmp_path / str(number), (gzip.compress(head) if pack == "gzip" else zstd(head)) + zeros[pack])
    *said, peak_mib = child(EXPLODE, tmp_path, *(form for form, _, _ in BOMBS.values()))
    for line, (_, _, good) in zip(said, BOMBS.values(), strict=True):
        assert line.startswith(good)
    assert int(peak_mib) < 700
    assert not list(tmp_path.glob(".*"))


def test_a_bomb_of_nothing_but_zeros_is_nothing_that_we_know(tmp_path: Path) -> None:
    path = written(tmp_path / "bomb", gzip.compress(bytes(16 * MIB)) * 64)
    assert "nothing that kvtrace knows" in refused(path, out=tmp_path / "run", kind=UnknownFormatError)


@pytest.mark.parametrize("there", ["folder", "file", "dangling link", "link to a folder"])
def test_an_out_that_exists_is_refused_and_left_as_it_is(tmp_path: Path, there: str) -> None:
    out = tmp_path / "out"
    if there == "folder":
        out.mkdir()
        written(out / "precious", b"data")
    elif there == "file":
        written(out, b"data")
    else:
        out.symlink_to(tmp_path / "nowhere" if there.startswith("dangling") else tmp_path)
    sentence = refused(written(tmp_path / "good", GOOD), out=out, kind=RunExistsError)
    assert "nothing is written over" in sentence
    if there == "folder":
        assert (out / "precious").read_bytes() == b"data"


@pytest.mark.parametrize("out", ["/dev/full", "/dev/null"])
def test_a_device_is_no_place_for_a_run(tmp_path: Path, out: str) -> None:
    with pytest.raises(RunExistsError):
        import_files([written(tmp_path / "good", GOOD)], Path(out))


@pytest.mark.parametrize("out", ["/dev/full/run", "/proc/kvtrace/run", "/sys/kvtrace-run"])
def test_a_place_that_holds_no_folders_is_an_error(tmp_path: Path, out: str) -> None:
    with pytest.raises(RunError, match="cannot be made") as caught:
        import_files([written(tmp_path / "good", GOOD)], Path(out))
    assert "\n" not in str(caught.value)
    assert not Path(out).exists()


def test_a_name_that_is_too_long_is_an_error(tmp_path: Path) -> None:
    refused(written(tmp_path / "good", GOOD), out=tmp_path / ("x" * 250), kind=RunError)


def test_folders_above_a_refused_run_are_not_left_behind(tmp_path: Path) -> None:
    with pytest.raises(InputError):
        import_files([tmp_path / "gone"], tmp_path / "new" / "deep" / "run")
    assert list(tmp_path.iterdir()) == []


def test_paths_with_spaces_and_quotes_are_only_paths(tmp_path: Path) -> None:
    folder = tmp_path / 'it\'s "a" folder; -- %s'
    folder.mkdir()
    run = imported(folder, written(folder / "in 'put' \"1\".jsonl", GOOD))
    (folder / "run-1").rename(folder / "a 'run' \"here\"")
    from kvtrace.run import open_run

    run = open_run(folder / "a 'run' \"here\"")
    assert query(run, "SELECT count(*) FROM request") == [(1,)]
    assert import_files([run.path], folder / "it's again").rows["span"] == 3


RIGHTS = """
import os, sys
from pathlib import Path
from kvtrace.errors import KvtraceError
from kvtrace.importer import import_files
folder = Path(sys.argv[1])
import_files([folder / "good"], folder / "warm")
os.setgroups([]), os.setgid(65534), os.setuid(65534)
for name, out in (("good", "run"), ("secret", "open/run"), ("closed/x", "open/run"),
                  ("good", "closed/run"), ("good", "open/run")):
    try:
        import_files([folder / name], folder / out)
        print("written")
    except (KvtraceError, OSError) as error:
        print(type(error).__name__, str(error).count("\\n"), str(error))
"""


@pytest.fixture(scope="module")
def of_nobody() -> Iterator[list[str]]:
    """What a user without rights is told, about closed places, files and folders, and about none of them."""
    if os.geteuid() != 0:
        pytest.skip("needs a user who can become another one: root")
    with TemporaryDirectory() as name:  # pytest closes its own folders to others whenever it starts
        folder = Path(name)
        folder.chmod(0o755)
        written(folder / "good", GOOD)
        written(folder / "secret", GOOD).chmod(0)
        (folder / "closed").mkdir(mode=0o700)
        (folder / "open").mkdir()
        (folder / "open").chmod(0o777)
        said = child(RIGHTS, folder)
        assert sorted(path.name for path in folder.iterdir()) == ["closed", "good", "open", "secret", "warm"]
        assert [path.name for path in (folder / "open").iterdir()] == ["run"]
        assert list((folder / "closed").iterdir()) == []
        yield said


def test_without_rights_nothing_is_written_and_nothing_closed_is_read(of_nobody: list[str]) -> None:
    read_only, secret, below_closed, _, at_last = of_nobody
    assert read_only.startswith("RunError 0 ")
    assert "ermission denied" in read_only
    assert secret.startswith("InputError 0 ")
    assert "secret: cannot be read (Permission denied)" in secret
    assert below_closed.startswith("InputError 0 ")
    assert "closed/x" in below_closed
    assert at_last == "written"


def test_an_out_below_a_closed_folder_is_what_the_sentence_names(of_nobody: list[str]) -> None:
    assert of_nobody[3].startswith("RunError 0 ")
    assert "closed/run" in of_nobody[3]


FULL = """
import resource, signal, sys
from pathlib import Path
from kvtrace.errors import KvtraceError
from kvtrace.importer import import_files
signal.signal(signal.SIGXFSZ, signal.SIG_IGN)
for limit, place in zip(map(int, sys.argv[2].split()), sys.argv[3:]):
    resource.setrlimit(resource.RLIMIT_FSIZE, (limit or -1, -1))
    try:
        import_files([Path(sys.argv[1])], Path(place) / "run")
        print("written")
    except KvtraceError as error:
        print(type(error).__name__, str(error).count("\\n"), str(error), *Path(place).iterdir())
"""
NOISE = random.Random(3)
LARGE = lines(
    *(op("load", 10 + n, 11 + n, more={"n": NOISE.randbytes(60).hex()}) for n in range(5_000)), a_line=500
)


def test_a_file_that_may_not_grow_leaves_nothing(tmp_path: Path) -> None:
    path = written(tmp_path / "large", LARGE)
    (tmp_path / "place").mkdir()
    limits = "1 4096 65536 300000"
    said = child(FULL, path, limits, *[tmp_path / "place"] * 4)
    wanted = f"RunError 0 {tmp_path}/place/run"
    assert [(line.startswith(wanted), "File too large" in line, line[-1]) for line in said] == [
        (True, True, ".")
    ] * 4


def test_a_full_disk_leaves_nothing(tmp_path: Path) -> None:
    path = written(tmp_path / "large", LARGE)
    sizes = ("4k", "32k", "64k", "200k")
    places = [tmp_path / size for size in sizes]
    for place in places:
        place.mkdir()
    mounts = " && ".join(f'mount -t tmpfs -o size={size} full "{tmp_path}/{size}"' for size in sizes)
    mounted = ("unshare", "--mount", "sh", "-c", f'{mounts} && exec "$@"', "sh")
    probe = subprocess.run([*mounted, "true"], capture_output=True, text=True, check=False)
    if probe.returncode:
        pytest.skip(f"no file system can be mounted here: {probe.stderr.strip()}")
    said = child(FULL, path, "0 0 0 0", *places, prefix=mounted)
    assert [line.startswith(f"RunError 0 {place}/run") for line, place in zip(said, places, strict=True)] == [
        True
    ] * 4
    assert all("No space left on device" in line and line.endswith(".") for line in said)


def test_an_interrupted_import_leaves_nothing(tmp_path: Path) -> None:
    def interrupt(_path: Path, done: int, _size: int) -> None:
        if done:
            raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        import_files([written(tmp_path / "good", GOOD)], tmp_path / "run", on_progress=interrupt)
    assert [path.name for path in tmp_path.iterdir()] == ["good"]


@pytest.mark.parametrize(
    ("content", "why"),
    [
        ("a log\n".encode("utf-16"), "is UTF-16; write it as UTF-8"),
        (gzip.compress(gzip.compress(GOOD)), "is compressed twice; decompress it once"),
        (gzip.compress(zstd(GOOD)), "is compressed twice; decompress it once"),
        (b"a log\n", "is nothing that kvtrace knows"),
    ],
)
def test_what_keeps_a_file_from_being_known_is_said(tmp_path: Path, content: bytes, why: str) -> None:
    (tmp_path / "f").write_bytes(content)
    assert why in refused(tmp_path / "f", out=tmp_path / "run", kind=UnknownFormatError)
