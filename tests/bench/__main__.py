"""``python -m tests.bench``: see the command."""

import sys

from tests.bench.command import main

if __name__ == "__main__":
    sys.exit(main())
