"""What goes wrong in one save costs that save, and no later one."""

from __future__ import annotations

import threading
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from types import TracebackType

import pytest

pytest.importorskip("torch", reason="needs torch: pip install 'elasticrun[torch]'")

import torch
from torch.distributed.checkpoint import state_dict_saver

from elasticrun.checkpoint.memory import MemoryWriter
from elasticrun.core.protocol.commits import CommitId
from elasticrun.errors import CheckpointError
from tests.checkpoint.nodes import Node
from tests.support.memory_host import DEADLINE

pytestmark = [pytest.mark.torch, pytest.mark.filterwarnings("ignore::UserWarning")]

STATE = {"w": torch.ones(4)}
CHECKPOINTER = "elasticrun.checkpoint.checkpointer"


@pytest.mark.parametrize(
    ("tensor", "kind"),
    [
        (lambda: torch.eye(3).to_sparse(), "sparse"),
        (lambda: torch.eye(3).to_sparse_csr(), "sparse"),
        (lambda: torch.empty(3, device="meta"), "meta"),
        (lambda: torch.quantize_per_tensor(torch.ones(4), 0.1, 0, torch.qint8), "quantized"),
        (lambda: torch.nested.nested_tensor([torch.ones(2), torch.ones(3)]), "nested"),
    ],
    ids=["sparse", "csr", "meta", "quantized", "nested"],
)
def test_a_tensor_of_another_kind_is_refused_by_name(
    node: Node, tensor: Callable[[], torch.Tensor], kind: str
) -> None:
    worker = node.worker()
    with pytest.raises(CheckpointError, match=rf"^deep\.graph is a {kind} tensor, which cannot be saved"):
        worker.save(1, {"deep": {"graph": tensor()}})
    assert worker.save(2, STATE)
    node.restart(2)


def fail(*_: object) -> None:
    raise KeyboardInterrupt


@pytest.mark.parametrize("broken", ["is_steady", "fixed_names", "Writing"])
def test_whatever_is_raised_during_a_save_the_next_one_is_made(
    node: Node, monkeypatch: pytest.MonkeyPatch, broken: str
) -> None:
    """Else the agent would take it for one that comes during this one, until the round ends."""
    worker = node.worker()
    with monkeypatch.context() as patch, pytest.raises(KeyboardInterrupt):
        patch.setattr(f"{CHECKPOINTER}.{broken}", fail)
        worker.save(1, STATE)
    assert worker.save(2, STATE)
    node.restart(2)


@pytest.mark.parametrize("broken", ["write", "seal"])
def test_whatever_is_raised_while_torch_saves_the_next_save_is_made(
    node: Node, monkeypatch: pytest.MonkeyPatch, broken: str
) -> None:
    memory = node.host.connect()
    with monkeypatch.context() as patch, pytest.raises(BaseException, match="KeyboardInterrupt"):
        patch.setattr(f"elasticrun.checkpoint.memory.{broken}", fail)
        state_dict_saver.save(STATE, storage_writer=MemoryWriter(1, memory), no_dist=True)
    state_dict_saver.save(STATE, storage_writer=MemoryWriter(2, memory), no_dist=True)
    memory.close()


def test_a_record_that_fails_costs_one_save(
    node: Node, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture, tmp_path: Path
) -> None:
    def refuse(*_: object, **__: object) -> None:
        raise CheckpointError("no such place")

    worker = node.worker(records=tmp_path)
    with monkeypatch.context() as patch:
        patch.setattr("elasticrun.storage.positions.PositionRecord.save", refuse)
        assert worker.save(1, STATE)
        worker.wait()
    assert caplog.messages == ["step 1 is not saved: no such place"]
    assert worker.save(2, STATE)
    node.restart(2)


class Watched:
    """A lock that tells when a second thread asks for it."""

    def __init__(self) -> None:
        self._lock = threading.RLock()
        self._askers: set[int] = set()
        self.is_contended = threading.Event()

    def __enter__(self) -> None:
        self._askers.add(threading.get_ident())
        if len(self._askers) > 1:
            self.is_contended.set()
        self._lock.acquire()

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._lock.release()


def test_threads_take_turns_to_save(node: Node, monkeypatch: pytest.MonkeyPatch) -> None:
    """Else one reads the agent's answer to the other."""
    worker, lock, begun = node.worker(), Watched(), threading.Event()

    def slow(*_: object) -> bool:
        begun.set()
        assert lock.is_contended.wait(DEADLINE)
        return False

    monkeypatch.setattr(worker, "_lock", lock)
    monkeypatch.setattr(f"{CHECKPOINTER}.is_steady", slow)
    with ThreadPoolExecutor(2) as pool:
        first = pool.submit(worker.save, 1, STATE)
        assert begun.wait(DEADLINE)
        second = pool.submit(worker.save, 2, STATE)
        assert first.result(DEADLINE)
        assert [holding.commit for holding in node.host.holdings()] == [CommitId(1, 1)]
        node.host.judge(kept=CommitId(1, 1))
        assert second.result(DEADLINE)
    node.restart(2)


def test_a_handler_that_saves_during_a_save_is_refused(
    node: Node, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    worker, answers = node.worker(), list[bool]()

    def interrupted(*_: object) -> bool:
        answers.append(worker.save(7, STATE, always=True))
        return False

    monkeypatch.setattr(f"{CHECKPOINTER}.is_steady", interrupted)
    assert worker.save(1, STATE)
    assert answers == [False]
    assert caplog.messages == ["step 7 is not saved: a signal's handler asks during another save"]
    node.restart(1)
