"""Run by the engines' python: vLLM's own throughput benchmark, started as its command line would start it."""

from __future__ import annotations

from vllm.benchmarks import throughput
from vllm.utils.argparse_utils import FlexibleArgumentParser


def main() -> None:
    """Parse this process's arguments and measure."""
    parser = FlexibleArgumentParser()
    throughput.add_cli_args(parser)
    throughput.main(parser.parse_args())


if __name__ == "__main__":
    main()
