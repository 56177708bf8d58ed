"""The program that serves stores, with something that stands for torch."""

from __future__ import annotations

from typing import Any

from elasticrun.worker.store_server import HERE, open_store


class OldTorch:
    """As torch 2.4: its newer backend, the default, does not serve on a socket that is given."""

    def TCPStore(self, *args: Any, use_libuv: bool = True, **terms: Any) -> Any:
        if use_libuv:
            raise NotImplementedError("The libuv TCPStore backend does not support a listen fd")
        return args, terms


def test_an_old_torch_serves_by_its_older_backend() -> None:
    args, terms = open_store(OldTorch(), 29500, 7)
    assert args == (HERE, 29500)
    assert terms == {"is_master": True, "wait_for_workers": False, "master_listen_fd": 7}
