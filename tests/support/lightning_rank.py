"""Tells which rank Lightning takes it for; in the first round it then waits for its end."""

from __future__ import annotations

import os
import threading

import lightning  # noqa: F401 it is what takes long to import
import torch  # noqa: F401 without it, this would be started cold
from lightning.fabric.utilities.rank_zero import rank_zero_only

ROUND = os.environ["ELASTICRUN_ROUND"]
print(
    f"rank {os.environ['RANK']} of round {ROUND} is {os.getpid()}, for Lightning {rank_zero_only.rank}\n",
    end="",
)
if ROUND == "0":
    threading.Event().wait()
