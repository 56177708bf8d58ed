"""A driver of Ray Train whose ranks do as ``ray_steps.py``: see ``scripts/benchmarks/ray.py``."""

from __future__ import annotations

import sys
from pathlib import Path
from typing import Any

import ray
from ray.train import FailureConfig, RunConfig, ScalingConfig
from ray.train.torch import TorchConfig, TorchTrainer


def train(config: dict[str, Any]) -> None:
    """What each rank does; Ray Train has made the group."""
    sys.path.insert(0, config["folder"])
    from scripts.benchmarks.workers.ray_steps import steps

    steps(config["fifo"])


if __name__ == "__main__":
    storage, _, fifo = sys.argv[1:]
    ray.init(address="auto", log_to_driver=False)
    TorchTrainer(
        train,
        train_loop_config={"folder": str(Path(__file__).parents[3]), "fifo": fifo},
        torch_config=TorchConfig(backend="gloo"),
        scaling_config=ScalingConfig(
            num_workers=(1, 2),  # type: ignore[arg-type] # Ray's own types lag behind what it takes
            placement_strategy="SPREAD",
        ),
        run_config=RunConfig(storage_path=storage, failure_config=FailureConfig(max_failures=-1)),
    ).fit()
