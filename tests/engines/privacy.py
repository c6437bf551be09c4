"""Nothing of this machine may be in a recording: no local path, no host name, no home."""

from __future__ import annotations

import json
import socket
import subprocess
from pathlib import Path

SCRUB = Path(__file__).parent / "otlp_scrub.py"
LOCAL_PATHS = ("/tmp", "/root", "/home", "/work", "/usr", "/var", "/opt", "/Users")
SHORT_HOST_NAME = 4


def scrub(spans: Path, *, python: Path) -> dict[str, int]:
    """Takes local paths out of recorded spans; says which attributes went, and how often."""
    command = [str(python), str(SCRUB), str(spans)]
    done = subprocess.run(command, capture_output=True, check=True, timeout=60, text=True)
    removed: dict[str, int] = json.loads(done.stdout)
    return removed


def require_private(raw: Path) -> None:
    """Raises when a file of `raw` names a place on this machine.

    A host name of a few letters (`vm`) occurs in random bytes: it is looked for as a JSON string only.
    """
    host = socket.gethostname()
    words = [*LOCAL_PATHS, str(Path.home()), host if len(host) > SHORT_HOST_NAME else f'"{host}"']
    for path in sorted(each for each in raw.rglob("*") if each.is_file()):
        content = path.read_bytes()
        if found := [word for word in words if word.encode() in content]:
            raise RuntimeError(f"{path} names {', '.join(found)}; record it relative, or scrub it")
