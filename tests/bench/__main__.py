"""``python -m tests.bench``: see the command."""

import signal
import sys

from tests.bench.command import main

if __name__ == "__main__":
    signal.signal(signal.SIGTERM, lambda signum, frame: sys.exit(128 + signum))  # and clean up on the way
    sys.exit(main())
