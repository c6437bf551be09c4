"""Makes samples of what a run of Dynamo printed, without what was written and without this machine.

`python tests/engines/dynamo_clean.py RUNS SAMPLES` reads RUNS/dynamo-*/ (the folders that a run of Dynamo's
front end and mocker leaves: request-trace.jsonl, responses.jsonl, router-log.jsonl, event-plane-zmq.jsonl,
kv-events-zmq-worker.jsonl, otlp-traces.jsonl, frontend-metrics.txt, replay-report.json) and writes
SAMPLES/<name>/raw/. Prompt and answer become their number of characters, token ids their count, source files
of log lines go. Standard library alone; the descriptions are in dynamo_samples.json beside it.
"""

from __future__ import annotations

import json
import shutil
import sys
from pathlib import Path
from typing import Any

CONTENT = ("content", "text", "prompt", "arguments", "reasoning_content")
"""Names whose text, or list of parts, somebody wrote."""
WHERE = ("file", "line")
"""Names of a log line that say where in the product's source it was made."""
MAX_BYTES = 1_000_000


def main() -> None:
    """Write every sample that the descriptions name."""
    runs, samples = Path(sys.argv[1]), Path(sys.argv[2])
    described = json.loads((Path(__file__).parent / "dynamo_samples.json").read_text())
    for name, sample in described.items():
        raw = samples / name / "raw"
        raw.mkdir(parents=True, exist_ok=True)
        for file in sample["files"]:
            clean(runs / sample["run"] / file, raw / file)
        (raw / "recording.json").write_text(json.dumps(sample["recording"], indent=2) + "\n")


def clean(source: Path, target: Path) -> None:
    """One file; pages of metrics and reports hold nothing that anybody wrote."""
    if source.suffix != ".jsonl":
        shutil.copyfile(source, target)
    else:
        lines = [json.loads(line) for line in source.read_text().splitlines() if line.strip()]
        target.write_text("".join(json.dumps(scrubbed(line)) + "\n" for line in lines))
    if target.stat().st_size > MAX_BYTES:
        raise RuntimeError(f"{target}: larger than {MAX_BYTES:,} bytes; record less")


def scrubbed(value: Any) -> Any:
    """A JSON value without content; the text of a response is looked into as well."""
    if isinstance(value, list):
        return [scrubbed(item) for item in value]
    if not isinstance(value, dict):
        return value
    found = {}
    for name, item in value.items():
        if name in WHERE and "target" in value:
            continue
        if name == "token_ids" and isinstance(item, list):
            found["token_count"] = len(item)
        elif name in CONTENT and isinstance(item, str | list):
            found[name] = len(item)
        elif name == "resp" and isinstance(item, str):
            found[name] = response(item)
        else:
            found[name] = scrubbed(item)
    return found


def response(body: str) -> str:
    """The text of a response, JSON or server-sent events, without what was answered."""
    if not body.startswith("data:"):
        return json.dumps(scrubbed(json.loads(body)))
    lines = []
    for line in body.split("\n"):
        said = line.removeprefix("data:").strip()
        lines.append(f"data: {json.dumps(scrubbed(json.loads(said)))}" if said.startswith("{") else line)
    return "\n".join(lines)


if __name__ == "__main__":
    main()
