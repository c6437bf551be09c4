"""Asks an engine for each prompt of a file, one after the other; no library, so that it starts at once.

python ask_script.py BASE_URL MODEL PROMPTS      the file is one of ShareGPT's form
"""

from __future__ import annotations

import json
import sys
import urllib.request
from pathlib import Path

ANSWER_TOKENS = 4


def main() -> None:
    url, model, prompts = sys.argv[1:]
    for number, entry in enumerate(json.loads(Path(prompts).read_text())):
        prompt = entry["conversations"][0]["value"]
        body = {"model": model, "prompt": prompt, "max_tokens": ANSWER_TOKENS, "ignore_eos": True}
        headers = {"Content-Type": "application/json", "X-Request-Id": f"warm-{number}"}
        asked = urllib.request.Request(f"{url}/v1/completions", json.dumps(body).encode(), headers)
        with urllib.request.urlopen(asked, timeout=120) as answer:
            assert answer.status == 200
            answer.read()


if __name__ == "__main__":
    main()
