"""Prints how large buffers have to be: python -m symrail.ep --ranks 8 --tokens 128 --hidden 7168 --experts 256"""

from __future__ import annotations

import argparse

from . import Buffer, Config


def sizes(ranks: int, tokens: int, hidden: int, experts: int) -> str:
    """Bytes of each rank's heap for both ways, as text."""
    high = Config().get_nvl_buffer_size_hint(2 * hidden, ranks)
    low = Buffer.get_low_latency_rdma_size_hint(tokens, hidden, ranks, experts)
    lines = [
        f"high throughput, any number of tokens of {hidden} bfloat16: num_nvl_bytes  {high:>14,}",
        f"low latency, at most {tokens} tokens of each rank:         num_rdma_bytes {low:>14,}",
        f"both, as heap_bytes of symrail.init at least:              {high + low + (4 << 20):>29,}",
    ]
    return "\n".join(lines)


def main() -> None:
    parser = argparse.ArgumentParser(prog="python -m symrail.ep", description=__doc__)
    parser.add_argument("--ranks", type=int, required=True)
    parser.add_argument("--tokens", type=int, default=128, help="of each rank in a low-latency call")
    parser.add_argument("--hidden", type=int, default=7168, help="elements of a token")
    parser.add_argument("--experts", type=int, default=256)
    found = parser.parse_args()
    print(sizes(found.ranks, found.tokens, found.hidden, found.experts))


if __name__ == "__main__":
    main()
