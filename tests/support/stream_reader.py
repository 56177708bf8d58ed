"""Trains on a stream of numbers, and writes down which ones: one file for each rank of each round.

    stream_reader.py FOLDER SOURCE WHERE RECORDS [kill=ROUND:RANK:STEP ...] [wait=ROUND:STEP ...]

SOURCE is kafka or redis, WHERE its servers or its URL. The model is the number of records that it has seen,
and their sum; the training ends when it has seen RECORDS. ``kill`` and ``wait`` are those of ``reader.py``.
Each line of a file is a step, as JSON: its number, the records of this rank, the model. Another line follows
when that step was copied. The broker is told of steps that are some steps old, as if a storage had them.
"""

from __future__ import annotations

import json
import os
import signal
import sys
from pathlib import Path
from typing import Any

import torch
import torch.distributed as dist

import elasticrun
from elasticrun.data import KafkaSource, RedisSource, StreamDataset

TOPIC, KEYS, GROUP = "numbers", [f"numbers:{n}" for n in range(4)], "training"
AGE = 4  # steps


def source_of(kind: str, where: str) -> Any:
    if kind == "kafka":
        return KafkaSource({"bootstrap.servers": where, "group.id": GROUP}, TOPIC)
    return RedisSource(where, KEYS, group=GROUP)


def value_of(record: Any) -> int:
    return int(record.value[b"v"] if isinstance(record.value, dict) else record.value)


def main() -> None:
    folder, kind, where, records = sys.argv[1:5]
    dist.init_process_group("gloo")
    rank, round_ = dist.get_rank(), os.environ["ELASTICRUN_ROUND"]
    data = StreamDataset(
        source_of(kind, where), batch_size=4, decode=value_of, linger=0.05, may_be_empty=True, prefetch=3
    )
    model = torch.zeros(2, dtype=torch.int64)
    keeper = elasticrun.Checkpointer()
    step = keeper.load(state := {"model": model, "data": data})
    data.restored(step)
    diary = Path(folder, f"{round_}-{rank}").open("x")  # noqa: SIM115 a killed worker closes nothing
    print(json.dumps({"round": int(round_), "step": step}), file=diary, flush=True)
    for batch in data:
        seen = torch.tensor([len(batch.places), int(batch.data.sum()) if batch.places else 0])
        dist.all_reduce(seen)
        model += seen
        step += 1
        told = {"step": step, "taken": batch.places, "model": model.tolist()}
        print(json.dumps(told), file=diary, flush=True)
        if f"kill={round_}:{rank}:{step}" in sys.argv:
            os.kill(os.getpid(), signal.SIGKILL)
        if keeper.save(step, state):
            data.saved(step)
            print(json.dumps({"saved": step}), file=diary, flush=True)
        data.durable(step - AGE)
        if f"wait={round_}:{step}" in sys.argv:
            keeper.wait()
            dist.barrier()
            os.write(1, f"round {round_} rank {rank} waits after step {step}\n".encode())
            while True:  # a process of the loader that ends interrupts a pause
                signal.pause()
        if model[0] >= int(records):
            break
    data.state_dict()
    data.saved(step)
    data.durable(step)
    data.close()
    keeper.close()
    dist.destroy_process_group()


main()
