"""Several hosts on one box: a network namespace and a host name each, joined by a switch in another one.

The theory: a host *is* a small process (``cat``) that holds its namespaces open, and everything that runs
on the host enters them. Nothing has a name in the file system, no interface is ever made outside these
namespaces, and ``cat`` ends when its stdin does: however a test run ends, the kernel takes everything back
once the last process of a host is gone. So there is nothing to clean up, and test runs may go side by side.

    host0 10.77.0.1 ──eth0═port0──┐
    host1 10.77.0.2 ──eth0═port1──┼── bridge (a namespace without an address)
    host2 10.77.0.3 ──eth0═port2──┘

The files of the hosts are this box's, but each host has a temporary directory of its own. Faults that an
endpoint can notice (a closed connection) are made by killing processes; faults that it cannot are made in the
network, where packets vanish without an answer.
"""

from __future__ import annotations

import contextlib
import functools
import json
import os
import signal
import subprocess
import sys
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import pytest

from tests.support.cluster import WORKER, Cluster
from tests.support.launcher import MODULE, Launcher
from tests.support.processes import DEADLINE, kill_marked, marked, only, titled

FORWARDER = Path(__file__).with_name("forwarder.py")
PORT = 29400
#: A host's end of its cable. gloo is told, as it would ask for the address of a host name that nobody knows.
INTERFACE = "eth0"
_HOLD = 'echo "$1" > /proc/sys/kernel/hostname && ip link set lo up && echo $$ && exec cat'
_TRY = """\
import socket, sys
try:
    socket.create_connection((sys.argv[1], 9), float(sys.argv[2]))
except ConnectionRefusedError:
    sys.exit(0)  # an answer
except OSError:
    sys.exit(1)
"""


_MARK = 77  # on the forwarder's own connections
_CUT, _SLOW, _COUNT = "elasticrun_cut", "elasticrun_slow", "elasticrun_count"  # tables of the packet filter
_IN = "add chain @ in { type filter hook input priority 0; }"
_OUT = "add chain @ out { type filter hook output priority 0; }"


def _redirect(port: int) -> tuple[str, ...]:
    """Lead every TCP connection of this host, either way, to the forwarder at a port."""
    return (
        "add chain @ in { type nat hook prerouting priority -100; }",
        "add chain @ out { type nat hook output priority -100; }",
        f'add rule @ in iifname != "lo" ip protocol tcp redirect to :{port}',
        f'add rule @ out oifname != "lo" meta mark != {_MARK} ip protocol tcp redirect to :{port}',
    )


def _environment() -> dict[str, str]:
    """Ours, with the folders in which Debian keeps ip and nft: not everybody's PATH has them."""
    return {**os.environ, "PATH": f"{os.environ.get('PATH', '')}:/usr/sbin:/sbin"}


class NoHostsError(Exception):
    """This box cannot do it; the sentence says why."""


def _call(*argv: str, stdin: str = "") -> str:
    """What a command prints; NoHostsError if there is no such command or it fails."""
    try:
        done = subprocess.run(
            argv, input=stdin, capture_output=True, text=True, timeout=DEADLINE, env=_environment()
        )
    except FileNotFoundError:
        raise NoHostsError(f"there is no command {argv[0]}") from None
    if done.returncode:
        raise NoHostsError(f"{' '.join(argv)}: {done.stderr.strip()}")
    return done.stdout


class Namespace:
    """A network namespace and a host name, held by a process; in a time namespace too if ``uptime`` is given.

    ``uptime`` is in seconds, added to what this box's monotonic clocks say.
    """

    def __init__(self, name: str, uptime: int = 0) -> None:
        clocks = ("--time", f"--monotonic={uptime}", f"--boottime={uptime}", "--fork") if uptime else ()
        try:
            self._holder = subprocess.Popen(
                ["unshare", "--net", "--uts", *clocks, "sh", "-ec", _HOLD, "sh", name],
                stdin=subprocess.PIPE,
                stdout=subprocess.PIPE,
                stderr=subprocess.PIPE,
                text=True,
                start_new_session=True,  # a Ctrl-C at the tests is not a power cut
                env=_environment(),
            )
        except FileNotFoundError:
            raise NoHostsError("there is no command unshare") from None
        assert self._holder.stdout is not None
        answer = self._holder.stdout.readline()
        if not answer:
            _, words = self._holder.communicate(timeout=DEADLINE)
            raise NoHostsError(f"no namespaces for {name}: {words.strip()}")
        self.pid = int(answer)
        kinds = ("--net", "--uts", "--time") if uptime else ("--net", "--uts")
        self.enter = ("nsenter", f"--target={self.pid}", *kinds)  # goes in front of a command

    def call(self, *argv: str, stdin: str = "") -> str:
        """Run a command in here to its end; what it printed."""
        return _call(*self.enter, *argv, stdin=stdin)

    def ip(self, *lines: str) -> None:
        """Give ``ip`` these commands."""
        self.call("ip", "-batch", "-", stdin="\n".join(lines))

    def nft(self, table: str, *lines: str) -> None:
        """Replace a table of the packet filter by these rules, or chains with rules; none removes it.

        A chain is "in" or "out", of the packets that come or go.
        """
        script = [f"add table inet {table}", f"delete table inet {table}"]
        if lines:
            script.append(f"add table inet {table}")
            script += [line.replace(" @ ", f" inet {table} ") for line in lines]
        self.call("nft", "-f", "-", stdin="\n".join(script))

    def close(self) -> None:
        """Let go: the kernel removes what nobody is left in."""
        self._holder.communicate(timeout=DEADLINE)


@functools.cache
def why_no_hosts() -> str:
    """Why this box or user cannot emulate hosts; "" if it can."""
    if os.geteuid() != 0:
        return "needs root, to make network namespaces"
    try:
        trial = Namespace("trial")
        try:
            trial.ip("link add bridge type bridge", "link add trial0 type veth peer name trial1")
        finally:
            trial.close()
    except NoHostsError as error:
        return f"needs network namespaces, bridges and veth pairs: {error}"
    return ""


@functools.cache
def why_no_filter() -> str:
    """Why packets cannot be dropped or redirected here; "" if they can."""
    trial = Namespace("trial")
    try:
        trial.nft(_CUT, _IN, _OUT)
        trial.nft(_SLOW, *_redirect(9))
    except NoHostsError as error:
        return f"needs nft (Debian: apt-get install nftables): {error}"
    finally:
        trial.close()
    return ""


@functools.cache
def why_no_uptime() -> str:
    """Why a host cannot have a monotonic clock of its own; "" if it can."""
    try:
        Namespace("trial", uptime=1).close()
    except NoHostsError as error:
        return f"needs time namespaces: {error}"
    return ""


@dataclass
class Host:
    """One host, and the launchers that run on it."""

    index: int
    namespace: Namespace
    folder: Path  # its temporary directory
    launchers: list[Launcher] = field(default_factory=list)

    @property
    def name(self) -> str:
        return f"host{self.index}"

    @property
    def address(self) -> str:
        return f"10.77.0.{self.index + 1}"

    @property
    def processes(self) -> list[int]:
        """Everything that its launchers started and that is alive."""
        return [pid for launcher in self.launchers for pid in marked(launcher.mark)]


class Hosts:
    """The hosts of one test, by number; host 0 owns the rendezvous endpoint."""

    def __init__(self, cluster: Cluster, switch: Namespace, namespaces: contextlib.ExitStack) -> None:
        self.cluster = cluster
        self.director = cluster.director
        self.hosts: list[Host] = []
        self._switch = switch
        self._namespaces = namespaces

    def __getitem__(self, index: int) -> Host:
        return self.hosts[index]

    def add(self, uptime: int = 0) -> Host:
        """One more host; ``uptime`` puts its monotonic clock ahead by so many seconds."""
        index = len(self.hosts)
        namespace = Namespace(f"host{index}", uptime)
        self._namespaces.callback(namespace.close)
        folder = self.cluster.folder / f"host{index}"
        folder.mkdir()
        host = Host(index, namespace, folder)
        self._switch.ip(
            f"link add port{index} type veth peer name {INTERFACE} netns {namespace.pid}",
            f"link set port{index} master bridge up",
        )
        namespace.ip(f"addr add {host.address}/16 dev {INTERFACE}", f"link set {INTERFACE} up")
        self.hosts.append(host)
        return host

    # -- launchers

    @property
    def endpoint(self) -> str:
        return f"{self[0].address}:{PORT}"

    def launch(
        self,
        index: int,
        *args: str | Path,
        env: dict[str, str] | None = None,
        inside: Sequence[str] = (),
        **rest: Any,
    ) -> Launcher:
        """A launcher on a host with exactly these arguments; ``inside`` goes in front of the command."""
        host = self[index]
        rest.setdefault("name", host.name)
        launcher = self.cluster.launch(
            *args,
            env={"TMPDIR": str(host.folder), "GLOO_SOCKET_IFNAME": INTERFACE, **(env or {})},
            command=(*host.namespace.enter, *inside, *MODULE),
            **rest,
        )
        host.launchers.append(launcher)
        return launcher

    def node(
        self,
        index: int,
        nnodes: str,
        *args: str | Path,
        script: Path = WORKER,
        words: Sequence[str] = (),
        **rest: Any,
    ) -> Launcher:
        """A launcher on a host that meets the others at host 0, of remote-controlled workers by default.

        ``words``: the arguments of the script.
        """
        endpoint = ("--rdzv-backend=c10d", f"--rdzv-endpoint={self.endpoint}", "--rdzv-id=job")
        own = (f"--nnodes={nnodes}", f"--node-rank={index}")
        return self.launch(index, *endpoint, *own, *args, script, *words, **rest)

    def master(self, index: int = 0) -> int:
        """The pid of the master that runs on a host."""
        return only([pid for it in self[index].launchers for pid in titled(it.mark, "elastic-run: master")])

    # -- the network

    def reaches(self, source: int, target: int, within: float = DEADLINE) -> bool:
        """Whether ``target`` answers ``source``; it waits ``within`` seconds before it says no."""
        program = (sys.executable, "-ISc", _TRY, self[target].address, str(within))
        argv = (*self[source].namespace.enter, *program)
        return subprocess.run(argv, timeout=2 * DEADLINE).returncode == 0

    def cut(self, index: int) -> None:
        """Pull the cable: nothing comes or goes any more, and nobody is told."""
        self._switch.ip(f"link set port{index} down")

    def drop(self, index: int) -> None:
        """As ``cut``, while the link stays up; what a firewall or a dead router does."""
        rules = ('add rule @ in iifname != "lo" drop', 'add rule @ out oifname != "lo" drop')
        self[index].namespace.nft(_CUT, _IN, _OUT, *rules)

    def cut_one_way(self, source: int, target: int) -> None:
        """What ``source`` sends never arrives at ``target``; the other direction works."""
        self[target].namespace.nft(_CUT, _IN, f"add rule @ in ip saddr {self[source].address} drop")

    def count_connections(self, index: int) -> Callable[[], set[str]]:
        """From now on note each TCP connection that this host tries to open to the master, by its port."""
        namespace = self[index].namespace
        namespace.nft(
            _COUNT,
            "add set @ ports { type inet_service; flags dynamic; size 1024; }",
            _OUT,
            f"add rule @ out tcp dport {PORT} tcp flags & (syn | ack) == syn add @ports {{ tcp sport }}",
        )

        def counted() -> set[str]:
            listed = namespace.call("nft", "-j", "list", "set", "inet", _COUNT, "ports")
            return {
                str(it)
                for each in json.loads(listed)["nftables"]
                for it in each.get("set", {}).get("elem", ())
            }

        return counted

    def heal(self) -> None:
        """Plug in every cable, and let every packet pass."""
        self._switch.ip(*(f"link set port{host.index} up" for host in self.hosts))
        if not why_no_filter():
            for host in self.hosts:
                host.namespace.nft(_CUT)

    def slow(self, index: int, delay: float, rate: float = 0.0) -> None:
        """From now on this host's TCP connections take ``delay`` seconds longer in each direction.

        ``rate`` in bytes a second bounds each direction of each connection; 0 does not. Connections that
        exist stay as they are.
        """
        namespace = self[index].namespace
        forwarder = subprocess.Popen(
            [*namespace.enter, sys.executable, "-IS", str(FORWARDER), str(_MARK), str(delay), str(rate)],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            text=True,
        )
        self._namespaces.callback(forwarder.communicate)  # it ends with its stdin
        assert forwarder.stdout is not None
        port = int(forwarder.stdout.readline())
        namespace.nft(_SLOW, *_redirect(port))

    # -- whole hosts

    def freeze(self, index: int) -> None:
        """SIGSTOP everything; the host's kernel still answers for it."""
        for pid in self[index].processes:
            os.kill(pid, signal.SIGSTOP)

    def thaw(self, index: int) -> None:
        """SIGCONT everything."""
        for pid in self[index].processes:
            os.kill(pid, signal.SIGCONT)

    def kill(self, index: int) -> None:
        """SIGKILL everything; the host's kernel lives and closes the connections."""
        for launcher in self[index].launchers:
            kill_marked(launcher.mark)

    def lose(self, index: int) -> None:
        """The host loses power: it is silent first, then everything on it is dead."""
        self.cut(index)
        self.kill(index)


@contextlib.contextmanager
def switch() -> Iterator[tuple[Namespace, contextlib.ExitStack]]:
    with contextlib.ExitStack() as namespaces:
        switch = Namespace("switch")
        namespaces.callback(switch.close)
        switch.ip("link add bridge type bridge", "link set bridge up")
        yield switch, namespaces


@pytest.fixture
def network() -> Iterator[tuple[Namespace, contextlib.ExitStack]]:
    """The switch of one test, which goes after the launchers have gone."""
    if why := why_no_hosts():
        pytest.skip(why)
    with switch() as made:
        yield made


@pytest.fixture
def blank_hosts(network: tuple[Namespace, contextlib.ExitStack], cluster: Cluster) -> Hosts:
    """A network without a host yet."""
    return Hosts(cluster, *network)


@pytest.fixture
def hosts(blank_hosts: Hosts) -> Hosts:
    """Three hosts."""
    for _ in range(3):
        blank_hosts.add()
    return blank_hosts


def needs_filter() -> None:
    """Skip a test that drops or redirects packets where that is impossible."""
    if why := why_no_filter():
        pytest.skip(why)
