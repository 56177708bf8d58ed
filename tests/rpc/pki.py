"""Certificates for tests, as ``elastic-ctl certs`` makes them."""

from __future__ import annotations

from datetime import datetime, timezone
from pathlib import Path

from elasticrun.cli import authority
from elasticrun.config import TlsConfig

LOOPBACK = ("localhost", "127.0.0.1", "::1")


class Authority:
    """Signs certificates; each is a pair of files in ``directory``."""

    def __init__(self, directory: Path, name: str) -> None:
        self._directory = directory
        self._name = name
        self._pair = authority.new_authority(name, datetime.now(timezone.utc), days=1)
        self.ca = self._write("pem", self._pair.cert_pem)

    def issue(self, name: str, *names: str, days: int = 1) -> TlsConfig:
        """A certificate for a program, with its key; of -1 days: one that has expired."""
        made = authority.issue(self._pair, names or LOOPBACK, datetime.now(timezone.utc), days)
        cert, key = self._write(f"{name}.pem", made.cert_pem), self._write(f"{name}.key", made.key_pem)
        return TlsConfig(self.ca, cert, key)

    def _write(self, end: str, data: bytes) -> str:
        path = self._directory / f"{self._name}-{end}"
        path.write_bytes(data)
        return str(path)
