"""Train on real handwritten digits with Lightning; its whole state comes back after each crash.

The 1,797 images of 8 x 8 pixels are the UCI digits that scikit-learn ships, so nothing is downloaded.

    elastic-run --standalone --nproc-per-node 2 --max-restarts 9 examples/torch/digits_lightning.py

`Keeping` is a callback of Lightning, and can be copied as it is. It saves the model, the optimizers, the
schedulers, the random state, and where Lightning's loops are. They are put back where Lightning itself
restores a checkpoint, so that it goes on within the epoch. A loader with `state_dict` and `load_state_dict`,
as `Batches` is, goes on with its next batch: Lightning keeps its position with that of the loops.

A run whose workers are killed ends with the very same bits as one that is left alone.
"""

from __future__ import annotations

import argparse
import hashlib
import os
import sys
from collections.abc import Iterator
from typing import Any

import lightning
import torch
from sklearn.datasets import load_digits
from torch import Tensor, nn
from torch.nn.functional import cross_entropy
from torch.optim.lr_scheduler import CosineAnnealingLR

from elasticrun import Checkpointer, RandomState


class Keeping(lightning.Callback):
    """Saves after each step, in memory, and goes on from there."""

    def __init__(self, keeper: Checkpointer) -> None:
        self._keeper = keeper
        self._state: dict[str, Any] = {"random": RandomState(), "loops": {}}
        self.step = 0  # that was saved or restored last

    def on_fit_start(self, trainer: lightning.Trainer, pl_module: lightning.LightningModule) -> None:
        """Put everything back: model and optimizers are set up by now, and the loops do not run yet."""
        self._state["model"] = pl_module
        for number, optimizer in enumerate(trainer.optimizers):
            self._state[f"optimizer {number}"] = optimizer
        for number, config in enumerate(trainer.lr_scheduler_configs):
            self._state[f"scheduler {number}"] = config.scheduler
        self.step = self._keeper.load(self._state)
        if self.step:
            trainer.fit_loop.load_state_dict(self._state["loops"])

    def on_train_batch_end(
        self, trainer: lightning.Trainer, pl_module: lightning.LightningModule, *_: object
    ) -> None:
        """Save, unless gradients are still being summed up: those are not in the state."""
        if trainer.global_step != self.step and self._keeper.is_due(trainer.global_step):
            self._state["loops"] = trainer.fit_loop.state_dict()
            self._keeper.save(trainer.global_step, self._state)
        self.step = trainer.global_step

    def on_fit_end(self, trainer: lightning.Trainer, pl_module: lightning.LightningModule) -> None:
        """Complete the last save."""
        self._keeper.close()


class Batches:
    """This worker's share of the images, in another order in each epoch: a loader that can be put back."""

    def __init__(self, size: int, seed: int, rank: int, world: int) -> None:
        """``size``: images in a batch, of all workers together."""
        images, labels = load_digits(return_X_y=True)
        self._images = torch.tensor(images, dtype=torch.float32) / 16
        self._labels = torch.tensor(labels)
        self._size, self._seed, self._share = size, seed, slice(rank, None, world)
        self._done = 0  # batches, of all epochs

    def __len__(self) -> int:
        """The batches of an epoch."""
        return len(self._labels) // self._size

    def __iter__(self) -> Iterator[tuple[Tensor, Tensor]]:
        """What is left of the epoch."""
        epoch = self._done // len(self)
        order = torch.randperm(
            len(self._labels), generator=torch.Generator().manual_seed(self._seed * 1_000_003 + epoch)
        )
        while self._done // len(self) == epoch:
            start = self._done % len(self) * self._size
            self._done += 1
            chosen = order[start : start + self._size][self._share]
            yield self._images[chosen], self._labels[chosen]

    def state_dict(self) -> dict[str, int]:
        """How many batches it has handed out."""
        return {"done": self._done}

    def load_state_dict(self, state: dict[str, int]) -> None:
        """Go on after these batches."""
        self._done = state["done"]


class Digits(lightning.LightningModule):
    """A small net with dropout, so that its random state matters."""

    def __init__(self, rate: float, steps: int) -> None:
        super().__init__()
        self._rate, self._steps = rate, steps
        self.layers = nn.Sequential(
            nn.Linear(64, 128), nn.ReLU(), nn.Dropout(0.2), nn.Linear(128, 64), nn.ReLU(), nn.Linear(64, 10)
        )

    def training_step(self, batch: tuple[Tensor, Tensor], batch_idx: int) -> Tensor:
        """The loss of a batch."""
        images, labels = batch
        loss = cross_entropy(self.layers(images), labels)
        if self.trainer.is_global_zero:
            say(f"step {self.trainer.global_step + 1} loss {loss.item():.4f}")
        return loss

    def configure_optimizers(self) -> Any:
        """AdamW, with a rate that falls from step to step."""
        optimizer = torch.optim.AdamW(self.parameters(), lr=self._rate)
        falling = {"scheduler": CosineAnnealingLR(optimizer, self._steps), "interval": "step"}
        return {"optimizer": optimizer, "lr_scheduler": falling}


def digest(model: nn.Module) -> str:
    """A name for all parameters, bit by bit."""
    found = hashlib.sha256()
    for value in model.state_dict().values():
        found.update(value.cpu().contiguous().view(torch.uint8).numpy().tobytes())
    return found.hexdigest()[:16]


def say(text: str) -> None:
    """Print a line in one piece: the workers share a pipe."""
    os.write(1, f"{text}\n".encode())


def main() -> None:
    """Train from the last saved step to the last one."""
    parser = argparse.ArgumentParser(description="Handwritten digits, with Lightning.")
    parser.add_argument("--epochs", type=int, default=8)
    parser.add_argument("--batch-size", type=int, default=64, help="of all workers together")
    parser.add_argument("--lr", type=float, default=2e-3)
    parser.add_argument("--seed", type=int, default=0)
    args = parser.parse_args()
    if "RANK" not in os.environ:
        sys.exit(f"start me with a launcher, for example: elastic-run --nproc-per-node 2 {sys.argv[0]}")
    rank, world = int(os.environ["RANK"]), int(os.environ["WORLD_SIZE"])
    say(f"rank {rank} of {world}: pid {os.getpid()}")
    batches = Batches(args.batch_size, args.seed, rank, world)
    torch.manual_seed(args.seed)
    model = Digits(args.lr, args.epochs * len(batches))
    torch.manual_seed(args.seed * 1_000_003 + rank)  # for dropout
    trainer = lightning.Trainer(
        accelerator="cpu",
        strategy="ddp",
        devices=int(os.environ["LOCAL_WORLD_SIZE"]),
        num_nodes=int(os.environ["GROUP_WORLD_SIZE"]),
        max_epochs=args.epochs,
        callbacks=[Keeping(Checkpointer())],
        use_distributed_sampler=False,
        logger=False,
        enable_checkpointing=False,
        enable_progress_bar=False,
        enable_model_summary=False,
    )
    trainer.fit(model, batches)
    if rank == 0:
        say(f"after step {trainer.global_step} the parameters are {digest(model)}")


if __name__ == "__main__":
    main()
