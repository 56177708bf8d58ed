"""Real sshd on loopback addresses of this box, each of which plays a host.

Keys, configuration and known hosts lie in the test's folder; nothing of the system's ssh is read or used.
Whatever a session starts carries the servers' mark, so that it can be found, and cannot outlive the test.
"""

from __future__ import annotations

import os
import pwd
import shutil
import subprocess
import threading
import uuid
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.support.launcher import MARK, ROOT, clean_environment
from tests.support.ports import free_port
from tests.support.processes import DEADLINE, Hung, kill_marked, marked, nobody_left, title

HOSTS = ("127.0.0.2", "127.0.0.3", "127.0.0.4")
#: A privileged sshd insists on this directory, which Debian makes when the system's service starts.
_SEPARATION = Path("/run/sshd")


def find_sshd() -> str | None:
    return shutil.which("sshd", path=os.environ.get("PATH", "") + ":/usr/sbin:/usr/local/sbin")


def make_key(path: Path) -> str:
    """A key pair without a passphrase; returns the public half."""
    subprocess.run(["ssh-keygen", "-q", "-t", "ed25519", "-N", "", "-f", path], check=True)
    return path.with_name(f"{path.name}.pub").read_text()


class Sshd:
    """Servers on ``HOSTS``, all with the same port and keys."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self.port = free_port()
        self.mark = f"{MARK}={uuid.uuid4().hex}"
        self.key, self.known = folder / "key", folder / "known_hosts"
        self._host_key = folder / "host_key"
        (folder / "authorized").write_text(make_key(self.key))
        kind, text, *_ = make_key(self._host_key).split()
        self.known.write_text("".join(f"[{host}]:{self.port} {kind} {text}\n" for host in HOSTS))
        self._program = folder / "ssh"
        self._program.write_text('#!/bin/sh\nexec ssh -F none "$@"\n')  # not the configuration of this user
        self._program.chmod(0o755)
        self._servers: list[subprocess.Popen[bytes]] = []

    def start(self) -> None:
        name, _, value = self.mark.partition("=")
        for host in HOSTS:
            config = self.folder / f"sshd_{host}"
            lines = (
                f"ListenAddress {host}:{self.port}",
                f"HostKey {self._host_key}",
                f"AuthorizedKeysFile {self.folder}/authorized",
                f"SetEnv {name}={value} PYTHONPATH={ROOT}",
                "PidFile none",
                "StrictModes no",
                "UsePAM no",
                "PasswordAuthentication no",
                "PermitRootLogin yes",
                "PrintMotd no",
                "MaxStartups 100",
            )
            config.write_text("\n".join(lines) + "\n")
            self._servers.append(self._serve(config))

    def _serve(self, config: Path) -> subprocess.Popen[bytes]:
        """A server that listens."""
        name, _, value = self.mark.partition("=")
        program = find_sshd()
        assert program is not None
        server = subprocess.Popen(
            [program, "-D", "-e", "-f", config],
            env=clean_environment(**{name: value}),
            stdin=subprocess.DEVNULL,
            stderr=subprocess.PIPE,
            start_new_session=True,
        )
        listens, said = threading.Event(), list[bytes]()

        def read() -> None:
            assert server.stderr is not None
            with server.stderr as lines:
                for line in lines:
                    said.append(line)
                    if b"Server listening" in line:
                        listens.set()
            listens.set()

        threading.Thread(target=read, daemon=True).start()
        if not listens.wait(DEADLINE) or server.poll() is not None:
            raise Hung(f"sshd does not listen: {said}")
        return server

    def options(self, **other: str) -> list[str]:
        """Options of ``elastic-ctl launch`` that reach these servers."""
        values = {
            "Port": str(self.port),
            "IdentityFile": str(self.key),
            "IdentitiesOnly": "yes",
            "IdentityAgent": "none",
            "UserKnownHostsFile": str(self.known),
            "GlobalKnownHostsFile": "none",
            "StrictHostKeyChecking": "yes",
            **other,
        }
        return ["--ssh", str(self._program), *(f"--ssh-option={name}={it}" for name, it in values.items())]

    def sessions(self) -> list[int]:
        """What runs for logins."""
        servers = {server.pid for server in self._servers}
        return [pid for pid in marked(self.mark) if pid not in servers and not title(pid).startswith("sshd")]

    def why_useless(self) -> str:
        """Why this user cannot log in here; "" if it works."""
        words = [str(self._program), "-o", "BatchMode=yes"]
        options = [f"-o{word.partition('=')[2]}" for word in self.options()[2:]]
        done = subprocess.run(
            [*words, *options, HOSTS[0], "true"],
            capture_output=True,
            text=True,
            timeout=DEADLINE,
            check=False,
        )
        return "" if done.returncode == 0 else done.stderr.strip() or f"exit status {done.returncode}"

    def close(self) -> None:
        self._stop()
        kill_marked(self.mark)

    def nobody_left(self) -> None:
        """Nothing that a login started is alive."""
        self._stop()
        nobody_left(self.mark)

    def _stop(self) -> None:
        """Kill the servers, which have overwritten their environment: their mark is gone."""
        for server in self._servers:
            server.kill()
            server.wait()


@pytest.fixture
def sshd(tmp_path: Path) -> Iterator[Sshd]:
    """Servers that this user can log in to."""
    if find_sshd() is None or shutil.which("ssh") is None or shutil.which("ssh-keygen") is None:
        pytest.skip("needs ssh and sshd: apt-get install openssh-server")
    if os.geteuid() == 0:
        _SEPARATION.mkdir(mode=0o755, exist_ok=True)
    folder = tmp_path / "sshd"
    folder.mkdir(mode=0o700)
    servers = Sshd(folder)
    try:
        servers.start()
        if why := servers.why_useless():
            pytest.skip(f"needs a login of {pwd.getpwuid(os.geteuid()).pw_name} by ssh: {why}")
        yield servers
    finally:
        servers.close()
