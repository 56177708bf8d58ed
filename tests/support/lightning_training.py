"""A few steps with Lightning; rank 1 is killed in the first round. A script, and a module with ``train``."""

from __future__ import annotations

import os
import signal
from typing import Any

import lightning
import torch
from torch import Tensor
from torch.utils.data import DataLoader, TensorDataset


class Model(lightning.LightningModule):
    """One layer."""

    def __init__(self) -> None:
        super().__init__()
        self.layer = torch.nn.Linear(2, 1)

    def training_step(self, batch: tuple[Tensor, Tensor], batch_idx: int) -> Tensor:
        if batch_idx == 2 and os.environ["RANK"] == "1" and os.environ["ELASTICRUN_ROUND"] == "0":
            os.kill(os.getpid(), signal.SIGKILL)
        inputs, wanted = batch
        loss: Tensor = (self.layer(inputs) - wanted).pow(2).mean()
        return loss

    def configure_optimizers(self) -> torch.optim.Optimizer:
        return torch.optim.SGD(self.parameters(), lr=0.1)

    def on_train_end(self) -> None:
        place = f"{self.trainer.global_rank} of {self.trainer.world_size}"
        print(f"rank {place} has ended in round {os.environ['ELASTICRUN_ROUND']}\n", end="")


def untrained() -> Model:
    """The model at its start."""
    torch.manual_seed(0)
    return Model()


def first() -> Any:
    """What the model is at its start."""
    return untrained().layer.weight.tolist()


def train(strategy: str = "ddp") -> Any:
    """Returns what the model has become."""
    model = untrained()
    trainer = lightning.Trainer(
        accelerator="cpu",
        strategy=strategy,
        devices=2,
        max_epochs=1,
        logger=False,
        enable_checkpointing=False,
        enable_progress_bar=False,
        enable_model_summary=False,
    )
    data = DataLoader(TensorDataset(torch.ones(16, 2), torch.ones(16, 1)), batch_size=2)
    trainer.fit(model, data)
    return model.layer.weight.tolist()


if __name__ == "__main__":
    train()
