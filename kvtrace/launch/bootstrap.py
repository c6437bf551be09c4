"""The folder that is put first on PYTHONPATH, so that an engine finds kvtrace without an install.

    FOLDER/                        private, temporary; outlives us while a process of the command lives
        sitecustomize.py           runs in every Python of the command
        kvtrace -> the package     wherever this kvtrace runs from: a wheel, an editable install, a checkout
        kvtrace-X.dist-info/       METADATA and entry_points.txt: how vLLM finds its plugin, and LMCache
                                   one of its device plugins where that is asked for
        reached                    a line a Python that was here: pid, version, executable
        maker                      who made it: boot id, process namespace, pid, its start

Who is killed leaves it behind; a later start takes it away (sweeping.py).

It does not reach a Python started with -E, -I or -S, one whose environment was cleaned, or another machine.
"""

from __future__ import annotations

import os
from pathlib import Path

import kvtrace
from kvtrace.errors import UsageError
from kvtrace.sources.spool.liveness import own_boot_id, own_pid_namespace, start_ticks

PACKAGE = "kvtrace"
REACHED = "reached"
MAKER = "maker"
ENTRY_POINTS = """[vllm.general_plugins]
kvtrace = kvtrace.instrument.vllm:register

[opentelemetry_instrumentor]
kvtrace = kvtrace.instrument.autoinstrument.instrumentors:KvtraceInstrumentor
kvtrace_lmcache = kvtrace.instrument.autoinstrument.instrumentors:LMCacheInstrumentor
"""
DEVICE_PLUGIN = """
[lmcache.device_plugins]
kvtrace = kvtrace.instrument.lmcache.device_plugin:KvtraceSpec
"""
"""LMCache loads it in every process: an installed kvtrace therefore never declares it."""


def make(*, attach_lmcache: bool = False) -> Path:
    """Make the folder, private to the user, below the temporary folder ($TMPDIR).

    `attach_lmcache`: declare LMCache's device plugin in it.

    Raises:
        UsageError: it cannot be made, or its path cannot stand on PYTHONPATH.
    """
    parent = temporary()
    folder = parent.absolute() / f"kvtrace-{os.getpid()}-{os.urandom(6).hex()}"
    if os.pathsep in str(folder):
        raise UsageError(f"TMPDIR={parent}: PYTHONPATH cannot name a path with a colon; set another TMPDIR.")
    try:
        folder.mkdir(mode=0o700)
        _fill(folder, ENTRY_POINTS + (DEVICE_PLUGIN if attach_lmcache else ""))
    except OSError as error:
        remove(folder)
        raise UsageError(
            f"{folder}: cannot be made ({error.strerror or error}); set TMPDIR to a folder you can write."
        ) from error
    return folder


def temporary() -> Path:
    """Where such folders are made."""
    return Path(os.environ.get("TMPDIR") or "/tmp")  # noqa: S108 - as tempfile, 40 ms to import, would choose first


def _fill(folder: Path, entry_points: str) -> None:
    package = Path(kvtrace.__file__).resolve().parent
    source = Path(__file__).with_name("sitecustomize.py")
    (folder / "sitecustomize.py").write_bytes(source.read_bytes())
    (folder / REACHED).touch()
    (folder / MAKER).write_text(_maker())
    (folder / PACKAGE).symlink_to(package, target_is_directory=True)
    metadata = folder / f"{PACKAGE}-{kvtrace.__version__}.dist-info"
    metadata.mkdir()
    (metadata / "METADATA").write_text(
        f"Metadata-Version: 2.1\nName: {PACKAGE}\nVersion: {kvtrace.__version__}\n"
    )
    (metadata / "entry_points.txt").write_text(entry_points)


def _maker() -> str:
    pid = os.getpid()
    facts = (own_boot_id(), own_pid_namespace(), pid, start_ticks(pid))
    return "".join(f"{fact}\n" for fact in facts)


def remove(folder: Path) -> None:
    """Take the folder away; the link goes, never what it points to. What cannot be removed stays."""
    try:
        entries = list(os.scandir(folder))
    except OSError:
        return
    for entry in entries:
        try:
            if entry.is_dir(follow_symlinks=False):
                remove(Path(entry.path))
            else:
                Path(entry.path).unlink()
        except OSError:
            continue
    try:
        folder.rmdir()
    except OSError:
        return


def reached(folder: Path) -> list[tuple[str, str]]:
    """Version and executable of every Python that started with the folder, each once, in order."""
    return list(dict.fromkeys((version, executable) for _, version, executable in _visits(folder)))


def visitors(folder: Path) -> set[int]:
    """Process ids of every Python that started with the folder."""
    return {int(pid) for pid, _, _ in _visits(folder) if pid.isdecimal()}


def _visits(folder: Path) -> list[list[str]]:
    try:
        lines = (folder / REACHED).read_text(encoding="utf-8", errors="replace").splitlines()
    except OSError:
        return []
    return [parts for line in lines if len(parts := line.split("\t", 2)) == 3]
