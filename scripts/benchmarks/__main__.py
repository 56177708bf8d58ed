"""``python -m scripts.benchmarks``: see the command."""

import signal
import sys

from scripts.benchmarks.command import main

if __name__ == "__main__":
    for ends in (signal.SIGTERM, signal.SIGHUP):
        if signal.getsignal(ends) is not signal.SIG_IGN:  # as nohup sets it
            signal.signal(ends, lambda signum, frame: sys.exit(128 + signum))  # and clean up on the way
    sys.exit(main())
