"""Two ranks that train on gloo and then make no step for a while, each for another reason.

    silent.py CASE SECONDS

After 199 quick steps, or in the first one, the ranks do what CASE says for about that long; then they make
some more steps and end well. Those of HANGS never come back in round 0.
"""

from __future__ import annotations

import ctypes
import datetime
import os
import queue
import signal
import subprocess
import sys
import tempfile
import threading
import time
from collections.abc import Callable
from pathlib import Path

import torch
from torch import distributed

QUICK = 199
RANK = int(os.environ["RANK"])


def work(seconds: float) -> int:
    """What every good evaluation does."""
    end, count = time.process_time() + seconds, 0
    while time.process_time() < end:
        count += 1
    return count


def pause(seconds: float) -> None:
    subprocess.run(["sleep", str(seconds)], check=True)


def burn(seconds: float) -> None:
    """A compiler, say."""
    code = f"import time\nend = time.monotonic() + {seconds}\nwhile time.monotonic() < end: pass"
    subprocess.run([sys.executable, "-c", code], check=True)


def svd(seconds: float) -> None:
    import numpy

    size = 300
    began = time.process_time()
    numpy.linalg.svd(numpy.random.rand(size, size))
    once = time.process_time() - began
    larger = round(size * (seconds / once) ** (1 / 3))
    numpy.linalg.svd(numpy.random.rand(larger, larger))


def wait_for_queue(seconds: float) -> None:
    results: queue.Queue[int] = queue.Queue()
    threading.Timer(seconds, results.put, [1]).start()
    results.get()


def background_checkpoint(seconds: float) -> None:
    """A thread writes to slow storage while the main thread waits for it."""
    thread = threading.Thread(target=write_slowly, args=(seconds,))
    thread.start()
    thread.join()


def write_slowly(seconds: float, save: Callable[[object, Path], object] | None = None) -> None:
    """Write a megabyte to a FIFO whose reader takes its time."""
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder) / "slow"
        os.mkfifo(path)
        code = (
            "import sys, threading\n"
            "with open(sys.argv[1], 'rb', buffering=0) as file:\n"
            f"    threading.Event().wait({seconds})\n"
            "    while file.read(1 << 16): pass"
        )
        reader = subprocess.Popen([sys.executable, "-c", code, path])
        if save is None:
            with path.open("wb", buffering=0) as file:
                file.write(bytes(1 << 20))
        else:
            save(bytes(1 << 20), path)
        reader.wait()


def slow_torch_save(seconds: float) -> None:
    def save(what: object, path: Path) -> None:
        with path.open("wb") as file:
            torch.save(what, file, _use_new_zipfile_serialization=False)

    write_slowly(seconds, save)


def sleep_with_gil(seconds: float) -> None:
    """In a call that a signal does not end."""
    pipe = subprocess.Popen(["sh", "-c", f"sleep {seconds}; echo"], stdout=subprocess.PIPE)
    assert pipe.stdout is not None
    ctypes.PyDLL(None).read(pipe.stdout.fileno(), ctypes.create_string_buffer(1), 1)


def burn_with_gil(seconds: float) -> None:
    began = time.process_time()
    sum(range(10**7))
    sum(range(round(10**7 * seconds / (time.process_time() - began))))


DEBUGGER = """
import ctypes, os, sys, threading
libc, pid = ctypes.CDLL(None, use_errno=True), int(sys.argv[1])
if libc.ptrace(16, pid, None, None): sys.exit(os.strerror(ctypes.get_errno()))
os.waitpid(pid, 0x40000000)
threading.Event().wait(float(sys.argv[2]))
libc.ptrace(17, pid, None, None)
"""


def be_debugged(seconds: float) -> None:
    """Attached to and kept, as by gdb at its prompt, while this rank is in a collective as the other is."""
    debugger = subprocess.Popen([sys.executable, "-c", DEBUGGER, str(os.getpid()), str(seconds)])
    debugger.wait()


def be_stopped(seconds: float) -> None:
    code = (
        f"import os, signal, threading\nos.kill({os.getpid()}, signal.SIGSTOP)\n"
        f"threading.Event().wait({seconds})\nos.kill({os.getpid()}, signal.SIGCONT)"
    )
    threading.Thread(target=subprocess.run, args=([sys.executable, "-c", code],)).start()
    distributed.barrier()


def stop_in_debugger(seconds: float) -> None:
    """Somebody has to type something."""
    print("at the prompt", flush=True)
    breakpoint()


def only_rank_0(what: Callable[[float], object]) -> Callable[[float], None]:
    def evaluate(seconds: float) -> None:
        if RANK == 0:
            what(seconds)
        distributed.barrier()

    return evaluate


# -- hangs


def mismatch(seconds: float) -> None:
    """Rank 0 and rank 1 wait for each other in different collectives."""
    if RANK == 0:
        distributed.all_reduce(torch.zeros(1 << 20))
    else:
        distributed.recv(torch.zeros(1), src=0)


def no_sender(seconds: float) -> None:
    distributed.recv(torch.zeros(1), src=1 - RANK)


def store_wait(seconds: float) -> None:
    """Rank 1 has left the training and waits for a rank that will never come, rank 0 for its gradient."""
    if RANK == 0:
        distributed.all_reduce(torch.zeros(1))
    else:
        store = distributed.distributed_c10d._get_default_store()
        forever = datetime.timedelta(days=1)
        wait: Callable[..., None] = distributed.distributed_c10d._store_based_barrier
        wait(RANK, store, "end", 3, forever, forever)


BUSY = """
def all_reduce(until):
    while time.monotonic() < until:
        pass
        pass
"""


def busy_collective(seconds: float) -> None:
    """As NCCL waits: on a CPU, in a function of torch's."""
    space: dict[str, object] = {"time": time}
    exec(compile(BUSY, "/x/site-packages/torch/distributed/distributed_c10d.py", "exec"), space)
    space["all_reduce"](time.monotonic() + 3600)  # type: ignore[operator]


HEALTHY: dict[str, Callable[[float], object]] = {
    "svd": svd,
    "subprocess": pause,
    "queue": wait_for_queue,
    "background-checkpoint": background_checkpoint,
    "slow-torch-save": slow_torch_save,
    "slow-write": write_slowly,
    "rank-0-svd": only_rank_0(svd),
    "rank-0-subprocess": only_rank_0(pause),
    "recompile": burn,
    "gil-sleep": sleep_with_gil,
    "gil-burn": burn_with_gil,
    "debugger": only_rank_0(be_debugged),
    "breakpoint": only_rank_0(stop_in_debugger),
    "sigstop": lambda seconds: be_stopped(seconds) if RANK == 1 else distributed.barrier(),
}
FIRST_STEP = {"compile": only_rank_0(burn)}
HANGS: dict[str, Callable[[float], object]] = {
    "mismatch": mismatch,
    "no-sender": no_sender,
    "store-wait": store_wait,
    "busy-collective": busy_collective,
}


def main() -> None:
    case, seconds = sys.argv[1], float(sys.argv[2])
    signal.alarm(3600)  # whatever happens, this ends
    distributed.init_process_group("gloo", timeout=datetime.timedelta(hours=1))
    weight = torch.nn.Parameter(torch.zeros(1))
    optimizer = torch.optim.SGD([weight], lr=0.1)
    is_first = os.environ["ELASTICRUN_ROUND"] == "0" if "ELASTICRUN_ROUND" in os.environ else True
    for step in range(QUICK + 10):
        if step == 0 and case in FIRST_STEP:
            FIRST_STEP[case](seconds)
        if step == QUICK and case in HEALTHY:
            HEALTHY[case](seconds)
        if step == QUICK and case in HANGS and is_first:
            print("hangs", flush=True)
            HANGS[case](seconds)
        weight.grad = torch.ones(1)
        distributed.all_reduce(weight.grad)
        optimizer.step()
    print("done", flush=True)
    distributed.destroy_process_group()


if __name__ == "__main__":
    main()
