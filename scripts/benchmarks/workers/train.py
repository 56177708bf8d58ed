"""A worker that trains as little as possible: an all-reduce of all ranks in each step, until it is killed.

Reports ``line`` (the script's first line), ``imported`` (torch is there), ``device`` (the GPU's context is
there; only on GPUs), ``group`` (the process group is ready), ``reduced`` (the first all-reduce is done) and
then each ``step``. With the argument ``idle`` it waits after ``imported``, for its memory to be measured.
"""

import time

BEGUN = time.monotonic()

import json  # noqa: E402
import os  # noqa: E402
import sys  # noqa: E402
import threading  # noqa: E402

EVENTS = os.open(os.environ["BENCH_EVENTS"], os.O_WRONLY)
ABOUT = {"pid": os.getpid(), "rank": int(os.environ["RANK"]), "world": int(os.environ["WORLD_SIZE"])}
STEP = 0.02  # seconds of a step beside the all-reduce
NEVER = threading.Event()


def report(what: str, at: float | None = None, **more: int) -> None:
    event = {"what": what, "at": time.monotonic() if at is None else at, **ABOUT, **more}
    os.write(EVENTS, json.dumps(event).encode() + b"\n")


report("line", BEGUN)

import torch  # noqa: E402
from torch import distributed  # noqa: E402

report("imported")


def device() -> torch.device:
    """The worker's own GPU, its context made, or the CPU. Workers share GPUs if there are too few."""
    if not torch.cuda.is_available():
        return torch.device("cpu")
    found = torch.device("cuda", int(os.environ["LOCAL_RANK"]) % torch.cuda.device_count())
    torch.cuda.set_device(found)
    torch.zeros(1, device=found)
    torch.cuda.synchronize()
    report("device")
    return found


def backend(here: torch.device) -> str:
    """NCCL takes one worker for each GPU."""
    is_alone = here.type == "cuda" and int(os.environ["LOCAL_WORLD_SIZE"]) <= torch.cuda.device_count()
    return "nccl" if is_alone else "gloo"


def main() -> None:
    if sys.argv[1:] == ["idle"]:
        NEVER.wait()
    here = device()
    distributed.init_process_group(backend(here))
    report("group")
    value = torch.ones(1, device=here)
    step = 0
    while True:
        distributed.all_reduce(value)
        if value.item() != distributed.get_world_size():
            sys.exit(f"the all-reduce gave {value.item()}")
        value.fill_(1)
        report("step" if step else "reduced", step=step)
        step += 1
        NEVER.wait(STEP)


if __name__ == "__main__":
    main()
