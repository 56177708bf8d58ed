"""Train a small GPT on the Python manual, its parameters sharded over all workers with FSDP2.

The text is what `help()` shows of the language: 465,000 letters in `pydoc_data.topics`, which the standard
library ships. So nothing is downloaded.

    elastic-run --standalone --nproc-per-node 2 --max-restarts 9 examples/torch/gpt.py

`elasticrun.Checkpointer` saves after each step in memory. Kill any worker, whose pids are printed: the
others stop, and all go on after the last step that all had saved. Such a run ends with the very same bits as
one that was left alone:

* What a step trains on is drawn from (seed, step) for all workers together, and each takes its share.
* What dropout draws is in the saved state, by `elasticrun.RandomState`.

In a world of another size each step trains on the same text, and the sums of its gradients are rounded in
another way.
"""

from __future__ import annotations

import argparse
import hashlib
import os
import pydoc_data.topics
import sys
from typing import Any

import torch
import torch.distributed as dist
from torch import Tensor, nn
from torch.distributed.fsdp import fully_shard
from torch.nn.functional import cross_entropy, scaled_dot_product_attention

from elasticrun import Checkpointer, RandomState

LETTERS = 128  # those of ASCII
CONTEXT = 64  # letters from which the next one is predicted
WIDTH = 64
HEADS = 4
LAYERS = 2
DROPOUT = 0.1


def parse_args() -> argparse.Namespace:
    """The command line."""
    parser = argparse.ArgumentParser(description="A small GPT, sharded with FSDP2.")
    parser.add_argument("--steps", type=int, default=200)
    parser.add_argument("--batch-size", type=int, default=32, help="of all workers together")
    parser.add_argument("--lr", type=float, default=3e-3)
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--every", default="1", help="steps from one save to the next, or auto")
    args = parser.parse_args()
    args.every = args.every if args.every == "auto" else int(args.every)
    return args


def load_text() -> Tensor:
    """The manual's pages in the order of their names, as numbers."""
    pages = "\n".join(pydoc_data.topics.topics[name] for name in sorted(pydoc_data.topics.topics))
    return torch.tensor(list(pages.encode("ascii", "ignore")))


class Block(nn.Module):
    """Each letter looks at those before it, then thinks."""

    def __init__(self) -> None:
        super().__init__()
        self.norms = nn.ModuleList(nn.LayerNorm(WIDTH) for _ in range(2))
        self.asks = nn.Linear(WIDTH, 3 * WIDTH)
        self.takes = nn.Linear(WIDTH, WIDTH)
        self.thinks = nn.Sequential(
            nn.Linear(WIDTH, 4 * WIDTH), nn.GELU(), nn.Linear(4 * WIDTH, WIDTH), nn.Dropout(DROPOUT)
        )

    def forward(self, x: Tensor) -> Tensor:
        """Map texts to texts; both are of the size (batch, letters, width)."""
        batch, letters, _ = x.shape
        split = self.asks(self.norms[0](x)).view(batch, letters, 3, HEADS, WIDTH // HEADS)
        query, key, value = split.permute(2, 0, 3, 1, 4)
        seen = scaled_dot_product_attention(query, key, value, is_causal=True)
        x = x + self.takes(seen.transpose(1, 2).reshape(batch, letters, WIDTH))
        return x + self.thinks(self.norms[1](x))  # type: ignore[no-any-return]  # modules return Any


class GPT(nn.Module):
    """Predicts the next letter at each place of a text."""

    def __init__(self) -> None:
        super().__init__()
        self.letter = nn.Embedding(LETTERS, WIDTH)
        self.place = nn.Embedding(CONTEXT, WIDTH)
        self.blocks = nn.ModuleList(Block() for _ in range(LAYERS))
        self.norm = nn.LayerNorm(WIDTH)
        self.head = nn.Linear(WIDTH, LETTERS)

    def forward(self, text: Tensor, following: Tensor) -> Tensor:
        """How far the letters that follow are from what is predicted: the loss."""
        x = self.letter(text) + self.place(torch.arange(text.shape[1], device=text.device))
        for block in self.blocks:
            x = block(x)
        return cross_entropy(self.head(self.norm(x)).flatten(0, 1), following.flatten())


def make_model(device: torch.device) -> GPT:
    """The model, of which each worker has a share."""
    model = GPT().to(device)
    for block in model.blocks:
        fully_shard(block)
    fully_shard(model)
    return model


def batch_of(text: Tensor, step: int, args: argparse.Namespace) -> tuple[Tensor, Tensor]:
    """What this worker trains on in a step: texts, and the letter after each of theirs."""
    generator = torch.Generator().manual_seed(args.seed * 1_000_003 + step)
    starts = torch.randint(len(text) - CONTEXT, (args.batch_size,), generator=generator)
    mine = starts[dist.get_rank() :: dist.get_world_size()]
    chosen = text[mine[:, None] + torch.arange(CONTEXT + 1)]
    return chosen[:, :-1], chosen[:, 1:]


def digest(model: nn.Module) -> str:
    """A name for all parameters, bit by bit. All workers have to call it."""
    found = hashlib.sha256()
    for value in model.state_dict().values():
        found.update(value.full_tensor().cpu().contiguous().view(torch.uint8).numpy().tobytes())
    return found.hexdigest()[:16]


def say(text: str) -> None:
    """Print a line in one piece: the workers share a pipe."""
    os.write(1, f"{text}\n".encode())


def train(args: argparse.Namespace, device: torch.device) -> None:
    """Train from the last saved step to the last one."""
    rank, world, text = dist.get_rank(), dist.get_world_size(), load_text()
    torch.manual_seed(args.seed)
    model = make_model(device)
    optimizer = torch.optim.AdamW(model.parameters(), lr=args.lr)
    torch.manual_seed(args.seed * 1_000_003 + rank)  # for dropout
    state: dict[str, Any] = {"model": model, "optimizer": optimizer, "random": RandomState()}
    keeper = Checkpointer(every=args.every)
    first = keeper.load(state)
    say(f"rank {rank} of {world}: pid {os.getpid()}, goes on after step {first}")
    for step in range(first + 1, args.steps + 1):
        texts, following = (tensor.to(device) for tensor in batch_of(text, step, args))
        loss = model(texts, following)
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        keeper.save(step, state)
        if rank == 0:
            say(f"step {step} loss {loss.item():.4f}")
    keeper.close()
    reached = digest(model)
    if rank == 0:
        say(f"after step {args.steps} the parameters are {reached}")


def main() -> None:
    """Join the world, train, leave the world."""
    args = parse_args()
    if "RANK" not in os.environ:
        sys.exit(f"start me with a launcher, for example: elastic-run --nproc-per-node 2 {sys.argv[0]}")
    if torch.cuda.device_count() >= int(os.environ["LOCAL_WORLD_SIZE"]):
        device = torch.device("cuda", int(os.environ["LOCAL_RANK"]))
        torch.cuda.set_device(device)
    else:
        device = torch.device("cpu")
    dist.init_process_group("nccl" if device.type == "cuda" else "gloo")
    train(args, device)
    dist.destroy_process_group()


if __name__ == "__main__":
    main()
