"""Failures as workers leave them behind, and what is read out of them."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest

from elasticrun.agent.workers.error_file import exit_sentence
from elasticrun.config import FailureClass
from elasticrun.core.protocol.messages import Failure, FailureKind
from elasticrun.core.recovery.cause import root_cause
from elasticrun.core.recovery.diagnosis import MAX_QUOTE, diagnose, error_signature, error_text
from elasticrun.core.recovery.symptoms import BROKEN_XIDS, SUSPECT_XIDS
from elasticrun.core.recovery.traceback_text import MAX_SHOWN_LINES, MAX_SHOWN_TEXT, normalised

HARDWARE = FailureClass.HARDWARE
UNKNOWN = FailureClass.UNKNOWN
USER = FailureClass.USER_ERROR


def ended(code: int = 1, stderr: str = "", **changes: Any) -> Failure:
    """A worker that ended with this status, told as the agent tells it."""
    kind = FailureKind.SIGNAL if code < 0 else FailureKind.EXIT
    values: dict[str, Any] = {"message": exit_sentence(code), "stderr_tail": stderr} | changes
    return replace(Failure("a", "host-a", 0, 0, "default", 4711, kind, code), **values)


def recorded(message: str, traceback: str = "", **changes: Any) -> Failure:
    """A worker whose exception is in an error file."""
    return ended(1, message=message, traceback=traceback, error_file="/logs/error.json", **changes)


def raised(last_line: str, prefix: str = "", file: str = "/home/me/train.py", line: int = 12) -> str:
    """A traceback as Python prints it; ``prefix`` is what torch puts in front of each line."""
    lines = [
        "Traceback (most recent call last):",
        f'  File "{file}", line {line}, in main',
        "    step(batch)",
        "    ~~~~^^^^^^^",
        '  File "/venv/lib/python3.11/site-packages/torch/nn/modules/module.py", line 1751, in _call_impl',
        "    return forward_call(*args, **kwargs)",
        last_line,
    ]
    return "".join(f"{prefix}{text}\n" for text in lines)


WATCHDOG = (
    "[rank1]:[E626 06:24:44.903881913 ProcessGroupNCCL.cpp:616] [Rank 1] Watchdog caught collective "
    "operation timeout: WorkNCCL(SeqNum=808, OpType=ALLREDUCE, NumelIn=9801523, NumelOut=9801523, "
    "Timeout(ms)=600000) ran for 600020 milliseconds before timing out.\n"
    "[rank1]:[E626 06:24:44.9 ProcessGroupNCCL.cpp:684] [Rank 1] Some NCCL operations have failed or timed "
    "out. Due to the asynchronous nature of CUDA kernels, subsequent GPU operations might run on corrupted/"
    "incomplete data.\n"
    "terminate called after throwing an instance of 'c10::DistBackendError'\n"
)
REMOTE = (
    "torch.distributed.DistBackendError: NCCL error in: "
    "/pytorch/torch/csrc/distributed/c10d/NCCLUtils.hpp:268, "
    "remote process exited or there was a network error, NCCL version 2.21.5\n"
    "ncclRemoteError: A call failed possibly due to a network error or a remote process exiting "
    "prematurely.\n"
    "Last error:\n"
    "socketProgressOpt: Call to recv from 10.0.0.2<33759> failed : Connection reset by peer"
)
DUPLICATE = (
    "torch.distributed.DistBackendError: NCCL error in: "
    "/pytorch/torch/csrc/distributed/c10d/NCCLUtils.cpp:93, "
    "invalid usage (run with NCCL_DEBUG=WARN for details), NCCL version 2.28.9\n"
    "ncclInvalidUsage: This usually reflects invalid usage of NCCL library.\n"
    "Last error:\n"
    "Duplicate GPU detected : rank 0 and rank 1 both on CUDA device 60"
)
XID_79 = "NVRM: Xid (PCI:0000:44:00): 79, pid='<unknown>', name=<unknown>, GPU has fallen off the bus."
XID_31 = "NVRM: Xid (PCI:0000:08:00): 31, pid=4711, name=python, Ch 0000003b, MMU Fault: ENGINE GRAPHICS"
XID_63 = "NVRM: Xid (PCI:0000:10:1c): 63, pid=1896, Row Remapper: New row marked for remapping"
XID_94 = "NVRM: Xid (PCI:0000:9b:00): 94, pid=1234, name=python3, Contained ECC error"


@pytest.mark.parametrize(
    ("last_line", "expected", "sure"),
    [
        (
            "torch.OutOfMemoryError: CUDA out of memory. Tried to allocate 20 MiB.",
            FailureClass.CUDA_OOM,
            True,
        ),
        ("torch.cuda.OutOfMemoryError: CUDA out of memory. Tried to", FailureClass.CUDA_OOM, True),
        ("RuntimeError: CUDA error: out of memory", FailureClass.CUDA_OOM, True),
        (
            "RuntimeError: CUDA error: CUBLAS_STATUS_ALLOC_FAILED when calling `cublasCreate(handle)`",
            FailureClass.CUDA_OOM,
            True,
        ),
        ("MemoryError", FailureClass.HOST_OOM, True),
        ("numpy._core._exceptions._ArrayMemoryError: Unable to allocate 8 TiB", FailureClass.HOST_OOM, True),
        (
            "RuntimeError: [enforce fail at alloc_cpu.cpp:117] err == 0. DefaultCPUAllocator: can't allocate "
            "memory: you tried to allocate 4000000000000 bytes.",
            FailureClass.HOST_OOM,
            True,
        ),
        ("OSError: [Errno 12] Cannot allocate memory", FailureClass.HOST_OOM, True),
        (
            "RuntimeError: DataLoader worker (pid 99) is killed by signal: Bus error. It is possible that "
            "dataloader's workers are out of shared memory.",
            FailureClass.HOST_OOM,
            True,
        ),
        (
            "RuntimeError: [../third_party/gloo/gloo/transport/tcp/unbound_buffer.cc:81] Timed out waiting "
            "1800000ms for recv operation to complete",
            FailureClass.COLLECTIVE_TIMEOUT,
            True,
        ),
        (
            "torch.distributed.DistStoreError: Timed out after 601 seconds waiting for clients. "
            "1/2 clients joined.",
            FailureClass.COLLECTIVE_TIMEOUT,
            True,
        ),
        (
            "RuntimeError: [/pytorch/third_party/gloo/gloo/transport/tcp/pair.cc:598] Connection closed by "
            "peer [18.25.6.30]:28048",
            FailureClass.NETWORK,
            True,
        ),
        ("ConnectionRefusedError: [Errno 111] Connection refused", FailureClass.NETWORK, True),
        (
            "torch.distributed.DistNetworkError: The client socket has timed out after 600000ms while trying "
            "to connect to (172.17.0.9, 46229).",
            FailureClass.NETWORK,
            True,
        ),
        (REMOTE, FailureClass.NETWORK, True),
        (
            "RuntimeError: NCCL error in: ProcessGroupNCCL.cpp:1, unhandled system error",
            FailureClass.NETWORK,
            True,
        ),
        ("RuntimeError: CUDA error: uncorrectable ECC error encountered", HARDWARE, True),
        (
            "RuntimeError: CUDA error: uncorrectable NVLink error detected during the execution",
            HARDWARE,
            True,
        ),
        ("RuntimeError: CUDA error: unspecified launch failure", HARDWARE, False),
        ("RuntimeError: No CUDA GPUs, no CUDA-capable device is detected", HARDWARE, False),
        ("RuntimeError: CUDA error: device-side assert triggered", USER, False),
        # Xid 31: a bug in a kernel by far the most often.
        ("RuntimeError: CUDA error: an illegal memory access was encountered", USER, False),
        ("RuntimeError: Expected all tensors on one device, found cuda:0 and cpu!", USER, False),
        ("ValueError: too large", USER, True),
        ("AssertionError", USER, True),
        ("my.project.StopTraining: enough", USER, True),
        ("KeyboardInterrupt", FailureClass.PREEMPTION, True),
        ("RuntimeError: DataLoader worker (pid 99) is killed by signal: Killed. ", UNKNOWN, False),
        ("RuntimeError: DataLoader worker (pid(s) 99, 100) exited unexpectedly", UNKNOWN, False),
    ],
)
@pytest.mark.parametrize("prefix", ["", "[rank3]: "])
def test_exceptions(last_line: str, expected: FailureClass, sure: bool, prefix: str) -> None:
    text = raised(last_line, prefix)
    found = diagnose(ended(1, f"Epoch 3: loss 0.1\n{text}"))
    assert (found.failure_class, found.sure) == (expected, sure)
    assert found.evidence.startswith("stderr: '")
    found = diagnose(recorded(last_line, raised(last_line)))
    assert (found.failure_class, found.sure) == (expected, sure)
    assert found.evidence.startswith("error file: '")


def test_evidence_quotes_what_was_seen() -> None:
    message = "torch.OutOfMemoryError: CUDA out of memory. Tried to allocate 20.00 MiB."
    assert diagnose(recorded(message)).evidence == f"error file: '{message}'"
    assert diagnose(ended(-6, WATCHDOG)).evidence.startswith("stderr: 'Watchdog caught collective operation")
    found = diagnose(recorded(f"ValueError: \x1b[1m\r{'x' * 500}"))
    assert found.evidence.startswith("error file: 'ValueError:  [1m xxx")
    assert len(found.evidence) <= MAX_QUOTE + 20
    assert found.evidence.isprintable()


def test_of_nccl_what_it_said_last_is_quoted() -> None:
    said = "'Duplicate GPU detected : rank 0 and rank 1 both on CUDA device 60'"
    assert diagnose(recorded(DUPLICATE, raised(DUPLICATE))).evidence == f"error file: {said}"
    found = diagnose(ended(1, raised(DUPLICATE)))
    assert (found.failure_class, found.sure, found.evidence) == (USER, False, f"stderr: {said}")
    nothing = DUPLICATE.partition("Duplicate")[0]
    assert "invalid usage" in diagnose(ended(1, raised(nothing))).evidence


def test_what_stands_beside_an_exception_decides_nothing() -> None:
    noise = "warning: CUDA out of memory, batch skipped\nConnection reset by peer, trying again\n"
    text = f"{noise}{raised('ValueError: bad')}[W socket.cpp:1] Connection closed by peer\n"
    assert diagnose(ended(1, text)).failure_class is USER
    assert (
        diagnose(ended(1, f"{noise}{raised('ValueError: bad')}\nConnection reset by peer")).failure_class
        is USER
    )


def test_of_a_lost_child_the_exception_before_tells_more() -> None:
    text = raised(
        "RuntimeError: DataLoader worker (pid 99) is killed by signal: Bus error. It is possible that "
        "dataloader's workers are out of shared memory."
    ) + raised("RuntimeError: DataLoader worker (pid(s) 99) exited unexpectedly")
    assert diagnose(ended(1, text)).failure_class is FailureClass.HOST_OOM
    assert diagnose(recorded("RuntimeError: x", text)).failure_class is FailureClass.HOST_OOM


def test_of_several_exceptions_the_last_one_counts() -> None:
    text = (
        raised("ConnectionResetError: [Errno 104] Connection reset by peer")
        + "\nDuring handling of the above exception, another exception occurred:\n\n"
        + raised("ValueError: no data")
    )
    assert diagnose(ended(1, text)).evidence == "stderr: 'ValueError: no data'"


@pytest.mark.parametrize(
    ("code", "stderr", "expected"),
    [
        (-6, WATCHDOG, FailureClass.COLLECTIVE_TIMEOUT),
        (-6, "terminate called after throwing an instance of 'std::bad_alloc'", FailureClass.HOST_OOM),
        (-6, raised("ValueError: bad") + "terminate called without an active exception", USER),
        (-6, "free(): invalid pointer", UNKNOWN),
        (-11, "Fatal Python error: Segmentation fault", UNKNOWN),
        (-11, raised("ValueError: logged, and survived"), UNKNOWN),
        (-7, "Fatal Python error: Bus error", HARDWARE),
        (-7, "", HARDWARE),
        (-7, "This might be caused by insufficient shared memory (shm).", FailureClass.HOST_OOM),
        (135, "", HARDWARE),
        (-9, "CUDA out of memory, batch skipped", UNKNOWN),
        (137, "CUDA out of memory, batch skipped", UNKNOWN),
        (-15, "Connection reset by peer", FailureClass.PREEMPTION),
        (143, "", FailureClass.PREEMPTION),
        (-2, "", FailureClass.PREEMPTION),
        (-1, "", FailureClass.PREEMPTION),
        (3, "", UNKNOWN),
        (3, "RuntimeError without a traceback; Connection refused", FailureClass.NETWORK),
        (200, "", UNKNOWN),
        (
            1,
            "  File \"train.py\", line 3\n    foo(\n       ^\nSyntaxError: '(' was never closed\n",
            USER,
        ),
    ],
)
def test_ends_without_an_error_file(code: int, stderr: str, expected: FailureClass) -> None:
    assert diagnose(ended(code, stderr)).failure_class is expected


def test_what_is_not_known_says_how_it_ended() -> None:
    found = diagnose(ended(-11))
    assert found.evidence == "killed by SIGSEGV (11): a crash in native code"
    assert not found.sure
    assert diagnose(ended(3, message="")).evidence == "exit code 3"
    assert not diagnose(ended(-7)).sure


@pytest.mark.parametrize("signum", [number for number in range(1, 65) if number not in (1, 2, 7, 15)])
def test_our_own_sentence_about_a_signal_is_no_evidence(signum: int) -> None:
    assert diagnose(ended(-signum)).failure_class is UNKNOWN
    assert diagnose(ended(128 + signum)).failure_class is UNKNOWN


def test_a_kill_for_want_of_memory_takes_a_kill_and_a_count() -> None:
    found = diagnose(ended(-9, oom_kills=1))
    assert (found.failure_class, found.sure) == (FailureClass.CGROUP_OOM, True)
    assert found.evidence == "its cgroup counted 1 OOM kill in this round"
    assert "2 OOM kills" in diagnose(ended(137, oom_kills=2)).evidence
    assert diagnose(ended(-9, host_oom=True)).failure_class is FailureClass.HOST_OOM
    assert diagnose(ended(-9, host_oom=True, oom_kills=1)).failure_class is FailureClass.CGROUP_OOM
    assert diagnose(ended(-11, oom_kills=1)).failure_class is UNKNOWN
    assert diagnose(ended(1, raised("ValueError: bad"), oom_kills=1)).failure_class is USER


def test_a_lost_child_is_a_kill_as_well() -> None:
    line = "RuntimeError: DataLoader worker (pid 99) is killed by signal: Killed. "
    assert diagnose(ended(1, raised(line), oom_kills=1)).failure_class is FailureClass.CGROUP_OOM
    assert (
        diagnose(recorded("RuntimeError: x", raised(line), host_oom=True)).failure_class
        is FailureClass.HOST_OOM
    )


@pytest.mark.parametrize(
    ("line", "expected"),
    [
        ("Memory cgroup out of memory: Killed process 4711 (python) total-vm:1kB", FailureClass.CGROUP_OOM),
        ("Out of memory: Killed process 4711 (python) total-vm:1kB, anon-rss:1kB", FailureClass.HOST_OOM),
        (
            "Memory cgroup out of memory: Kill process 4711 (python) score 1\nKilled process 4711 (python)",
            FailureClass.CGROUP_OOM,  # as kernels before 5.0 say it
        ),
        ("Out of memory: Killed process 47110 (python) total-vm:1kB, anon-rss:1kB", UNKNOWN),
    ],
)
def test_the_kernel_names_whom_it_killed(line: str, expected: FailureClass) -> None:
    assert diagnose(ended(-9, kernel_log=f"something\n{line}\nmore")).failure_class is expected


@pytest.mark.parametrize(
    ("line", "sure"),
    [
        (XID_79, True),
        ("NVRM: GPU 0000:2b:00.0: GPU has fallen off the bus.", True),
        (XID_63, False),
        (XID_94, False),
        ("NVRM: Xid (0000:01:00): 48, An uncorrectable double bit error (DBE) has been detected", True),
        ("mce: [Hardware Error]: Machine check events logged", False),
        ("mce: [Hardware Error]: Machine check: Processor context corrupt", True),
        ("{1}[Hardware Error]: event severity: fatal", True),
        ("pcieport 0000:00:03.1: PCIe Bus Error: severity=Uncorrected (Fatal), type=Transaction Layer", True),
        ("pcieport 0000:00:03.1: PCIe Bus Error: severity=Uncorrected (Non-Fatal), type=x", False),
        ("Memory failure: 0x12345: Killing python:4711 due to hardware memory corruption", True),
        ("nvidia-nvswitch0: SXid (PCI:0000:c1:00.0): 20034, Fatal, Link 30 LTSSM Fault Up", True),
        ("nvidia-nvswitch0: SXid (PCI:0000:c1:00.0): 12028, Non-fatal, Link 32 egress", False),
        ("EDAC MC0: 1 UE memory read error on CPU_SrcID#0", True),
    ],
)
def test_the_kernel_speaks_of_hardware(line: str, sure: bool) -> None:
    found = diagnose(ended(-11, kernel_log=f"{line}\n"))
    assert (found.failure_class, found.sure) == (HARDWARE, sure)
    assert found.evidence.startswith(f"kernel log: '{line[:50]}")


@pytest.mark.parametrize(
    "line",
    [
        XID_31,
        "NVRM: Xid (PCI:0000:08:00): 13, pid=1, Graphics SM Warp Exception on (GPC 7, TPC 0)",
        "NVRM: Xid (PCI:0000:08:00): 45, pid=1, Ch 00000008",
        "mce: [Hardware Error]: Corrected error, no action required.",
        "{1}[Hardware Error]: event severity: corrected",
        "pcieport 0000:00:03.1: PCIe Bus Error: severity=Correctable, type=Data Link Layer",
        "NVRM: loading NVIDIA UNIX Open Kernel Module for x86_64",
    ],
)
def test_the_kernel_speaks_of_something_else(line: str) -> None:
    assert diagnose(ended(-11, kernel_log=line)).failure_class is UNKNOWN


def test_proof_in_the_kernels_log_comes_before_a_hint() -> None:
    found = diagnose(ended(-11, kernel_log=f"{XID_31}\n{XID_63}\n{XID_94}\n{XID_79}"))
    assert "79" in found.evidence
    assert "63" in diagnose(ended(-11, kernel_log=f"{XID_63}\n{XID_94}")).evidence
    assert not BROKEN_XIDS & SUSPECT_XIDS
    assert not {13, 31, 43, 45} & (BROKEN_XIDS | SUSPECT_XIDS)


@pytest.mark.parametrize(
    ("failure", "with_proof", "with_hint"),
    [
        (ended(1, raised("ValueError: bad")), USER, USER),
        (
            ended(1, raised("RuntimeError: CUDA error: an illegal memory access was encountered")),
            HARDWARE,
            HARDWARE,
        ),
        (ended(1, raised("RuntimeError: NCCL Error 5")), HARDWARE, HARDWARE),
        (ended(1, raised(REMOTE)), HARDWARE, FailureClass.NETWORK),
        (ended(-6, WATCHDOG), HARDWARE, FailureClass.COLLECTIVE_TIMEOUT),
        (
            ended(1, raised("torch.OutOfMemoryError: CUDA out of memory.")),
            FailureClass.CUDA_OOM,
            FailureClass.CUDA_OOM,
        ),
        (ended(-9, oom_kills=1), FailureClass.CGROUP_OOM, FailureClass.CGROUP_OOM),
        (ended(-9, kind=FailureKind.HANG, message="no step"), HARDWARE, FailureClass.HANG),
        (ended(-15), FailureClass.PREEMPTION, FailureClass.PREEMPTION),
    ],
)
def test_the_kernels_log_overrules_what_a_broken_device_looks_like(
    failure: Failure, with_proof: FailureClass, with_hint: FailureClass
) -> None:
    assert diagnose(replace(failure, kernel_log=XID_79)).failure_class is with_proof
    assert diagnose(replace(failure, kernel_log=XID_94)).failure_class is with_hint


def test_kinds_of_failures_that_are_their_own_diagnosis() -> None:
    found = diagnose(ended(-9, kind=FailureKind.HANG, message="no step for 60 s", oom_kills=1))
    assert (found.failure_class, found.evidence) == (FailureClass.HANG, "no step for 60 s")
    assert diagnose(ended(1, kind=FailureKind.HANG, message="")).evidence == "it made no step for too long"
    assert diagnose(ended(1, kind=FailureKind.PORT_TAKEN)).failure_class is FailureClass.NETWORK
    assert diagnose(ended(1, kind=FailureKind.STORE_LOST)).failure_class is FailureClass.UNKNOWN
    spawn = ended(1, kind=FailureKind.SPAWN, message="could not be started: Cannot allocate memory")
    assert diagnose(spawn).failure_class is FailureClass.HOST_OOM
    assert diagnose(spawn).evidence.startswith("start: 'could not be started")
    assert diagnose(replace(spawn, message="could not be started: no such file")).failure_class is UNKNOWN


def test_an_error_file_without_an_exception() -> None:
    assert diagnose(recorded("the loss is not a number")).failure_class is UNKNOWN
    assert diagnose(recorded("peer said: Connection reset by peer")).failure_class is FailureClass.NETWORK
    assert diagnose(recorded("ValueError: bad", "a traceback that is none")).failure_class is USER
    assert (
        diagnose(recorded("?", "none either", exit_code=-6, kind=FailureKind.SIGNAL)).failure_class is UNKNOWN
    )


def test_the_root_cause_is_not_the_echo_that_was_heard_first() -> None:
    network = ended(1, raised(REMOTE))
    killed = ended(-9, rank=1)
    user = ended(1, raised("ValueError: bad"), rank=2)
    assert root_cause([network, killed])[0] is killed
    assert root_cause([network, killed, user])[0] is user
    assert root_cause([network])[1].failure_class is FailureClass.NETWORK
    other = replace(user, rank=3)
    assert root_cause([network, other, user])[0] is other
    assert len({each.order for each in FailureClass}) == len(FailureClass)


# --- signatures


def test_a_signature_is_type_message_and_own_frame() -> None:
    expected = "ValueError: batch # has # rows at train.py:12 in main"
    assert error_signature(ended(1, raised("ValueError: batch 17 has 3 rows"))) == expected
    assert (
        error_signature(ended(1, raised("ValueError: batch 18 has 4 rows", "[rank5]: "), rank=5)) == expected
    )
    assert error_signature(recorded("?", raised("a.b.ValueError: batch 18 has 4 rows"))) == expected


@pytest.mark.parametrize(
    ("one", "other"),
    [
        ("<Foo object at 0x7f1eca7708d2>", "<Foo object at 0x7f3b6e71a8d2>"),
        ("rank 0, pid 99: lost", "rank 13, pid 4711: lost"),
        ("at 12:30:01.5 on cuda:0", "at 13:31:02.25 on cuda:7"),
        ("no file '/tmp/tmpab1_x/a.pt'", "no file '/tmp/tmpqrs/a.pt'"),
        ("no file ./run-1/a.pt", "no file ../run-2/b.pt"),
        ("id 123e4567-e89b-12d3-a456-426614174000", "id 00000000-e89b-12d3-a456-426614174fff"),
        ("loss is 1.5e-07", "loss is -3"),
        ("object deadbeef01 is gone", "object 0123456789abcdef is gone"),
    ],
)
def test_what_varies_is_no_part_of_a_signature(one: str, other: str) -> None:
    first, second = (error_signature(ended(1, raised(f"ValueError: {text}"))) for text in (one, other))
    assert first == second
    assert "ValueError: " in first


@pytest.mark.parametrize(
    ("one", "other"),
    [
        (raised("ValueError: a"), raised("ValueError: b")),
        (raised("ValueError: a"), raised("KeyError: a")),
        (raised("ValueError: a"), raised("ValueError: a", line=13)),
        (raised("ValueError: a"), raised("ValueError: a", file="/home/me/other.py")),
    ],
)
def test_different_errors_differ(one: str, other: str) -> None:
    assert error_signature(ended(1, one)) != error_signature(ended(1, other))


def autograph(random: str, loss: int) -> str:
    """An exception inside a @tf.function, as TensorFlow 2.21 has it printed."""
    generated = f"/tmp/__autograph_generated_file{random}.py"
    return (
        'Traceback (most recent call last):\n  File "/home/me/train.py", line 9, in <module>\n    main()\n'
        '  File "/home/me/train.py", line 8, in main\n    step(tf.ones(3))\n'
        f'  File "{generated}", line 35, in tf__step\n    ag__.if_stmt()\n    ^^^^^\n'
        'NameError: in user code:\n\n    File "/home/me/train.py", line 4, in step  *\n'
        f'        if loss > {loss}:\n    File "{generated}", line 25, in if_body\n        raise\n\n'
        f"    NameError: name 'lr_{loss}' is not defined\n\n\n[rank0]: a log\n"
    )


def test_an_error_in_generated_code_has_one_signature_and_keeps_its_text() -> None:
    first, second = (ended(1, autograph(*args)) for args in (("100_o0k9", 17), ("x8__1rt", 18)))
    expected = "NameError: in user code: NameError: name 'lr_#' is not defined at train.py:8 in main"
    assert error_signature(first) == error_signature(second) == expected
    assert diagnose(first).evidence.endswith(
        "NameError: in user code: NameError: name 'lr_17' is not defined'"
    )
    told = error_text(first).split("\n")
    assert (told[0], told[-1]) == ("NameError: in user code:", "at train.py:8 in main")
    assert "    NameError: name 'lr_17' is not defined" in told
    assert "a log" not in error_text(first)


def test_a_cell_of_a_notebook_is_no_place() -> None:
    cell = ended(1, raised("ValueError: bad", file="/tmp/ipykernel_17/991.py"))
    assert error_signature(cell) == "ValueError: bad at module.py:1751 in _call_impl"
    text = 'Traceback (most recent call last):\n  File "<string>", line 1, in <module>\nValueError: bad\n'
    assert error_signature(ended(1, text)) == "ValueError: bad at generated code, in <module>"


def test_a_long_text_is_shown_up_to_a_bound() -> None:
    assert error_text(ended(1)) == ""
    lines = error_text(ended(1, raised("ValueError: 7 of 9\n" + "\n".join(map(str, range(50)))))).split("\n")
    assert (lines[0], lines[1], lines[-2:]) == ("ValueError: 7 of 9", "0", ["...", "at train.py:12 in main"])
    assert len(lines) == MAX_SHOWN_LINES + 1
    assert len(error_text(ended(1, raised("ValueError: " + "x" * 5000)))) < MAX_SHOWN_TEXT + 50


def test_no_exception_no_signature() -> None:
    assert error_signature(ended(1)) == ""
    assert error_signature(ended(-9, raised("ValueError: survived"))) == ""
    assert error_signature(recorded("ValueError: bad 7")) == "ValueError: bad #"
    assert error_signature(recorded("AssertionError")) == "AssertionError"


def test_frames_of_libraries_count_only_where_there_is_no_other() -> None:
    library = "/usr/lib/python3.11/json/decoder.py"
    assert error_signature(ended(1, raised("ValueError: x", file=library))).endswith(
        "module.py:1751 in _call_impl"
    )


def test_a_syntax_error_has_no_function() -> None:
    text = "  File \"train.py\", line 3\n    foo(\n       ^\nSyntaxError: '(' was never closed\n"
    assert error_signature(ended(1, text)) == "SyntaxError: '(' was never closed at train.py:3"


def test_a_traceback_without_its_beginning() -> None:
    text = "..." + raised("ValueError: x").partition("main\n")[2]
    assert error_signature(ended(1, text)) == "ValueError: x at module.py:1751 in _call_impl"


def test_a_traceback_that_is_cut_off_or_mixed_with_other_lines() -> None:
    assert error_signature(ended(1, "Traceback (most recent call last):\n")) == ""
    mixed = raised("ValueError: x").replace("ValueError", "Epoch 3, loss 0.5\nValueError")
    assert error_signature(ended(1, mixed)) == "ValueError: x at train.py:12 in main"


def test_the_rest_of_a_message_is_read_but_not_the_log_after_it() -> None:
    text = raised("RuntimeError: first\nConnection reset by peer")
    assert diagnose(ended(1, text)).failure_class is FailureClass.NETWORK
    text = raised("RuntimeError: first\n\nConnection reset by peer")
    assert diagnose(ended(1, text)).failure_class is USER


def test_exception_groups() -> None:
    text = (
        "  + Exception Group Traceback (most recent call last):\n"
        '  |   File "/home/me/train.py", line 5, in <module>\n'
        "  |     main()\n"
        "  | ExceptionGroup: unhandled errors in a TaskGroup (1 sub-exception)\n"
        "  +-+---------------- 1 ----------------\n"
        "    | Traceback (most recent call last):\n"
        '    |   File "/home/me/train.py", line 9, in load\n'
        "    |     raise ValueError(3)\n"
        "    | ValueError: 3\n"
        "    +------------------------------------\n"
    )
    assert error_signature(ended(1, text)) == "ValueError: # at train.py:9 in load"


def test_a_long_message_is_cut() -> None:
    assert len(error_signature(recorded(f"ValueError: {'x' * 5000}"))) < 300
    assert normalised("a/b is no path, and 1/2 is none") == "a/b is no path, and #/# is none"
