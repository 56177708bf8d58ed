"""Hosting with real processes: a scripted one in the master's place, and the real master where it counts."""

from __future__ import annotations

import asyncio
import json
import os
import select
import signal
import socket
import subprocess
import sys
import tempfile
import threading
from collections.abc import Coroutine, Iterator, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from elasticrun import __version__
from elasticrun.agent.master_host import hosting as module
from elasticrun.agent.master_host.addressing import Place, Survey
from elasticrun.agent.master_host.hosting import (
    MasterCommand,
    MasterCrashedError,
    MasterHost,
    MasterRefusedError,
    SteppedDownError,
)
from elasticrun.config import Endpoint, JobConfig, RendezvousConfig, SecurityConfig
from elasticrun.core.protocol.messages import AgentPhase, AgentStatus, Hello, JournalCopy, NodeInfo
from elasticrun.errors import MasterUnreachableError, NodeFaultError, UsageError
from elasticrun.rpc.local import LocalStream
from elasticrun.rpc.records import to_json
from elasticrun.rpc.stream import StreamBrokenError
from tests.support.processes import DEADLINE

ROOT = Path(__file__).parent.parent.parent

#: Reads the settings, says its lines, then lives until stdin ends.
SCRIPT = """
import json, sys
settings = json.loads(sys.stdin.readline())
print({lines!r}.format(**settings), end="", flush=True)
{then}
"""
LIVE = "sys.stdin.read()"
ANSWER = "print(json.dumps({'port': 1}), flush=True)"


def run(main: Coroutine[Any, Any, None]) -> None:
    asyncio.run(asyncio.wait_for(main, DEADLINE))


class Hosts:
    """Makes hosts whose masters are scripted, and remembers every process."""

    def __init__(self, directory: Path) -> None:
        self.directory = directory
        self.settings: list[dict[str, object]] = []
        self.made: list[MasterHost] = []

    def __call__(
        self,
        lines: str = '{{"port": 4711}}\n',
        then: str = LIVE,
        config: RendezvousConfig | None = None,
        argv: tuple[str, ...] | None = None,
        is_private: bool = False,
    ) -> MasterHost:
        def settings(host: str, port: int, state_dir: str) -> dict[str, object]:
            self.settings.append({"host": host, "port": port, "state_dir": state_dir})
            return {
                "job": to_json(JobConfig()),
                "log_level": "WARNING",
                "event_dir": "",
                "security": to_json(SecurityConfig()),
                **self.settings[-1],
            }

        script = argv or (sys.executable, "-c", SCRIPT.format(lines=lines, then=then))
        alone = RendezvousConfig(Endpoint("127.0.0.1", 0), standalone=True)
        host = MasterHost(config or alone, MasterCommand(script, settings), is_private)
        self.made.append(host)
        return host

    def real(self, config: RendezvousConfig | None = None, is_private: bool = False) -> MasterHost:
        """A host of true masters."""
        code = f"import sys; sys.path[:] = {sys.path!r}; from elasticrun.cli.master import main; "
        argv = (sys.executable, "-c", code + "sys.exit(main())")
        return self(config=config, argv=argv, is_private=is_private)

    @property
    def temporary(self) -> list[Path]:
        """The temporary state directories that exist."""
        return list(self.directory.glob("elasticrun_master_*"))


def process_of(host: MasterHost) -> subprocess.Popen[bytes]:
    assert host._process is not None
    process = host._process.process
    assert isinstance(process, subprocess.Popen)
    return process


def wait_end(process: subprocess.Popen[bytes]) -> None:
    process.wait(DEADLINE)


@pytest.fixture
def hosts(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Hosts]:
    directory = tmp_path / "tmp"
    directory.mkdir()
    monkeypatch.setattr(tempfile, "tempdir", str(directory))
    made = Hosts(directory)
    yield made
    for host in made.made:
        if host._process is not None:
            host._process.process.kill()
            host._clean_up()


def free_endpoint() -> Endpoint:
    with socket.create_server(("127.0.0.1", 0)) as server:
        return Endpoint("127.0.0.1", server.getsockname()[1])


def test_the_master_says_its_port_and_ends_when_let_go(hosts: Hosts) -> None:
    async def main() -> None:
        host = hosts()
        host.begin()
        assert await host.endpoint() == Endpoint("127.0.0.1", 4711)
        assert host.hosts
        assert hosts.temporary == [Path(str(hosts.settings[0]["state_dir"]))]
        process = process_of(host)
        await host.close(DEADLINE)
        assert process.returncode == 0
        assert hosts.temporary == []
        await host.close(DEADLINE)  # again is harmless

    run(main())


def test_the_endpoint_starts_a_master_if_nobody_began(hosts: Hosts) -> None:
    async def main() -> None:
        host = hosts()
        assert await host.endpoint() == Endpoint("127.0.0.1", 4711)
        assert host.found.place is Place.HERE
        await host.close(DEADLINE)

    run(main())


def test_what_startup_files_print_is_not_an_answer(hosts: Hosts) -> None:
    noise = 'Welcome to Python!\n5\n[]\n{{"port of call": 1}}\n\n{{"port": 4711}}\n'

    async def main() -> None:
        host = hosts(noise)
        assert await host.endpoint() == Endpoint("127.0.0.1", 4711)
        await host.close(DEADLINE)

    run(main())


def test_a_refusal_is_told_in_the_masters_words(hosts: Hosts) -> None:
    async def main() -> None:
        host = hosts('{{"error": "the disk is full"}}\n', "sys.exit(2)")
        with pytest.raises(MasterRefusedError, match="the disk is full"):
            await host.endpoint()
        await host.close(DEADLINE)
        assert hosts.temporary == []

    run(main())


def test_a_lost_race_makes_a_client_that_remembers_why(hosts: Hosts) -> None:
    async def main() -> None:
        endpoint = free_endpoint()
        host = hosts('{{"taken": "in use"}}\n', "sys.exit(5)", RendezvousConfig(endpoint))
        assert await host.endpoint() == endpoint
        assert host.trouble == "in use"
        wait_end(process_of(host))
        with socket.create_server((endpoint.host, endpoint.port)):
            assert await host.endpoint() == endpoint
        assert host.found.place is Place.OCCUPIED
        assert not host.hosts
        assert len(hosts.settings) == 1
        await host.close(DEADLINE)
        assert hosts.temporary == []

    run(main())


@pytest.mark.parametrize("last_words", ["", '{{"port": 1', "Traceback\n"])
def test_a_crash_is_no_reason_to_try_for_ever(hosts: Hosts, last_words: str) -> None:
    async def main() -> None:
        host = hosts(last_words, "sys.exit(3)")
        with pytest.raises(MasterCrashedError, match="ended with exit code 3 before it served"):
            await host.endpoint()
        await host.close(DEADLINE)

    run(main())


def test_a_master_that_is_killed_is_started_again(hosts: Hosts) -> None:
    async def main() -> None:
        host = hosts("", "import os, signal; os.kill(os.getpid(), signal.SIGKILL)")
        for attempt in (1, 2):
            with pytest.raises(MasterUnreachableError, match="was killed by signal 9"):
                await host.endpoint()
            assert len(hosts.settings) == attempt
        assert "killed by signal 9" in host.trouble
        await host.close(DEADLINE)
        assert hosts.temporary == []

    run(main())


def test_a_slow_master_is_not_waited_for_in_one_go(hosts: Hosts, monkeypatch: pytest.MonkeyPatch) -> None:
    async def main() -> None:
        host = hosts('{{"port": ', 'sys.stdin.readline(); print("4711}", flush=True); sys.stdin.read()')
        host.begin()
        monkeypatch.setattr(module, "ANSWER_TIMEOUT", 0.01)
        for _ in range(2):
            with pytest.raises(MasterUnreachableError, match=r"has not begun to serve within 0\.01 s"):
                await host.endpoint()
        monkeypatch.setattr(module, "ANSWER_TIMEOUT", DEADLINE)
        stdin = process_of(host).stdin
        assert stdin is not None
        stdin.write(b"go on\n")
        assert (await host.endpoint()).port == 4711
        assert len(hosts.settings) == 1
        assert host.trouble == ""
        await host.close(DEADLINE)

    run(main())


def test_the_next_master_has_the_directory_and_the_port_of_the_last(hosts: Hosts) -> None:
    async def main() -> None:
        port = free_endpoint().port
        host = hosts(f'{{{{"port": {port}}}}}\n')
        assert (await host.endpoint()).port == port
        process_of(host).kill()
        wait_end(process_of(host))
        assert (await host.endpoint()).port == port
        first, second = hosts.settings
        assert first["state_dir"] == second["state_dir"]
        assert (first["port"], second["port"]) == (0, port)
        await host.close(DEADLINE)
        assert hosts.temporary == []

    run(main())


def test_alone_another_port_does_as_well(hosts: Hosts) -> None:
    async def main() -> None:
        with socket.create_server(("127.0.0.1", 0)) as held:
            host = hosts(f'{{{{"port": {held.getsockname()[1]}}}}}\n')
            await host.endpoint()
            process_of(host).kill()
            wait_end(process_of(host))
            await host.endpoint()
        assert [settings["port"] for settings in hosts.settings] == [0, 0]
        await host.close(DEADLINE)

    run(main())


def test_only_a_job_that_has_begun_is_resumed(hosts: Hosts, tmp_path: Path) -> None:
    config = RendezvousConfig(Endpoint("127.0.0.1", 0), standalone=True, state_dir=str(tmp_path / "state"))
    told = tmp_path / "told"
    then = f"open({str(told)!r}, 'a').write(json.dumps(settings) + chr(10)); {LIVE}"

    async def main() -> None:
        for resume in (False, True):
            host = hosts(then=then, config=config)
            host.resume = resume
            await host.endpoint()
            await host.close(DEADLINE)

    run(main())
    settings = [json.loads(line) for line in told.read_text().splitlines()]
    assert [each["resume"] for each in settings] == [False, True]
    assert [each["temporary"] for each in settings] == [False, False]
    assert {each["state_dir"] for each in settings} == {config.state_dir}
    assert hosts.temporary == []


def test_another_hosts_endpoint_is_left_to_it(hosts: Hosts) -> None:
    async def main() -> None:
        elsewhere = Endpoint("192.0.2.1", 29400)
        host = hosts(config=RendezvousConfig(elsewhere))
        host.begin()
        assert await host.endpoint() == elsewhere
        assert not host.hosts
        await host.close(DEADLINE)
        host.abandon()
        assert hosts.settings == []

    run(main())


def test_a_master_that_others_need_is_left_with_its_directory(hosts: Hosts) -> None:
    async def main() -> None:
        host = hosts(then="sys.stdin.read(); import signal; signal.pause()")
        await host.endpoint()
        await host.close(0.05)
        assert host.hosts
        assert len(hosts.temporary) == 1

    run(main())


def test_a_wait_for_the_master_can_be_cut_short(hosts: Hosts) -> None:
    async def main() -> None:
        host = hosts(then="sys.stdin.read(); import signal; signal.pause()")
        host.hurry()  # nothing to hurry yet
        await host.endpoint()
        closing = asyncio.ensure_future(host.close(DEADLINE * 100))
        while host._attention is None:
            await asyncio.wait((closing,), timeout=0.001)
        host.hurry()
        await closing
        assert host.hosts

    run(main())


def test_a_master_that_is_reaped_already_is_no_trouble_at_the_end(hosts: Hosts) -> None:
    async def main() -> None:
        host = hosts()
        await host.endpoint()
        process_of(host).kill()
        wait_end(process_of(host))  # as a look at ``hosts`` does
        await host.close(DEADLINE)
        assert hosts.temporary == []

    run(main())


def test_a_master_that_died_before_it_read_is_no_trouble_at_the_end(hosts: Hosts) -> None:
    async def main() -> None:
        host = hosts(argv=(sys.executable, "-c", "import os; os.close(0); os.close(1)"))
        with pytest.raises(MasterCrashedError, match="exit code 0"):
            await host.endpoint()
        await host.close(DEADLINE)

    run(main())


def test_cancelled_while_the_master_starts(hosts: Hosts) -> None:
    async def main() -> None:
        host = hosts("")
        waiting = asyncio.ensure_future(host.endpoint())
        while host._process is None:
            await asyncio.wait((waiting,), timeout=0.001)
        waiting.cancel()
        await asyncio.wait((waiting,))
        await host.close(DEADLINE)
        assert hosts.temporary == []

    run(main())


def test_cancelled_during_a_name_lookup_nothing_is_started(
    hosts: Hosts, monkeypatch: pytest.MonkeyPatch
) -> None:
    async def main() -> None:
        loop = asyncio.get_running_loop()
        asked, (answer, tell) = asyncio.Event(), os.pipe()

        def slow_survey(endpoint: Endpoint, is_host: bool | None) -> Survey:
            loop.call_soon_threadsafe(asked.set)
            select.select([answer], [], [], DEADLINE)
            return Survey(Place.HERE, "127.0.0.1", is_local=True)

        monkeypatch.setattr(module, "survey", slow_survey)
        host = hosts()
        waiting = asyncio.ensure_future(host.endpoint())
        await asked.wait()
        waiting.cancel()
        await asyncio.wait((waiting,))
        await host.close(DEADLINE)
        os.close(tell)
        await loop.shutdown_default_executor()
        os.close(answer)
        assert hosts.settings == []
        assert hosts.temporary == []

    run(main())


def test_abandoned_without_a_loop(hosts: Hosts) -> None:
    host = hosts("")
    host.begin()
    process = process_of(host)
    host.abandon()
    assert process.returncode == 0
    assert hosts.temporary == []


def test_abandoned_but_needed(hosts: Hosts, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(module, "_END_TIMEOUT", 0.05)
    host = hosts(then="import signal; signal.pause()")
    host.begin()
    host.abandon()
    assert host.hosts
    assert len(hosts.temporary) == 1


def test_no_process_to_be_had_is_told_in_a_sentence(hosts: Hosts) -> None:
    host = hosts(argv=("/nonexistent/python",))
    with pytest.raises(NodeFaultError, match="cannot start the master's process: No such file"):
        host.begin()
    host.abandon()
    assert hosts.temporary == []


def test_no_temporary_directory_to_be_had_is_told_in_a_sentence(
    hosts: Hosts, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(tempfile, "tempdir", str(hosts.directory / "missing"))
    with pytest.raises(UsageError, match="name a writable --state-dir"):
        hosts().begin()


@pytest.mark.parametrize("how", ["open", "link", "file"])
def test_a_squatted_directory_is_left_alone_and_named(
    how: str, hosts: Hosts, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    config = RendezvousConfig(free_endpoint())
    squatted = Path(hosts.directory, f"elasticrun_master_{os.getuid()}_{config.endpoint}".replace(":", "_"))
    theirs = tmp_path / "theirs"
    theirs.mkdir()
    if how == "open":
        squatted.mkdir()
        squatted.chmod(0o777)
    elif how == "link":
        squatted.symlink_to(theirs)
    else:
        squatted.touch()
    host = hosts(config=config)
    host.begin()
    used = Path(str(hosts.settings[0]["state_dir"]))
    assert used != squatted and used.stat().st_mode & 0o077 == 0
    (told,) = caplog.messages
    assert str(squatted) in told and "name a --state-dir" in told
    host.abandon()
    assert not any(theirs.iterdir()) and (how != "open" or not any(squatted.iterdir()))


def test_a_master_has_a_session_of_its_own_and_none_of_our_files(hosts: Hosts, tmp_path: Path) -> None:
    out = tmp_path / "out"
    look = "import os; seen = [os.getsid(0) == os.getpid(), sorted(os.listdir('/proc/self/fd'))]"
    then = f"{look}; open({str(out)!r}, 'w').write(json.dumps(seen)); {LIVE}"

    async def main() -> None:
        ours = socket.socketpair()
        os.set_inheritable(ours[0].fileno(), True)
        host = hosts("", then + "; print()")
        host.begin()
        await host.close(DEADLINE)
        for each in ours:
            each.close()

    run(main())
    own_session, fds = json.loads(out.read_text())
    assert own_session
    assert [fd for fd in fds if int(fd) > 3] == []  # 3 is the listing's own


# -- a list of endpoints


def of_two() -> tuple[Endpoint, Endpoint, RendezvousConfig]:
    """Two endpoints, of which the second is this host's, and the configuration that lists them."""
    first, second = Endpoint("192.0.2.1", 29400), free_endpoint()
    return first, second, RendezvousConfig(first, successors=(second,))


def test_only_its_own_endpoint_is_served_and_only_when_it_is_its_turn(hosts: Hosts) -> None:
    first, second, config = of_two()

    async def main() -> None:
        host = hosts(config=config)
        host.begin()
        assert (host.endpoints.position, host.endpoints.own, host.endpoints.others) == (1, second, (second,))
        assert not host.hosts
        assert await host.endpoint() == first
        host.endpoints.advance()
        assert (await host.endpoint()).port == 4711  # as the script says
        assert process_of(host).poll() is None
        host.endpoints.advance()
        assert await host.endpoint() == first, "and after the last one comes the first"
        await host.close(DEADLINE)
        assert hosts.temporary == []

    run(main())


def test_the_first_endpoints_host_serves_at_once(hosts: Hosts) -> None:
    async def main() -> None:
        config = RendezvousConfig(free_endpoint(), successors=(Endpoint("192.0.2.1", 1),))
        host = hosts(config=config)
        host.begin()
        assert (host.endpoints.position, host.hosts) == (0, True)
        assert host.endpoints.others == config.successors
        await host.close(DEADLINE)

    run(main())


def test_a_host_that_is_not_listed_serves_nothing(hosts: Hosts) -> None:
    async def main() -> None:
        host = hosts(
            config=RendezvousConfig(Endpoint("192.0.2.1", 1), successors=(Endpoint("203.0.113.1", 1),))
        )
        host.begin()
        assert (host.endpoints.position, host.endpoints.others) == (-1, ())
        for port in (1, 1, 1):
            assert (await host.endpoint()).port == port
            host.endpoints.advance()
        assert hosts.settings == []

    run(main())


UNKNOWN, OURS = (-1, Survey(Place.UNKNOWN)), (0, Survey(Place.HERE, "127.0.0.1", is_local=True))


@pytest.mark.parametrize(
    ("seen", "stopped", "patience", "lookups", "position"),
    [
        ([UNKNOWN, UNKNOWN, OURS], False, DEADLINE, 3, 0),
        ([(-1, Survey(Place.ELSEWHERE))], False, DEADLINE, 1, -1),
        ([UNKNOWN], True, DEADLINE, 1, -1),
        ([UNKNOWN], False, 0.0, 1, -1),
    ],
    ids=["it comes", "it is another's", "a signal", "it does not come"],
)
def test_the_name_of_this_host_may_come_later_than_its_agent(
    hosts: Hosts,
    monkeypatch: pytest.MonkeyPatch,
    seen: list[tuple[int, Survey]],
    stopped: bool,
    patience: float,
    lookups: int,
    position: int,
) -> None:
    done: list[tuple[int, Survey]] = []

    def look_up(endpoints: Sequence[Endpoint], is_host: bool | None) -> tuple[int, Survey]:
        done.append(seen[len(done)])
        return done[-1]

    monkeypatch.setattr(module, "own_position", look_up)
    monkeypatch.setattr(module, "NAMES_TIMEOUT", patience)
    host = hosts(config=of_two()[2])
    host.begin(lambda seconds: stopped)
    assert (len(done), host.endpoints.position, host.hosts) == (lookups, position, position == 0)
    host.abandon()


def test_a_master_is_let_go_when_its_agent_follows_another_one(hosts: Hosts) -> None:
    first, second, config = of_two()

    async def main() -> None:
        host = hosts('{{"port": {port}}}\n', config=config)
        host.begin()
        host.endpoints.advance()
        assert await host.endpoint() == second
        process = process_of(host)
        host.followed(second)
        assert host.hosts
        host.followed(first)
        await asyncio.get_running_loop().run_in_executor(None, wait_end, process)
        assert await host.endpoint() == first
        await host.close(DEADLINE)

    run(main())


def test_a_master_that_stepped_down_is_not_started_again_before_others_had_their_turn(
    hosts: Hosts,
) -> None:
    _, second, config = of_two()

    async def main() -> None:
        host = hosts('{{"port": {port}}}\n', "sys.exit(8)", config=config)
        host.begin()
        host.endpoints.advance()
        assert await host.endpoint() == second
        wait_end(process_of(host))
        with pytest.raises(SteppedDownError, match="stepped down"):
            await host.endpoint()
        assert await host.endpoint() == second
        assert len(hosts.settings) == 2
        await host.close(DEADLINE)

    run(main())


def test_the_copy_of_the_journal_is_where_a_master_started_here_finds_it(
    hosts: Hosts, tmp_path: Path
) -> None:
    told = tmp_path / "told"
    _, _, config = of_two()
    tell = f"open({str(told)!r}, 'w').write(json.dumps(settings)); {ANSWER}; {LIVE}"

    async def main() -> dict[str, Any]:
        host = hosts("", tell, config)
        host.begin()
        host.keep_copy(JournalCopy(2, 0, ("{}",)))
        host.endpoints.advance()
        await host.endpoint()
        settings: dict[str, Any] = json.loads(told.read_text())
        settings["content"] = await asyncio.to_thread(Path(settings["copy"]).read_text)
        await host.close(DEADLINE)
        return settings

    settings = asyncio.run(asyncio.wait_for(main(), DEADLINE))
    assert (settings["position"], settings["content"]) == (1, "{}\n")
    assert Path(settings["copy"]).parent == Path(settings["state_dir"])
    assert hosts.temporary == []


def test_without_a_place_for_the_copy_the_agent_goes_on(
    hosts: Hosts, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    _, _, config = of_two()
    host = hosts(config=config)
    host.begin()
    monkeypatch.setattr(tempfile, "tempdir", str(hosts.directory / "missing"))
    for first in (0, 1, 2):
        host.keep_copy(JournalCopy(2, first, ("{}",)))
    (told,) = caplog.messages
    assert "no temporary directory" in told
    assert "will not know how many restarts were used" in told
    monkeypatch.setattr(tempfile, "tempdir", str(hosts.directory))
    host.keep_copy(JournalCopy(3, 0, ("{}",)))  # the next master's
    assert [path.read_text() for path in hosts.directory.rglob("copy.jsonl")] == ["{}\n"]
    host.abandon()


# -- the real master


def test_two_agents_that_start_at_once_have_one_master(hosts: Hosts) -> None:
    endpoint = free_endpoint()

    async def main() -> None:
        both = [hosts.real(RendezvousConfig(endpoint)) for _ in range(2)]
        for host in both:
            host.begin()  # neither has bound the port yet
        processes = [process_of(host) for host in both]
        assert await asyncio.gather(*[host.endpoint() for host in both]) == [endpoint] * 2
        loser = next(host for host in both if host.trouble)
        wait_end(process_of(loser))
        assert [host.hosts for host in both].count(True) == 1
        assert await loser.endpoint() == endpoint
        assert loser.found.place is Place.OCCUPIED
        for host in both:
            await host.close(DEADLINE)
        assert {process.returncode for process in processes} == {0, 5}
        assert hosts.temporary == []

    run(main())


def kept_hosts_master(hosts: Hosts, code: str) -> subprocess.Popen[bytes]:
    """A second process, in the agent's place, that starts a real master and then does ``code``."""
    program = f"""
import asyncio, os, signal, sys
sys.path[:] = {sys.path!r}
from tests.agent.test_hosting import Hosts
from pathlib import Path
import tempfile
tempfile.tempdir = {str(hosts.directory)!r}
host = Hosts(Path(tempfile.tempdir)).real()
asyncio.run(host.endpoint())
print(host._process.process.pid, flush=True)
{code}
"""
    return subprocess.Popen([sys.executable, "-c", program], stdout=subprocess.PIPE, cwd=ROOT)


def test_the_master_of_an_agent_that_was_killed_ends_and_leaves_nothing(hosts: Hosts) -> None:
    agent = kept_hosts_master(hosts, "signal.pause()")
    assert agent.stdout is not None
    master = int(agent.stdout.readline())
    watched = os.pidfd_open(master)
    assert len(hosts.temporary) == 1
    agent.kill()
    assert select.select([watched], [], [], DEADLINE)[0] == [watched]
    agent.stdout.close()
    agent.wait()
    os.close(watched)
    assert hosts.temporary == []


def test_signals_to_the_master_are_not_its_affair(hosts: Hosts) -> None:
    async def main() -> None:
        host = hosts.real()
        await host.endpoint()
        for signum in (signal.SIGINT, signal.SIGTERM, signal.SIGHUP, signal.SIGQUIT):
            process_of(host).send_signal(signum)
        process = process_of(host)
        await host.close(DEADLINE)
        assert process.returncode == 0

    run(main())


# -- a master that only this agent speaks to


async def attach(host: MasterHost) -> LocalStream:
    await host.endpoint()
    channel = host.take_channel()
    assert channel is not None
    info = NodeInfo("a", "i", "host", "127.0.0.1", 1)
    hello = Hello("none", __version__, info, AgentStatus(0, AgentPhase.PREPARING))
    return await LocalStream.open(channel, hello, DEADLINE)


def test_a_private_master_is_started_again_for_each_stream(hosts: Hosts) -> None:
    async def main() -> None:
        host = hosts.real(is_private=True)
        stream = await attach(host)
        first = process_of(host)
        await stream.close()
        host.resume = True
        stream = await attach(host)
        second = process_of(host)
        assert first.returncode == -signal.SIGKILL
        second.kill()
        with pytest.raises(StreamBrokenError):
            while True:
                await anext(stream)
        await stream.close(0.0)
        epochs = [stream.welcome.epoch]
        stream = await attach(host)
        epochs.append(stream.welcome.epoch)
        await stream.close()
        await host.close(DEADLINE)
        assert epochs == [2, 3]
        assert [settings["port"] for settings in hosts.settings] == [0, 0, 0]
        assert hosts.temporary == []

    run(main())


def test_a_process_of_several_threads_forks_no_master(hosts: Hosts) -> None:
    host = hosts('{{"port": 1}}\n')
    host._command = replace(host._command, main=lambda: 0)
    over = threading.Event()
    thread = threading.Thread(target=over.wait)
    thread.start()
    try:
        host.begin()
    finally:
        over.set()
        thread.join()
    assert process_of(host).poll() is None  # it is a program that was executed


def test_a_private_master_whose_journal_is_in_use_is_tried_again(hosts: Hosts) -> None:
    async def main() -> None:
        host = hosts('{{"taken": "in use"}}\n', "sys.exit(5)", is_private=True)
        for attempt in (1, 2):
            await lose_stream(host)
            with pytest.raises(MasterUnreachableError, match="this node's master could not start to serve"):
                await host.endpoint()
            assert host.trouble == "in use"
            wait_end(process_of(host))
            assert len(hosts.settings) == attempt
        await host.close(DEADLINE)

    run(main())


async def lose_stream(host: MasterHost) -> None:
    await host.endpoint()
    channel = host.take_channel()
    assert channel is not None
    channel.close()


def test_a_private_master_that_cannot_begin_is_heard_when_its_stream_is_over(hosts: Hosts) -> None:
    async def main() -> None:
        host = hosts('{{"error": "the disk is full"}}\n', "sys.exit(2)", is_private=True)
        await lose_stream(host)
        with pytest.raises(MasterRefusedError, match="the disk is full"):
            await host.endpoint()
        await host.close(DEADLINE)

    run(main())


def test_a_private_master_that_crashes_is_no_reason_to_try_for_ever(hosts: Hosts) -> None:
    async def main() -> None:
        host = hosts("", "sys.exit(3)", is_private=True)
        await lose_stream(host)
        with pytest.raises(MasterCrashedError, match="exit code 3"):
            await host.endpoint()
        await host.close(DEADLINE)

    run(main())
