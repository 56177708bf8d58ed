"""Print, as one line of JSON, what the launcher gave to this worker; needs neither torch nor a network.

elastic-run --standalone --nproc-per-node 2 examples/torch/env_report.py --any arguments
"""

from __future__ import annotations

import json
import os
import sys
from pathlib import Path

#: What a launcher may set for a worker, besides everything that starts with TORCHELASTIC_.
NAMES = (
    "RANK",
    "LOCAL_RANK",
    "GROUP_RANK",
    "ROLE_RANK",
    "ROLE_NAME",
    "WORLD_SIZE",
    "LOCAL_WORLD_SIZE",
    "GROUP_WORLD_SIZE",
    "ROLE_WORLD_SIZE",
    "MASTER_ADDR",
    "MASTER_PORT",
    "TORCH_NCCL_ASYNC_ERROR_HANDLING",
    "OMP_NUM_THREADS",
    "CUDA_VISIBLE_DEVICES",
)


def report() -> dict[str, object]:
    """What this process is and what it was given."""
    names = sorted(name for name in os.environ if name in NAMES or name.startswith("TORCHELASTIC_"))
    return {
        "pid": os.getpid(),
        "python": sys.executable,
        "directory": str(Path.cwd()),
        "argv": sys.argv,
        "env": {name: os.environ[name] for name in names},
    }


if __name__ == "__main__":
    # One write, so that lines of several workers on one terminal stay whole.
    sys.stdout.write(json.dumps(report()) + "\n")
