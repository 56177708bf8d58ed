"""Train a small convolutional net on real handwritten digits with plain PyTorch DDP.

The 1,797 images of 8 x 8 pixels are the UCI digits that scikit-learn ships, so nothing is downloaded.
There is nothing in here about the launcher: the script reads the environment that `torchrun` and
`elastic-run` both set, saves a checkpoint after every epoch and, when it is started again, goes on from
the newest one.

    elastic-run --standalone --nproc-per-node 2 --max-restarts 3 examples/torch/digits.py

What makes it fit for a world that changes:

* The batch size is that of the whole world, and shuffling and augmentation are drawn from
  (seed, epoch, rank). So no random state needs saving, and a resumed run in a world of the same size
  computes exactly what an undisturbed run computes.
* The first worker of every node saves, and on start the newest checkpoint that any worker can see is sent to
  all. So the nodes need no shared disk, and any of them may be lost.
"""

from __future__ import annotations

import argparse
import math
import os
import sys
import tempfile
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import torch
import torch.distributed as dist

# DDP imports this late, and its default arguments would then hold the process group, and gloo's threads with
# it, until the interpreter is gone: now and then a finished worker would abort at exit.
import torch.distributed.nn
from sklearn.datasets import load_digits
from sklearn.model_selection import train_test_split
from torch import Tensor, nn
from torch.nn.functional import cross_entropy
from torch.nn.parallel import DistributedDataParallel
from torch.utils.data import DistributedSampler, TensorDataset

#: The held-out images are the same whatever --seed is, or accuracies could not be compared.
SPLIT_SEED = 0
TEST_FRACTION = 0.2


def parse_args() -> argparse.Namespace:
    """The command line."""
    parser = argparse.ArgumentParser(description=__doc__.split("\n", 1)[0])
    parser.add_argument("--epochs", type=int, default=20, help="passes over the training images (default 20)")
    parser.add_argument("--batch-size", type=int, default=64, help="images per step, all workers together")
    parser.add_argument("--lr", type=float, default=3e-3, help="peak learning rate (default 0.003)")
    parser.add_argument(
        "--seed", type=int, default=0, help="of the first weights, shuffling and augmentation"
    )
    parser.add_argument(
        "--checkpoint-dir",
        type=Path,
        help="go on from the checkpoint in this folder, if there is one, and save there (default: a folder "
        "of this launch, so that a restarted worker goes on and a new launch starts anew)",
    )
    return parser.parse_args()


def say(text: str) -> None:
    """Print a line in one write, so that lines of several workers on one terminal stay whole."""
    sys.stdout.write(f"{text}\n")
    sys.stdout.flush()


def launch_dir() -> Path:
    """A folder that lives as long as this launch: the one that the launcher made for its logs.

    Both launchers name error files RUN/attempt_N/LOCAL_RANK/error.json, where RUN is fresh in each launch.
    """
    error_file = os.environ.get("TORCHELASTIC_ERROR_FILE")
    if error_file:
        return Path(error_file).parents[2]
    return Path(tempfile.mkdtemp(prefix="digits-"))


def pick_device() -> torch.device:
    """A GPU of our own if every worker of this node can have one, else the CPU."""
    if torch.cuda.device_count() >= int(os.environ["LOCAL_WORLD_SIZE"]):
        return torch.device("cuda", int(os.environ["LOCAL_RANK"]))
    return torch.device("cpu")


def load_data(device: torch.device) -> tuple[TensorDataset, TensorDataset]:
    """(train, test): images of shape 1 x 8 x 8 with pixels in 0..1, and the digits they show."""
    digits = load_digits()
    images = torch.tensor(digits.images, dtype=torch.float32, device=device).unsqueeze(1) / 16
    labels = torch.tensor(digits.target, dtype=torch.long, device=device)
    train, test = train_test_split(
        torch.arange(len(labels)), test_size=TEST_FRACTION, random_state=SPLIT_SEED, stratify=digits.target
    )
    return TensorDataset(images[train], labels[train]), TensorDataset(images[test], labels[test])


def make_model() -> nn.Module:
    """Two convolutions and two linear layers; 70,000 weights."""
    return nn.Sequential(
        nn.Conv2d(1, 32, 3, padding=1),
        nn.ReLU(),
        nn.Conv2d(32, 32, 3, padding=1),
        nn.ReLU(),
        nn.MaxPool2d(2),
        nn.Flatten(),
        nn.Dropout(0.3),
        nn.Linear(32 * 4 * 4, 128),
        nn.ReLU(),
        nn.Linear(128, 10),
    )


def shift(images: Tensor) -> Tensor:
    """The images, each moved by up to one pixel in both directions."""
    count, size = len(images), images.shape[-1]
    offset = torch.randint(0, 3, (2, count, 1, 1)).to(images.device)
    pixels = torch.arange(size, device=images.device)
    rows, columns = offset[0] + pixels.view(1, -1, 1), offset[1] + pixels.view(1, 1, -1)
    padded = nn.functional.pad(images, (1, 1, 1, 1)).squeeze(1)
    return padded[torch.arange(count, device=images.device).view(-1, 1, 1), rows, columns].unsqueeze(1)


class Checkpoint:
    """The file that training goes on from: replaced in one step, so it is whole whenever we are killed."""

    def __init__(self, folder: Path) -> None:
        folder.mkdir(parents=True, exist_ok=True)
        self.path = folder / "digits.pt"

    def save(self, state: dict[str, Any]) -> None:
        """Replace the file by ``state``."""
        partial = self.path.with_name(f"{self.path.name}.{os.getpid()}")
        torch.save(state, partial)
        partial.replace(self.path)

    def load_newest(self, device: torch.device) -> dict[str, Any] | None:
        """The newest state that any worker of the world can read, the same for all; None if there is none."""
        mine: dict[str, Any] | None = None
        if self.path.exists():
            mine = torch.load(self.path, map_location="cpu", weights_only=True)
        epochs = torch.zeros(dist.get_world_size(), dtype=torch.long, device=device)
        epochs[dist.get_rank()] = mine["epoch"] if mine else 0
        dist.all_reduce(epochs)
        if epochs.max() == 0:
            return None
        state = [mine]
        dist.broadcast_object_list(state, src=int(epochs.argmax()), device=device)
        return state[0]


def batches(
    data: TensorDataset, sampler: DistributedSampler[Any], size: int
) -> Iterator[tuple[Tensor, Tensor]]:
    """This worker's share of an epoch; every worker gets as many batches of the same sizes."""
    images, labels = data.tensors
    for chosen in torch.tensor(list(sampler), device=images.device).split(size):
        yield images[chosen], labels[chosen]


def train_epoch(
    model: nn.Module, optimizer: torch.optim.Optimizer, data: Iterator[tuple[Tensor, Tensor]]
) -> float:
    """One pass over the data; the mean loss of all workers."""
    model.train()
    loss_sum, count = 0.0, 0
    for images, labels in data:
        loss = cross_entropy(model(shift(images)), labels)
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        loss_sum, count = loss_sum + loss.item() * len(labels), count + len(labels)
    totals = torch.tensor([loss_sum, count], device=images.device)
    dist.all_reduce(totals)
    return float(totals[0] / totals[1])


@torch.no_grad()
def accuracy(model: nn.Module, data: TensorDataset) -> float:
    """The fraction of images whose digit is recognised; each worker looks at its share."""
    model.eval()
    mine = slice(dist.get_rank(), None, dist.get_world_size())
    images, labels = (tensor[mine] for tensor in data.tensors)
    correct = (model(images).argmax(1) == labels).sum()
    dist.all_reduce(correct)
    return int(correct) / len(data)


def learning_rate(peak: float, epoch: int, epochs: int) -> float:
    """A cosine from ``peak`` down to almost 0; a function of the epoch, so nothing of it needs saving."""
    return peak * (1 + math.cos(math.pi * epoch / epochs)) / 2


def train(args: argparse.Namespace, device: torch.device) -> None:
    """Train from the newest checkpoint to the last epoch, then test."""
    rank, world = dist.get_rank(), dist.get_world_size()
    checkpoint = Checkpoint(args.checkpoint_dir or launch_dir())
    train_data, test_data = load_data(device)
    torch.manual_seed(args.seed)
    model = make_model().to(device)
    optimizer = torch.optim.AdamW(model.parameters(), weight_decay=1e-2)
    state = checkpoint.load_newest(device)
    if state:
        model.load_state_dict(state["model"])
        optimizer.load_state_dict(state["optimizer"])
    first = state["epoch"] if state else 0
    say(f"rank {rank} of {world}: pid {os.getpid()} on {device}, {first} of {args.epochs} epochs done before")

    parallel = DistributedDataParallel(model)
    sampler: DistributedSampler[Any] = DistributedSampler(train_data, seed=args.seed)
    for epoch in range(first, args.epochs):
        sampler.set_epoch(epoch)
        torch.manual_seed(hash((args.seed, epoch, rank)))
        optimizer.param_groups[0]["lr"] = learning_rate(args.lr, epoch, args.epochs)
        data = batches(train_data, sampler, max(1, args.batch_size // world))
        loss = train_epoch(parallel, optimizer, data)
        if os.environ["LOCAL_RANK"] == "0":
            checkpoint.save(
                {"epoch": epoch + 1, "model": model.state_dict(), "optimizer": optimizer.state_dict()}
            )
        if rank == 0:
            say(f"epoch {epoch + 1} loss {loss:.4f}")

    reached = accuracy(model, test_data)
    if rank == 0:
        say(f"test accuracy {reached:.4f}")


def main() -> None:
    """Join the world, train, leave the world."""
    args = parse_args()
    if "RANK" not in os.environ:
        sys.exit(f"start me with a launcher, for example: elastic-run --nproc-per-node 2 {sys.argv[0]}")
    device = pick_device()
    if device.type == "cuda":
        torch.cuda.set_device(device)
    dist.init_process_group("nccl" if device.type == "cuda" else "gloo")
    train(args, device)
    dist.destroy_process_group()


if __name__ == "__main__":
    main()
