"""Certificates for tests, made by the openssl program."""

from __future__ import annotations

import shutil
import subprocess
from pathlib import Path

import pytest

from elasticrun.config import TlsConfig

needs_openssl = pytest.mark.skipif(shutil.which("openssl") is None, reason="there is no openssl program here")

_KEY = ("-newkey", "ec", "-pkeyopt", "ec_paramgen_curve:P-256", "-nodes")
LOOPBACK = "DNS:localhost,IP:127.0.0.1,IP:::1"


class Authority:
    """Signs certificates; each is a pair of files in ``directory``."""

    def __init__(self, directory: Path, name: str) -> None:
        self._directory = directory
        self._name = name
        self.ca = str(directory / f"{name}.pem")
        _openssl("req", "-x509", *_KEY, "-subj", f"/CN={name}", "-keyout", self._key, "-out", self.ca)

    def issue(self, name: str, names: str = LOOPBACK, days: int = 1) -> TlsConfig:
        """A certificate for a program, with its key; of -1 days: one that has expired."""
        cert, key, request, extensions = (
            str(self._directory / f"{self._name}-{name}.{end}") for end in ("pem", "key", "csr", "ext")
        )
        Path(extensions).write_text(f"subjectAltName={names}\n")
        _openssl("req", *_KEY, "-subj", f"/CN={name}", "-keyout", key, "-out", request)
        _openssl(
            *("x509", "-req", "-in", request, "-CA", self.ca, "-CAkey", self._key, "-CAcreateserial"),
            *("-days", str(days), "-extfile", extensions, "-out", cert),
        )
        return TlsConfig(self.ca, cert, key)

    @property
    def _key(self) -> str:
        return str(self._directory / f"{self._name}.key")


def _openssl(*arguments: str) -> None:
    subprocess.run(["openssl", *arguments], check=True, capture_output=True, timeout=60)
