"""What is believed of lists of hosts, and what is done with the hosts."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from elasticrun.core.hosts.belief import Belief
from elasticrun.core.hosts.events import (
    Drain,
    Effect,
    Ended,
    Finish,
    Interrupted,
    Kill,
    Listed,
    NotDrained,
    Start,
    Stop,
    Tell,
    Tick,
    Unlisted,
    Up,
)
from elasticrun.core.hosts.fates import LOST, Terms
from elasticrun.core.hosts.machine import Hosts, State
from elasticrun.core.hosts.names import MAX_HOSTS, Host, parse_hosts
from elasticrun.errors import ExitCode, UsageError

A, B, C = Host("a"), Host("b", "2"), Host("c", "auto", "me")
TERMS = Terms(1, grace=10.0, cooldown=(5.0, 30.0))


# -- names


@pytest.mark.parametrize(
    ("line", "host"),
    [
        ("node1", Host("node1")),
        (" node1:4 # fast", Host("node1", "4")),
        ("me@node-1.example.org:auto", Host("node-1.example.org", "auto", "me")),
        ("10.0.0.1 slots=2", Host("10.0.0.1", "2")),
        ("10.0.0.1 slots = 2", Host("10.0.0.1", "2")),
        ("10.0.0.1\tslots=2 max_slots=4", Host("10.0.0.1", "2")),
        ("a max-slots=4", Host("a")),
        ("[fe80::1%eth0]:3", Host("fe80::1%eth0", "3")),
        ("me@[::1]", Host("::1", "", "me")),
    ],
)
def test_a_line_names_a_host(line: str, host: Host) -> None:
    assert parse_hosts(["", "# nothing", line], "file, line") == (host,)


@pytest.mark.parametrize(
    ("line", "reason"),
    [
        ("-oProxyCommand=x", "give [USER@]HOST"),
        ("-l@a", "give [USER@]HOST"),
        ("a b", "give [USER@]HOST"),
        ("a:0", "slots are a number from 1 to 4096"),
        ("a:x", "slots are a number"),
        ("a:99999", "slots are a number"),
        ("::1", "an IPv6 address needs brackets"),
        ("[::1", "give [USER@]HOST"),
        ("a$(b)", "give"),
        ("A" * 501, "give"),
        ("\x1b[2J", "'?[2J' is not valid"),
        ("ok", "twice"),
        ("OK", "twice"),
    ],
)
def test_a_line_that_is_wrong_is_named(line: str, reason: str) -> None:
    with pytest.raises(UsageError) as caught:
        parse_hosts(["ok", line], "file, line")
    assert "file, line 2: " in str(caught.value) and reason in str(caught.value)


def test_a_list_is_bounded() -> None:
    with pytest.raises(UsageError, match="more than 4096 hosts"):
        parse_hosts((f"n{number}" for number in range(MAX_HOSTS + 1)), "file, line")


def test_a_host_is_written_as_it_is_read() -> None:
    hosts = (A, B, C, Host("::1", "2", "me"))
    assert [str(host) for host in hosts] == ["a", "b:2", "me@c:auto", "[me@::1]:2"]
    assert C.destination == "me@c"


# -- belief


def test_a_host_is_gone_after_two_answers_and_the_grace() -> None:
    belief = Belief(10.0)
    assert belief.take([A, B], ["a", "b"], 0.0) == []
    assert belief.take([A], ["a", "b"], 1.0) == []
    assert belief.take([A], ["a", "b"], 10.9) == []
    assert belief.take([A], ["a", "b"], 11.0) == ["b"]
    assert belief.take([A, B], ["a", "b"], 12.0) == []
    assert belief.take([A], ["a", "b"], 99.0) == [], "counted anew"


# -- the machine


def texts(effects: list[Effect]) -> list[str]:
    return [effect.text for effect in effects if isinstance(effect, Tell)]


def running(*hosts: Host, terms: Terms = TERMS) -> Hosts:
    """A machine whose hosts have all come up."""
    machine = Hosts(terms)
    assert machine.handle(Listed(hosts), 0.0) == [Start(host, rank) for rank, host in enumerate(hosts)]
    for host in hosts:
        assert machine.handle(Up(host.name), 0.0) == []
    return machine


def test_new_hosts_are_started_once() -> None:
    machine = running(A)
    assert machine.handle(Listed((A, B)), 1.0) == [Start(B, 1)]
    assert machine.handle(Listed((A, B)), 2.0) == []


def test_a_host_that_is_gone_is_drained_and_may_return() -> None:
    machine = running(A, B)
    assert machine.handle(Listed((A,)), 1.0) == []
    told, drain = machine.handle(Listed((A,)), 11.0)
    assert (told, drain) == (
        Tell("b is no longer listed: it is drained"),
        Drain("b", 1, "no longer in the list of hosts"),
    )
    assert machine.handle(Listed((A,)), 12.0) == [], "only once"
    assert machine.handle(Listed((A, B)), 13.0) == [], "it has not left yet"
    assert machine.handle(Ended("b", ExitCode.DRAINED), 14.0) == [Tell("b has left"), Start(B, 1)]


def test_a_host_that_has_left_and_is_not_listed_is_forgotten() -> None:
    machine = running(A, B)
    for now in (1.0, 11.0):
        machine.handle(Listed((A,)), now)
    assert machine.handle(Ended("b", ExitCode.DRAINED), 12.0) == [Tell("b has left")]
    machine.handle(Listed((A,)), 13.0)
    assert machine.hosts.keys() == {"a"}
    assert machine.handle(Listed((A, B)), 14.0) == [Start(B, 2)], "as a new node"


def test_a_host_that_does_not_leave_is_stopped_then_killed() -> None:
    machine = running(A, B)
    for now in (1.0, 11.0):
        machine.handle(Listed((A,)), now)
    assert machine.next_deadline == 191.0
    told, stop = machine.handle(Tick(), 191.0)
    assert told == Tell("b did not leave within 180 s: it is told to stop")
    assert stop == Stop("b", 15)
    assert machine.handle(NotDrained("b", "late"), 192.0) == [], "it was told already"
    assert machine.handle(Tick(), 251.0) == [Kill("b")]
    assert machine.handle(Ended("b", LOST), 252.0) == [Tell("b has left")]


def test_a_host_that_cannot_be_drained_is_stopped() -> None:
    machine = running(A, B)
    for now in (1.0, 11.0):
        machine.handle(Listed((A,)), now)
    told, stop = machine.handle(NotDrained("b", "nobody answers"), 12.0)
    assert told == Tell("b cannot be drained (nobody answers): it is told to stop")
    assert stop == Stop("b", 15)


def test_the_host_of_the_master_stays() -> None:
    machine = running(A, B)
    machine.handle(Listed((B,)), 1.0)
    assert texts(machine.handle(Listed((B,)), 11.0)) == [
        "a is no longer listed, but stays: it has the job's master"
    ]
    assert machine.handle(Listed((B,)), 12.0) == []
    machine.handle(Ended("a", LOST), 13.0)
    assert machine.handle(Tick(), 18.0) == [Start(A, 0)], "it is needed, listed or not"


def test_a_list_that_cannot_be_read_changes_nothing_and_is_told_once() -> None:
    machine = running(A, B)
    told = texts(machine.handle(Unlisted("hosts cannot be read"), 1.0))
    assert told == ["hosts cannot be read; the last good list of 2 hosts stays in force"]
    assert machine.handle(Unlisted("hosts cannot be read"), 50.0) == []
    assert texts(machine.handle(Listed((A, B)), 51.0)) == ["the list of hosts can be read again"]


def test_other_slots_count_from_the_next_start() -> None:
    machine = running(A, B)
    wider = Host("b", "4")
    told = texts(machine.handle(Listed((A, wider)), 1.0))
    assert told == ["b is now listed as b:4; it runs as b:2 until it starts anew"]
    assert machine.handle(Listed((A, wider)), 2.0) == []
    machine.handle(Ended("b", LOST), 3.0)
    assert machine.handle(Tick(), 8.0) == [Start(wider, 1)]
    machine.handle(Ended("b", LOST), 9.0)
    assert machine.handle(Listed((A, B)), 10.0) == [], "absent, so nothing is said"


def test_a_host_that_fails_is_left_out_for_longer_and_longer() -> None:
    machine = running(A, B)
    pauses, now = [], 0.0
    machine.handle(Ended("b", ExitCode.NODE_FAULT), now)
    for _ in range(4):
        due = machine.next_deadline
        assert due is not None
        pauses.append(due - now)
        assert machine.handle(Listed((A, B)), due - 0.5) == [], "left out"
        now = due
        assert machine.handle(Tick(), now) == [Start(B, 1)]
        (told,) = texts(machine.handle(Ended("b", LOST, "ssh: no route"), now))
    assert pauses == [5.0, 10.0, 20.0, 30.0]
    assert told == "b cannot be started: ssh: no route (ssh ended with 255); it is tried again in 30 s"


def test_a_host_that_ran_for_long_has_no_failures_behind_it() -> None:
    machine = running(A, B)
    machine.handle(Ended("b", LOST), 1.0)
    machine.handle(Tick(), 6.0)
    machine.handle(Up("b"), 6.0)
    (told,) = texts(machine.handle(Ended("b", LOST), 66.0))
    assert told == "b is lost: the connection has ended; it is tried again in 5 s"


def test_a_host_that_failed_and_leaves_the_list_is_forgotten() -> None:
    machine = running(A, B)
    machine.handle(Ended("b", LOST), 1.0)
    for now in (2.0, 3.0, 12.0):
        machine.handle(Listed((A,)), now)
    assert "b" not in machine.hosts and machine.next_deadline is None


def test_a_host_that_is_missing_is_not_started_after_its_pause() -> None:
    machine = running(A, B)
    machine.handle(Ended("b", LOST), 1.0)
    machine.handle(Listed((A,)), 2.0)
    assert machine.handle(Tick(), 6.0) == []
    assert machine.handle(Listed((A, B)), 7.0) == [Start(B, 1)]


@pytest.mark.parametrize(
    ("code", "why"),
    [
        (ExitCode.DRAINED, "was told to leave by somebody else"),
        (ExitCode.EXCLUDED, "was excluded from the job"),
    ],
)
def test_a_host_that_the_job_dismissed_stays_away(code: int, why: str) -> None:
    machine = running(A, B)
    (told,) = texts(machine.handle(Ended("b", code), 1.0))
    assert why in told and "left out until the list lacks it" in told
    assert machine.handle(Listed((A, B)), 1000.0) == []
    for now in (1001.0, 1011.0):
        machine.handle(Listed((A,)), now)
    assert machine.handle(Listed((A, B)), 1012.0) == [Start(B, 2)]


@pytest.mark.parametrize("order", ["ab", "ba"])
def test_a_job_that_is_stopped_ends_the_launch(order: str) -> None:
    """As by elastic-ctl stop: each launcher says that it was told to leave."""
    machine = running(A, B)
    assert texts(machine.handle(Ended(order[0], ExitCode.DRAINED), 1.0))
    *_, finish = machine.handle(Ended(order[1], ExitCode.DRAINED), 2.0)
    reason = "a, which has the job's master, was told to leave by somebody else, and no other host runs"
    assert finish == Finish(ExitCode.DRAINED, reason)


def test_hosts_that_fail_are_not_waited_for_without_the_host_of_the_master() -> None:
    machine = running(A, B)
    machine.handle(Ended("b", LOST), 1.0)
    *_, finish = machine.handle(Ended("a", ExitCode.EXCLUDED), 2.0)
    assert isinstance(finish, Finish) and finish.status == ExitCode.EXCLUDED
    machine = running(A, B)
    machine.handle(Ended("a", ExitCode.DRAINED), 1.0)
    assert isinstance(machine.handle(Ended("b", LOST), 2.0)[-1], Finish)


def test_others_go_on_when_the_host_of_the_master_was_told_to_leave() -> None:
    machine = running(A, B)
    machine.handle(Ended("a", ExitCode.DRAINED), 1.0)
    machine.handle(Listed((A, B)), 2.0)
    assert machine.handle(Ended("b", 0), 3.0) == [Finish(0)], "the job's own end counts"


def test_late_news_of_a_host_that_is_forgotten_change_nothing() -> None:
    machine = running(A, B)
    for now in (1.0, 11.0):
        machine.handle(Listed((A,)), now)
    machine.handle(Ended("b", LOST), 12.0)
    machine.handle(Listed((A,)), 13.0)
    assert "b" not in machine.hosts
    assert machine.handle(NotDrained("b", "no answer within 15 s"), 14.0) == []


def test_a_host_that_does_not_start_is_killed_and_has_failed() -> None:
    machine = Hosts(TERMS)
    machine.handle(Listed((A, B)), 0.0)
    machine.handle(Up("a"), 1.0)
    told, kill = machine.handle(Tick(), 60.0)
    assert (told, kill) == (Tell("b did not start within 60 s"), Kill("b"))
    (text,) = texts(machine.handle(Ended("b", LOST), 61.0))
    assert text == "b cannot be started: it said nothing (ssh ended with 255); it is tried again in 5 s"


def test_another_program_in_the_place_of_python_is_no_end_of_the_job() -> None:
    machine = Hosts(TERMS)
    machine.handle(Listed((A, B)), 0.0)
    (text,) = texts(machine.handle(Ended("b", 1, "No module named elasticrun"), 1.0))
    assert text.startswith("b cannot be started: No module named elasticrun (exit status 1)")


@pytest.mark.parametrize("code", [ExitCode.OK, ExitCode.JOB_FAILED, ExitCode.REPEATED_ERROR])
def test_the_job_is_over_when_a_launcher_says_so(code: int) -> None:
    machine = running(A, B, C)
    assert machine.handle(Ended("b", code), 1.0) == []
    assert machine.handle(Listed((A, B, C, Host("d"))), 2.0) == [], "nothing is started any more"
    for now in (3.0, 13.0):
        assert machine.handle(Listed((B,)), now) == [], "nor drained"
    assert machine.handle(Ended("a", 1), 14.0) == []
    assert machine.handle(Tick(), 91.0) == [Stop("c", 15)], "it had its time"
    assert machine.handle(Tick(), 151.0) == [Kill("c")]
    assert machine.handle(Ended("c", LOST), 152.0) == [Finish(code)]


def test_a_drained_launcher_may_say_that_the_job_is_over() -> None:
    machine = running(A, B)
    for now in (1.0, 11.0):
        machine.handle(Listed((A,)), now)
    machine.handle(Ended("b", 0), 12.0)
    assert machine.handle(Ended("a", 0), 13.0) == [Finish(0)]


def test_a_master_that_fails_too_often_ends_the_launch() -> None:
    machine = Hosts(TERMS)
    machine.handle(Listed((A, B)), 0.0)
    machine.handle(Up("b"), 0.0)
    for now, due in ((1.0, 6.0), (7.0, 17.0)):
        machine.handle(Ended("a", LOST, "denied"), now)
        assert Start(A, 0) in machine.handle(Tick(), due)
    assert machine.handle(Ended("a", LOST, "denied"), 18.0) == [Stop("b", 15)]
    reason = "a, which has the job's master, cannot be started: denied (ssh ended with 255) (3 times)"
    assert machine.handle(Ended("b", 143), 19.0) == [Finish(ExitCode.MASTER_UNREACHABLE, reason)]


@pytest.mark.parametrize(
    ("code", "status"),
    [(LOST, ExitCode.MASTER_UNREACHABLE), (ExitCode.NODE_FAULT, ExitCode.NODE_FAULT), (77, 77)],
)
def test_the_status_of_a_launch_is_that_of_its_masters_host(code: int, status: int) -> None:
    machine = running(A, terms=Terms(1, tries=1))
    (finish,) = machine.handle(Ended("a", code), 1.0)
    assert isinstance(finish, Finish) and finish.status == status


def test_what_would_only_repeat_itself_ends_the_launch_at_once() -> None:
    machine = running(A, B)
    assert machine.handle(Ended("a", ExitCode.ENDPOINT_TAKEN), 1.0) == [Stop("b", 15)]
    (finish,) = machine.handle(Ended("b", 143), 2.0)
    assert isinstance(finish, Finish) and finish.status == ExitCode.ENDPOINT_TAKEN
    assert finish.reason.startswith("a ended with 5: another program")
    machine = running(A, B)
    (told,) = texts(machine.handle(Ended("b", ExitCode.USAGE), 1.0))
    assert "tried again" in told, "another host may lack a file"


def test_a_fixed_list_with_too_few_hosts_left_ends_the_launch() -> None:
    machine = Hosts(Terms(2, is_fixed=True, tries=2))
    machine.handle(Listed((A, B)), 0.0)
    machine.handle(Up("a"), 0.0)
    machine.handle(Ended("b", LOST, "denied"), 1.0)
    machine.handle(Tick(), 6.0)
    _, stop = machine.handle(Ended("b", LOST, "denied"), 7.0)
    assert stop == Stop("a", 15)
    (finish,) = machine.handle(Ended("a", 143), 8.0)
    assert isinstance(finish, Finish) and finish.status == ExitCode.RENDEZVOUS_TIMEOUT
    assert finish.reason.startswith(
        "only 1 of 2 hosts that the job needs can be started: b cannot be started"
    )


def test_a_signal_stops_all_and_a_second_one_kills() -> None:
    machine = running(A, B, C)
    machine.handle(Ended("c", LOST), 1.0)
    told, *stops = machine.handle(Interrupted(2), 2.0)
    assert told == Tell("stopping the launchers of 2 hosts (up to 60 s; Ctrl-C again kills them)")
    assert stops == [Stop("a", 2), Stop("b", 2)]
    assert machine.handle(Ended("a", 130), 3.0) == []
    told, *kills = machine.handle(Interrupted(2), 4.0)
    assert told == Tell("asked to stop again: killing the launcher of 1 host now")
    assert kills == [Kill("b")]
    assert machine.handle(Up("b"), 4.5) == [], "late news"
    assert machine.handle(Ended("b", LOST), 5.0) == [Finish(130)]


def test_a_signal_with_nothing_running_ends_the_launch() -> None:
    machine = running(A)
    machine.handle(Ended("a", LOST), 1.0)
    assert machine.handle(Interrupted(15), 2.0) == [Finish(143)]
    machine = running(A)
    assert "a second signal kills them" in texts(machine.handle(Interrupted(15), 2.0))[0]


def test_a_signal_after_the_jobs_end_keeps_the_jobs_status() -> None:
    machine = running(A, B)
    machine.handle(Ended("b", 0), 1.0)
    assert Stop("a", 2) in machine.handle(Interrupted(2), 2.0)
    machine.handle(Tick(), 95.0)
    assert machine.handle(Ended("a", 130), 96.0) == [Finish(0)]


# -- whatever the list does

LISTS = st.lists(st.sampled_from([A, B, C, Host("d")]), unique=True, max_size=4)
STEPS = st.lists(
    st.tuples(
        st.sampled_from(["list", "list", "list", "bad", "up", "end", "undrained", "tick"]),
        LISTS,
        st.integers(0, 3),
        st.sampled_from([0.0, 1.0, 6.0, 20.0, 200.0]),
        st.sampled_from([LOST, 14, 13, 10, 143]),
    ),
    max_size=60,
)


@given(STEPS)
def test_no_host_runs_twice_and_none_that_is_wanted_is_drained(
    steps: list[tuple[str, list[Host], int, float, int]],
) -> None:
    machine, now = Hosts(Terms(1, tries=1000, grace=5.0)), 0.0
    alive, answers, missed_since = set[str](), [{"a"}], dict[str, float]()

    def take(effects: list[Effect]) -> None:
        for effect in effects:
            match effect:
                case Start(host=host):
                    assert host.name not in alive, "started twice at once"
                    assert host.name in answers[-1] or host.name == "a", "started unwanted"
                    alive.add(host.name)
                case Drain(name=name):
                    assert name in alive and name != "a"
                    assert all(name not in answer for answer in answers[-2:]), "drained though listed"
                    assert now - missed_since[name] >= 5.0, "drained too early"
                case Stop(name=name) | Kill(name=name):
                    assert name in alive
        states = {name for name, entry in machine.hosts.items() if entry.state is not State.ABSENT}
        assert states == alive

    take(machine.handle(Listed((A,)), now))
    for kind, hosts, number, pause, code in steps:
        now += pause
        target = sorted(alive)[number % len(alive)] if alive else ""
        match kind:
            case "list":
                answers.append({host.name for host in hosts})
                for name in "abcd":
                    if name in answers[-1]:
                        missed_since.pop(name, None)
                    else:
                        missed_since.setdefault(name, now)
                take(machine.handle(Listed(tuple(hosts)), now))
            case "bad":
                take(machine.handle(Unlisted("it broke"), now))
            case "up" if target:
                take(machine.handle(Up(target), now))
            case "undrained" if target:
                take(machine.handle(NotDrained(target, "why not"), now))
            case "end" if target:
                alive.discard(target)
                take(machine.handle(Ended(target, code), now))
            case _:
                take(machine.handle(Tick(), now))
