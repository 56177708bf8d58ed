"""A worker that says it has begun, and ends: what a launcher costs by itself."""

import time

BEGUN = time.monotonic()

import json  # noqa: E402
import os  # noqa: E402


def main() -> None:
    event = {"what": "line", "at": BEGUN, "pid": os.getpid(), "rank": int(os.environ["RANK"])}
    with open(os.environ["BENCH_EVENTS"], "wb", buffering=0) as events:  # noqa: PTH123 pathlib costs time
        events.write(json.dumps(event).encode() + b"\n")


if __name__ == "__main__":
    main()
