"""A worker whose steps take a fixed time, as on a device that does the work, and which keeps its state.

    steady.py WAY MEGABYTES SECONDS EVERY FOLDER DEVICE

``WAY``: ``none`` keeps nothing; ``memory`` is ``elasticrun.Checkpointer``, ``overlap`` the same with copies
while the next step runs; ``bare`` and ``bare-overlap`` are these with a state made on the meta device, to
which ``load`` gives memory; ``torch`` is ``torch.save`` by rank 0 into ``FOLDER``; ``sharded`` is
``elasticrun.Checkpointer`` with a model of FSDP2 that really trains. ``SECONDS``: of a step. ``EVERY``: steps
from one save to the next, or auto.

Reports ``line``, then ``restored`` with the step after which it goes on, then each ``step``.
"""

import time

BEGUN = time.monotonic()

import json  # noqa: E402
import os  # noqa: E402
import sys  # noqa: E402
import threading  # noqa: E402
from collections.abc import Callable  # noqa: E402
from pathlib import Path  # noqa: E402
from typing import Any  # noqa: E402

EVENTS = os.open(os.environ["BENCH_EVENTS"], os.O_WRONLY)
ABOUT = {"pid": os.getpid(), "rank": int(os.environ["RANK"]), "world": int(os.environ["WORLD_SIZE"])}
PIECE = 16 << 20  # bytes of one tensor at most
WIDTH = 1024  # of a layer of the model that trains
NEVER = threading.Event()


def report(what: str, at: float | None = None, **more: int) -> None:
    event = {"what": what, "at": time.monotonic() if at is None else at, **ABOUT, **more}
    os.write(EVENTS, json.dumps(event).encode() + b"\n")


report("line", BEGUN)

import torch  # noqa: E402
import torch.distributed as dist  # noqa: E402

State = dict[str, Any]
Save = Callable[[int, State], object]


def main() -> None:
    way, size, seconds, every, folder, device = sys.argv[1:]
    if ABOUT["world"] > 1 or way == "sharded":
        dist.init_process_group("gloo")
    place = "meta" if way.startswith("bare") else device
    state, train = (sharded if way == "sharded" else plain)(float(size), float(seconds), place)
    step, save = keeping(way, every, Path(folder), state, device)
    report("restored", step=step)
    while True:
        train()
        step += 1
        report("step", step=step)  # it is made; whether it counts is seen after a fault
        save(step, state)


def keeping(way: str, every: str, folder: Path, state: State, device: str) -> tuple[int, Save]:
    """The step that was restored, and what saves."""
    if way == "none":
        return 0, lambda step, state: None
    if way == "torch":
        return by_file(int(every), folder / "state.pt", state)
    from elasticrun import Checkpointer

    def init() -> None:
        for each in state.values():
            if isinstance(each, torch.Tensor):
                each.data.zero_()

    keeper = Checkpointer("auto" if every == "auto" else int(every), overlap=way.endswith("overlap"))
    return keeper.load(state, init if way.startswith("bare") else None, device), keeper.save


def by_file(every: int, path: Path, state: State) -> tuple[int, Save]:
    """As scripts do without a library: rank 0 saves, and all load."""
    first = 0
    if path.exists():
        found = torch.load(path)
        first = found.pop("step")
        state["optimizer"].load_state_dict(found.pop("optimizer"))
        for name, value in found.items():
            state[name].data.copy_(value)

    def save(step: int, state: State) -> None:
        if step % every == 0 and ABOUT["rank"] == 0:
            optimizer = state["optimizer"].state_dict()
            torch.save({**state, "optimizer": optimizer, "step": step}, path.with_suffix(".new"))
            path.with_suffix(".new").rename(path)

    return first, save


def plain(size: float, seconds: float, device: str) -> tuple[State, Callable[[], None]]:
    """Tensors of so many MB, of which a step changes one; ranks meet in each step."""
    left, state = int(size * 2**20) // 4, dict[str, Any]()
    while left:
        state[f"layer{len(state)}"] = torch.nn.Parameter(torch.zeros(min(left, PIECE // 4), device=device))
        left -= min(left, PIECE // 4)
    state["optimizer"] = optimizer = torch.optim.SGD([*state.values()], lr=1.0)

    def train() -> None:
        NEVER.wait(seconds)
        state["layer0"].grad = torch.ones_like(state["layer0"])
        if dist.is_initialized():
            dist.all_reduce(torch.ones(1))
        optimizer.step()

    return state, train


def sharded(size: float, seconds: float, device: str) -> tuple[State, Callable[[], None]]:
    """A model of FSDP2 that has, with the state of Adam, so many MB on all ranks together."""
    from torch.distributed.fsdp import fully_shard

    torch.manual_seed(0)
    layers = max(1, round(size * 2**20 / (3 * 4 * WIDTH * WIDTH)))
    model: Any = torch.nn.Sequential(*(torch.nn.Linear(WIDTH, WIDTH, device=device) for _ in range(layers)))
    for layer in model:
        fully_shard(layer)
    fully_shard(model)
    optimizer = torch.optim.Adam(model.parameters(), lr=1e-5)

    def train() -> None:
        NEVER.wait(seconds)
        optimizer.zero_grad()
        model(torch.ones(1, WIDTH, device=device)).pow(2).mean().backward()
        optimizer.step()

    return {"model": model, "optimizer": optimizer}, train


if __name__ == "__main__":
    main()
