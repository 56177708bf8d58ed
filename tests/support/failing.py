"""A worker that fails in a known way, by the number of the round.

    failing.py WHAT...

``WHAT`` of round 0, of round 1, and so on: ``raise:N`` raises after N steps, ``exit:N`` exits with N before
any step, ``eat`` takes memory until somebody stops it. A round for which nothing is said ends well.
"""

from __future__ import annotations

import os
import sys

import elasticrun

CHUNK = 1 << 20


def raise_after(steps: int) -> None:
    for _ in range(steps):
        elasticrun.report_step()
    raise ValueError("no such layer: 7")


def eat() -> None:
    kept = []
    while True:
        kept.append(bytearray(os.urandom(CHUNK)))  # pages that can be neither shared nor left out


def main() -> None:
    round_ = int(os.environ["ELASTICRUN_ROUND"])
    what, _, number = (*sys.argv[1:], *[""] * (round_ + 1))[round_].partition(":")
    match what:
        case "raise":
            raise_after(int(number))
        case "exit":
            sys.exit(int(number))
        case "eat":
            eat()


if __name__ == "__main__":
    main()
