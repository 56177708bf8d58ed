"""Train a small GPT-2 on the Python manual with the Trainer of Hugging Face; its state outlives each crash.

The text is what `help()` shows of the language: 465,000 letters in `pydoc_data.topics`, which the standard
library ships. The model begins with random numbers. So nothing is downloaded.

    elastic-run --standalone --nproc-per-node 2 --max-restarts 9 examples/torch/gpt_trainer.py

`Keeping` is a callback of the Trainer, and can be copied as it is. It saves the model, the optimizer, the
schedule and the random state after each step, and puts them back when training begins. The Trainer counts on
from the step that came back. The data have to go on by themselves, as `Text` does.

A run whose workers are killed ends with the very same bits as one that is left alone.
"""

from __future__ import annotations

import argparse
import hashlib
import os
import pydoc_data.topics
import sys
from collections.abc import Iterator
from tempfile import TemporaryDirectory
from typing import Any

import torch
from torch import Tensor, nn
from torch.utils.data import IterableDataset
from transformers import (
    GPT2Config,
    GPT2LMHeadModel,
    Trainer,
    TrainerCallback,
    TrainerControl,
    TrainerState,
    TrainingArguments,
)

from elasticrun import Checkpointer, RandomState

LETTERS = 128  # those of ASCII
CONTEXT = 64


class Keeping(TrainerCallback):
    """Saves after each step, in memory, and goes on from there."""

    def __init__(self, keeper: Checkpointer) -> None:
        self._keeper = keeper
        self._random = RandomState()
        self._state: dict[str, Any] = {}
        self._drawn: dict[str, Any] | None = None  # the random state to put back
        self.step = 0  # that was restored

    def on_train_begin(
        self, args: TrainingArguments, state: TrainerState, control: TrainerControl, **has: Any
    ) -> None:
        """Put everything back, and let the Trainer count on from there."""
        names = ("model", "optimizer", "lr_scheduler")
        self._state = {**{name: has[name] for name in names}, "random": self._random, "history": []}
        self.step = state.global_step = self._keeper.load(self._state)
        state.log_history = list(self._state["history"])
        self._drawn = self._random.state_dict() if self.step else None

    def on_step_begin(
        self, args: TrainingArguments, state: TrainerState, control: TrainerControl, **has: Any
    ) -> None:
        """Put the random state back once more: a loader that starts draws from it."""
        if self._drawn is not None:
            self._random.load_state_dict(self._drawn)
            self._drawn = None

    def on_step_end(
        self, args: TrainingArguments, state: TrainerState, control: TrainerControl, **has: Any
    ) -> None:
        """Save."""
        self._state["history"] = list(state.log_history)
        self._keeper.save(state.global_step, self._state)

    def on_train_end(
        self, args: TrainingArguments, state: TrainerState, control: TrainerControl, **has: Any
    ) -> None:
        """Complete the last save."""
        self._keeper.close()


class Text(IterableDataset[dict[str, Tensor]]):
    """What all workers together train on, in order: each sample follows from the seed and its number."""

    def __init__(self, batch_size: int, steps: int, seed: int, keeping: Keeping) -> None:
        """``batch_size``: of all workers together."""
        pages = "\n".join(pydoc_data.topics.topics[name] for name in sorted(pydoc_data.topics.topics))
        self._text = torch.tensor(list(pages.encode("ascii", "ignore")))
        self._batch_size, self._steps, self._seed, self._keeping = batch_size, steps, seed, keeping

    def __iter__(self) -> Iterator[dict[str, Tensor]]:
        """What is left after the step that was restored. Each worker takes its share of it."""
        for step in range(self._keeping.step, self._steps):
            generator = torch.Generator().manual_seed(self._seed * 1_000_003 + step)
            for start in torch.randint(
                len(self._text) - CONTEXT, (self._batch_size,), generator=generator
            ).tolist():
                letters = self._text[start : start + CONTEXT]
                yield {"input_ids": letters, "labels": letters}


def make_model() -> GPT2LMHeadModel:
    """A GPT-2 of two layers, with dropout."""
    sizes = {"n_layer": 2, "n_head": 4, "n_embd": 64, "n_positions": CONTEXT, "vocab_size": LETTERS}
    return GPT2LMHeadModel(GPT2Config(**sizes, bos_token_id=0, eos_token_id=0, use_cache=False))


def digest(model: nn.Module) -> str:
    """A name for all parameters, bit by bit."""
    found = hashlib.sha256()
    for value in model.state_dict().values():
        found.update(value.cpu().contiguous().view(torch.uint8).numpy().tobytes())
    return found.hexdigest()[:16]


class Telling(TrainerCallback):
    """Prints each step."""

    def on_step_end(
        self, args: TrainingArguments, state: TrainerState, control: TrainerControl, **has: Any
    ) -> None:
        """Say which step is done."""
        if state.is_world_process_zero:
            say(f"step {state.global_step} is done")


def say(text: str) -> None:
    """Print a line in one piece: the workers share a pipe."""
    os.write(1, f"{text}\n".encode())


def main() -> None:
    """Train from the last saved step to the last one."""
    parser = argparse.ArgumentParser(description="A small GPT-2, with the Trainer of Hugging Face.")
    parser.add_argument("--steps", type=int, default=100)
    parser.add_argument("--batch-size", type=int, default=16, help="of all workers together")
    parser.add_argument("--lr", type=float, default=3e-3)
    parser.add_argument("--seed", type=int, default=0)
    given = parser.parse_args()
    if "RANK" not in os.environ:
        sys.exit(f"start me with a launcher, for example: elastic-run --nproc-per-node 2 {sys.argv[0]}")
    rank, world = int(os.environ["RANK"]), int(os.environ["WORLD_SIZE"])
    say(f"rank {rank} of {world}: pid {os.getpid()}")
    with TemporaryDirectory() as folder:  # the Trainer wants one, and writes nothing to it here
        args = TrainingArguments(
            folder,
            max_steps=given.steps,
            per_device_train_batch_size=given.batch_size // world,
            learning_rate=given.lr,
            lr_scheduler_type="cosine",
            seed=given.seed + rank,  # dropout differs from worker to worker
            use_cpu=True,
            ddp_backend="gloo",
            ddp_find_unused_parameters=False,
            accelerator_config={"dispatch_batches": False},  # each worker reads for itself
            save_strategy="no",
            logging_strategy="no",
            report_to="none",
            disable_tqdm=True,
            dataloader_pin_memory=False,
        )
        torch.manual_seed(given.seed)
        keeping = Keeping(Checkpointer())
        data = Text(given.batch_size, given.steps, given.seed, keeping)
        trainer = Trainer(make_model(), args, train_dataset=data, callbacks=[Telling(), keeping])
        trainer.train()
    if rank == 0:
        say(f"after step {trainer.state.global_step} the parameters are {digest(trainer.model)}")


if __name__ == "__main__":
    main()
