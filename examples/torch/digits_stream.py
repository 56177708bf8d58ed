"""Train on handwritten digits that come as a stream, each of them once, whoever is killed.

First write the 1,797 digits that scikit-learn ships to four streams of a Redis 7, several times over; then
train on them as they come:

    elastic-run --standalone examples/torch/digits_stream.py --fill 8
    elastic-run --standalone --nproc-per-node 2 --max-restarts 9 examples/torch/digits_stream.py

Kill a worker while it trains: `kill -9 PID`. Model and offsets come back as one, so no digit is lost, and
none counts twice. A digit is guessed before the model is trained on it, which says how good the model is. For
Kafka put a `KafkaSource` in the place of the `RedisSource`.
"""

from __future__ import annotations

import argparse
import json
import os
import sys
from typing import Any

import torch
import torch.distributed as dist
from sklearn.datasets import load_digits
from torch import nn
from torch.nn.functional import cross_entropy
from torch.nn.parallel import DistributedDataParallel

import elasticrun
from elasticrun.data import RedisSource, StreamDataset

STREAMS = [f"digits:{number}" for number in range(4)]
SAMPLES = 1797
RECENT = 1000  # digits of which it is told how many were recognised


def parse_args() -> argparse.Namespace:
    """The command line."""
    parser = argparse.ArgumentParser(description=__doc__.split("\n", 1)[0])
    parser.add_argument("--url", default="redis://localhost:6379", help="of the Redis")
    parser.add_argument("--fill", type=int, default=0, help="write the digits so many times, and end")
    parser.add_argument(
        "--passes", type=int, default=8, help="end after so many times the digits (default 8)"
    )
    return parser.parse_args()


def fill(url: str, times: int) -> None:
    """Write the digits to the streams."""
    import redis

    digits = load_digits()
    with redis.Redis.from_url(url).pipeline(transaction=False) as pipe:
        for number in range(times * SAMPLES):
            pixels = [int(each) for each in digits.data[number % SAMPLES]]
            sample = json.dumps([pixels, int(digits.target[number % SAMPLES])])
            pipe.xadd(STREAMS[number % len(STREAMS)], {"digit": sample})
        pipe.execute()


def decode(record: Any) -> tuple[torch.Tensor, int]:
    """An image and the digit that it shows. What is no such thing is left out, and reported."""
    pixels, digit = json.loads(record.value[b"digit"])
    return torch.tensor(pixels, dtype=torch.float32) / 16, int(digit)


def train(url: str, records: int) -> None:
    """Train until the model has seen so many records."""
    torch.manual_seed(0)
    net = nn.Sequential(nn.Linear(64, 128), nn.ReLU(), nn.Linear(128, 10))
    model = DistributedDataParallel(net)
    optimizer = torch.optim.AdamW(net.parameters(), lr=3e-3)
    # A rank that finds nothing to read makes an empty batch, so that the others need not wait for it.
    data = StreamDataset(
        RedisSource(url, STREAMS, group="digits"), 32, decode=decode, linger=0.2, may_be_empty=True
    )
    recent = torch.zeros(2)  # digits that were guessed, and those that were right; older ones weigh less
    count = torch.zeros(1, dtype=torch.int64)
    keeper = elasticrun.Checkpointer()
    state = {"model": net, "optimizer": optimizer, "data": data, "recent": recent, "count": count}
    step = keeper.load(state)
    print(f"rank {dist.get_rank()}: pid {os.getpid()}, {int(count)} digits seen before", flush=True)
    for batch in data:
        images, digits = batch.data if batch.places else (torch.zeros(0, 64), torch.zeros(0).long())
        guesses = model(images)
        seen = torch.tensor([float(len(digits)), float((guesses.argmax(1) == digits).sum())])
        dist.all_reduce(seen)
        # DDP averages over the ranks; a mean over the records of all ranks is wanted.
        scale = dist.get_world_size() / max(1.0, float(seen[0]))
        (scale * cross_entropy(guesses, digits, reduction="sum")).backward()
        optimizer.step()
        optimizer.zero_grad()
        recent.mul_(max(0.0, 1 - float(seen[0]) / RECENT)).add_(seen)
        count += int(seen[0])
        step += 1
        keeper.save(step, state)
        if dist.get_rank() == 0 and step % 50 == 0:
            print(f"{int(count)} digits, {100 * float(recent[1] / recent[0]):.1f} % recognised", flush=True)
        if count >= records:
            break
    if dist.get_rank() == 0:
        print(f"{int(count)} digits seen, {100 * float(recent[1] / recent[0]):.1f} % recognised", flush=True)
    data.close()
    keeper.close()


def main() -> None:
    """Write the digits, or join the world, train and leave the world."""
    args = parse_args()
    if args.fill:
        fill(args.url, args.fill)
        return
    if "RANK" not in os.environ:
        sys.exit(f"start me with a launcher, for example: elastic-run --nproc-per-node 2 {sys.argv[0]}")
    dist.init_process_group("gloo")
    train(args.url, args.passes * SAMPLES)
    dist.destroy_process_group()


if __name__ == "__main__":
    main()
