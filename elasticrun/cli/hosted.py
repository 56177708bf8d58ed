"""What ``elastic-ctl launch`` starts on each host: see ``platforms/remote.py``."""

# ruff: noqa: E402 the directory of the login may hide whatever is imported

from __future__ import annotations

from elasticrun.cli.isolation import isolate

isolate()

import os
import sys

from elasticrun.platforms.remote import keep

if __name__ == "__main__":
    sys.exit(keep(os.environ))
