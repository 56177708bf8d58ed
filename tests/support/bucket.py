"""An object store in memory: without rename, without folders, and failing on demand."""

from __future__ import annotations

from typing import Any, ClassVar

import fsspec
from fsspec.implementations.memory import MemoryFile, MemoryFileSystem


class Bucket(MemoryFileSystem):  # type: ignore[misc]
    """``bucket://name/...``; what it has is shared by all instances."""

    protocol = "bucket"
    store: ClassVar[dict[str, Any]] = {}
    pseudo_dirs: ClassVar[list[str]] = [""]
    fails = ""  # the call that fails
    calls = 0
    last: int | None = None  # the number of the call that fails, and with it all that follow

    @classmethod
    def clear(cls) -> None:
        cls.store.clear()
        cls.fails, cls.calls, cls.last = "", 0, None

    @classmethod
    def called(cls, name: str) -> None:
        cls.calls += name in ("open", "write", "close", "rm_file")
        if name == cls.fails or (cls.last is not None and cls.calls >= cls.last):
            raise RuntimeError(f"{name} does not work today")

    @classmethod
    def _strip_protocol(cls, path: str) -> str:
        return "/" + path.removeprefix("bucket://").strip("/")

    def makedirs(self, path: str, exist_ok: bool = False) -> None:
        """There are no folders."""

    def rmdir(self, path: str) -> None:
        raise FileNotFoundError(path)

    def mv(self, *_: object, **__: object) -> None:
        raise NotImplementedError("an object store has no rename")

    rename = cp_file = mv

    def ls(self, path: str, detail: bool = True, **more: Any) -> Any:
        self.called("ls")
        return super().ls(path, detail, **more)

    def cat_file(self, path: str, **more: Any) -> Any:
        self.called("cat_file")
        return super().cat_file(path, **more)

    def rm_file(self, path: str) -> None:
        self.called("rm_file")
        if self.store.pop(self._strip_protocol(path), None) is None:
            raise FileNotFoundError(path)

    def _open(self, path: str, mode: str = "rb", **_: Any) -> Any:
        if mode != "wb":
            return super()._open(path, mode)
        self.called("open")
        return Upload(self, self._strip_protocol(path))


class Upload(MemoryFile):  # type: ignore[misc]
    """An object that is there once it is closed; if that fails, it may be there in part."""

    has_ended = False

    def write(self, data: Any) -> int:
        self.fs.called("write")
        return int(super().write(data))

    def discard(self) -> None:
        self.has_ended = True

    def close(self) -> None:
        if not self.has_ended:  # it is called again when the object is forgotten
            self.has_ended = True
            self.commit()
            self.fs.called("close")


fsspec.register_implementation("bucket", Bucket, clobber=True)
