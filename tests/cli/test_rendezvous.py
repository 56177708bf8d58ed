"""Which endpoint, which job id, who is alone; ``--rdzv-conf``; and what is noted along the way."""

from __future__ import annotations

import uuid
from collections.abc import Callable

import pytest

from elasticrun.config import (
    Endpoint,
    HealthCheckMode,
    HealthConfig,
    JobConfig,
    LaunchConfig,
    RendezvousConfig,
)
from tests.support.orders import TOKEN

Parse = Callable[..., LaunchConfig]

ALONE = Endpoint("127.0.0.1", 0)
C10D = ["--nnodes=2", "--rdzv-backend=c10d"]


def notes(config: LaunchConfig, level: str) -> list[str]:
    return [sentence for noted, sentence in config.notes if noted == level]


def test_each_job_has_a_tag_of_its_own(parse: Parse) -> None:
    one, other = parse("--rdzv-id=job").job, parse("--rdzv-id=job").job
    assert len(one.tag) == 32 and one.tag != other.tag
    assert one == other, "it is the same job to a journal"


@pytest.mark.parametrize(
    ("argv", "endpoint", "alone"),
    [
        # alone
        ([], ALONE, True),
        (["--standalone"], ALONE, True),
        (["--standalone", "--rdzv-endpoint=h:1", "--rdzv-backend=etcd"], ALONE, True),
        (["--standalone", "--rdzv-endpoint=http://no.use/"], ALONE, True),
        (["--standalone", "--nnodes=1:4"], ALONE, True),
        (["--master-addr=h"], ALONE, True),
        (["--rdzv-backend=c10d", "--rdzv-endpoint=localhost:0"], ALONE, True),
        (["--master-port=0"], ALONE, True),
        (["--master-port=1234"], ALONE, True),
        (["--rdzv-backend=c10d"], ALONE, True),
        (["--rdzv-endpoint=h:7"], ALONE, True),
        (["--nnodes=1", "--rdzv-backend=etcd", "--rdzv-endpoint=h"], ALONE, True),
        # static
        (["--nnodes=2"], Endpoint("127.0.0.1", 29500), False),
        (["--nnodes=1:2"], Endpoint("127.0.0.1", 29500), False),
        (["--nnodes=2", "--master-addr=h"], Endpoint("h", 29500), False),
        (["--nnodes=2", "--master-addr=h", "--master-port=7"], Endpoint("h", 7), False),
        (["--nnodes=2", "--master-addr=[fd00::1]"], Endpoint("fd00::1", 29500), False),
        (["--nnodes=2", "--master-addr=fd00::1", "--master-port=7"], Endpoint("fd00::1", 7), False),
        (["--nnodes=2", "--rdzv-endpoint=h:7", "--master-addr=g"], Endpoint("h", 7), False),
        (["--nnodes=2", "--rdzv-endpoint=h:7"], Endpoint("h", 7), False),
        (["--rdzv-endpoint=h:7,g"], Endpoint("h", 7), False),  # several hosts, on purpose
        # any other backend
        ([*C10D, "--rdzv-endpoint=h:7"], Endpoint("h", 7), False),
        ([*C10D, "--rdzv-endpoint=h"], Endpoint("h", 29400), False),
        ([*C10D, "--rdzv-endpoint= h:7 "], Endpoint("h", 7), False),
        ([*C10D, "--rdzv-endpoint=[::1]:7"], Endpoint("::1", 7), False),
        ([*C10D, "--rdzv-endpoint=[fd00::1%eth0]"], Endpoint("fd00::1%eth0", 29400), False),
        ([*C10D, "--rdzv-endpoint=::1"], Endpoint("::1", 29400), False),
        ([*C10D, "--rdzv-endpoint=fd00::1:29400"], Endpoint("fd00::1", 29400), False),
        ([*C10D, "--rdzv-endpoint=fd00::1:2940"], Endpoint("fd00::1", 2940), False),
        (C10D, Endpoint("localhost", 29400), False),
        (
            [*C10D, "--rdzv-backend=etcd-v2", "--rdzv-endpoint=10.0.0.1:2379"],
            Endpoint("10.0.0.1", 2379),
            False,
        ),
    ],
)
def test_endpoint(argv: list[str], endpoint: Endpoint, alone: bool, parse: Parse) -> None:
    config = parse(*argv)
    assert (config.rendezvous.endpoint, config.rendezvous.standalone) == (endpoint, alone)
    if alone:
        assert (config.job.min_nodes, config.job.max_nodes) == (1, 1)


@pytest.mark.parametrize(
    ("argv", "master"),
    [
        ([], None),
        (["--standalone", "--rdzv-endpoint=h:7"], None),
        (["--master-addr=h"], None),
        (["--master-port=0"], None),
        (["--rdzv-endpoint=h:0"], None),
        (["--nnodes=2", "--master-port=7"], None),
        (["--nnodes=1:2", "--rdzv-backend=c10d"], None),
        (["--master-port=7"], Endpoint("127.0.0.1", 7)),
        (["--master-addr=h", "--master-port=7"], Endpoint("h", 7)),
        (["--rdzv-endpoint=h:7", "--master-port=8"], Endpoint("h", 7)),  # as torchrun
        (["--rdzv-backend=c10d"], Endpoint("localhost", 29400)),
        (["--rdzv-backend=c10d", "--rdzv-endpoint=h"], Endpoint("h", 29400)),
    ],
)
def test_one_node_gets_the_port_for_its_workers(
    argv: list[str], master: Endpoint | None, parse: Parse
) -> None:
    assert parse(*argv).rendezvous.master == master


@pytest.mark.parametrize(
    ("argv", "endpoint", "master"),
    [
        (["--rdzv-endpoint=h:7"], Endpoint("h", 7), None),
        (["--rdzv-backend=c10d"], Endpoint("localhost", 29400), None),
        (["--rdzv-endpoint=h:7", "--master-port=8"], Endpoint("h", 7), Endpoint("h", 8)),
        (["--master-port=8"], ALONE, Endpoint("127.0.0.1", 8)),
        ([], ALONE, None),
    ],
)
def test_with_a_token_the_master_of_one_node_listens_for_orders(
    argv: list[str], endpoint: Endpoint, master: Endpoint | None, parse: Parse
) -> None:
    rendezvous = parse(*argv, environ={"ELASTICRUN_TOKEN": TOKEN}).rendezvous
    assert (rendezvous.endpoint, rendezvous.master, rendezvous.standalone) == (endpoint, master, True)


@pytest.mark.parametrize(
    ("argv", "cautious"),
    [
        (["--nnodes=2", "--rdzv-endpoint=h"], True),
        (["--nnodes=2", "--rdzv-endpoint=127.0.0.1,h"], True),
        (["--nnodes=2", "--rdzv-endpoint=0.0.0.0"], True),
        (["--nnodes=2", "--rdzv-endpoint=127.0.0.1"], True),  # other users of this host
        (["--rdzv-endpoint=h"], False),  # alone
    ],
)
def test_without_a_token_membership_is_cautious(argv: list[str], cautious: bool, parse: Parse) -> None:
    assert parse(*argv, "--no-token").job.cautious is cautious
    assert not parse(*argv, environ={"ELASTICRUN_TOKEN": TOKEN}).job.cautious


@pytest.mark.parametrize(
    ("text", "first", "others"),
    [
        ("a", Endpoint("a", 29400), ()),
        ("a:1,b:2,c", Endpoint("a", 1), (Endpoint("b", 2), Endpoint("c", 29400))),
        (" a , [::1]:7 ", Endpoint("a", 29400), (Endpoint("::1", 7),)),
        ("a:1,a:2", Endpoint("a", 1), (Endpoint("a", 2),)),
    ],
)
def test_a_list_of_endpoints(text: str, first: Endpoint, others: tuple[Endpoint, ...], parse: Parse) -> None:
    for backend in ("static", "c10d"):
        config = parse("--nnodes=2", f"--rdzv-backend={backend}", f"--rdzv-endpoint={text}")
        assert (config.rendezvous.endpoint, config.rendezvous.successors) == (first, others)
        assert config.job.endpoints == 1 + len(others)


def test_alone_nobody_takes_over(parse: Parse) -> None:
    config = parse("--standalone", "--rdzv-endpoint=a,b")
    assert (config.rendezvous.successors, config.job.endpoints) == ((), 1)


def test_standalone_draws_an_id_each_time(parse: Parse) -> None:
    first, second = (parse("--standalone", "--rdzv-id=mine").job.job_id for _ in range(2))
    assert len({first, second, "mine", "none"}) == 4


def test_a_single_node_without_an_endpoint_draws_one_too(parse: Parse) -> None:
    """As torchrun does from 2.13 on."""
    drawn = {parse().job.job_id, parse("--rdzv-id=").job.job_id, parse("--nnodes=1:1").job.job_id}
    assert len(drawn) == 3
    for job_id in drawn:
        assert str(uuid.UUID(job_id)) == job_id
        assert uuid.UUID(job_id).version == 4
    for argv in (["--rdzv-backend=c10d"], ["--master-port=29555"], ["--rdzv-endpoint=localhost:0"]):
        assert parse(*argv).job.job_id == "none"


@pytest.mark.parametrize("argv", [[], ["--rdzv-backend=c10d", "--rdzv-endpoint=localhost:0"]])
def test_alone_by_other_means_keeps_the_id(argv: list[str], parse: Parse) -> None:
    assert parse(*argv, "--rdzv-id=mine").job.job_id == "mine"


def test_node_rank_is_none_unless_given(parse: Parse) -> None:
    assert parse("--nnodes=2").rendezvous.node_rank is None
    assert parse("--nnodes=2", "--node-rank=0").rendezvous.node_rank == 0
    assert parse("--nnodes=2", environ={"PET_NODE_RANK": "1"}).rendezvous.node_rank == 1


def test_conf(parse: Parse) -> None:
    conf = (
        "join_timeout=11,last_call_timeout=12,close_timeout=13,keep_alive_interval=2,keep_alive_max_attempt=4,"
        "read_timeout=15, is_host = true"
    )
    config = parse("--nnodes=2", f"--rdzv-conf={conf}")
    assert (config.job.join_timeout, config.job.last_call_timeout) == (11, 12)
    assert (config.job.heartbeat_interval, config.job.heartbeat_timeout) == (2, 8)
    assert (config.rendezvous.connect_timeout, config.rendezvous.is_host) == (15, True)
    assert not [sentence for sentence in notes(config, "warning") if "rdzv-conf" in sentence]


@pytest.mark.parametrize(
    ("conf", "interval", "timeout"),
    [("keep_alive_interval=1", 1, 3), ("keep_alive_max_attempt=6", 10, 60), ("read_timeout=1", 10, 30)],
)
def test_half_of_keep_alive(conf: str, interval: float, timeout: float, parse: Parse) -> None:
    job = parse(f"--rdzv-conf={conf}").job
    assert (job.heartbeat_interval, job.heartbeat_timeout) == (interval, timeout)


def test_timeout_is_the_join_timeout_of_static(parse: Parse) -> None:
    assert parse("--rdzv-conf=timeout=5").job.join_timeout == 5
    assert parse("--rdzv-conf=timeout=5,join_timeout=6").job.join_timeout == 6


@pytest.mark.parametrize("quote", ["'", '"'])
def test_quotes_that_no_shell_took_away(parse: Parse, quote: str) -> None:
    config = parse(f"--rdzv-conf={quote}join_timeout=5,last_call_timeout=1,timeout=7{quote}")
    assert (config.job.join_timeout, config.job.last_call_timeout) == (5, 1)
    assert not notes(config, "warning")


def test_quotes_that_are_no_pair_stay(parse: Parse) -> None:
    (warning,) = notes(parse("--rdzv-conf='join_timeout=5"), "warning")
    assert warning.startswith("--rdzv-conf: 'join_timeout not used")


def test_last_call_option_goes_before_conf(parse: Parse) -> None:
    assert parse("--rdzv-conf=last_call_timeout=5", "--last-call-timeout=0").job.last_call_timeout == 0
    assert parse("--rdzv-conf=last_call_timeout=0").job.last_call_timeout == 0


@pytest.mark.parametrize(
    ("word", "value"), [("1", True), ("Yes", True), ("t", True), ("0", False), ("FALSE", False)]
)
def test_is_host(word: str, value: bool, parse: Parse) -> None:
    assert parse("--nnodes=2", f"--rdzv-conf=is_host={word}").rendezvous.is_host is value


def test_one_node_whose_master_is_elsewhere_looks_for_it(parse: Parse) -> None:
    elsewhere = ("--rdzv-endpoint=node0:29400", "--rdzv-conf=is_host=false")
    found = parse(*elsewhere).rendezvous
    assert (found.standalone, found.is_host, str(found.endpoint)) == (False, False, "node0:29400")
    assert parse("--rdzv-endpoint=node0:29400", "--rdzv-conf=is_host=true").rendezvous.standalone
    assert parse("--rdzv-conf=is_host=false").rendezvous.standalone
    assert parse("--standalone", *elsewhere).rendezvous.standalone


def test_is_host_says_nothing_about_a_node_alone(parse: Parse) -> None:
    assert parse("--standalone", "--rdzv-conf=is_host=false").rendezvous.is_host is None


def test_unknown_keys_are_named_in_a_warning(parse: Parse) -> None:
    (warning,) = notes(parse("--rdzv-conf=store_type=file,join_timeout=5,colour=red"), "warning")
    assert warning.startswith("--rdzv-conf: store_type, colour not used; the keys used are join_timeout, ")


def test_defaults_are_those_of_the_configuration(parse: Parse) -> None:
    config = parse()
    assert config.job == JobConfig(config.job.job_id, health=HealthConfig(mode=HealthCheckMode.AUTO))
    assert config.rendezvous == RendezvousConfig(ALONE, standalone=True)


def test_backends_are_ours_in_a_note_at_debug_level(parse: Parse) -> None:
    sentence = "rendezvous backend etcd: served by elasticrun's own master"
    assert sentence in notes(parse("--rdzv-backend=etcd"), "debug")
    assert sentence not in notes(parse("--rdzv-backend=c10d"), "debug")


@pytest.mark.parametrize(
    ("argv", "warning"),
    [
        (
            ["--nnodes=2"],
            "no --rdzv-endpoint or --master-addr given: only agents on this host can find the master",
        ),
        (["--nnodes=2", "--rdzv-backend=c10d"], "no --rdzv-endpoint given: only agents on this host"),
        (
            ["--nnodes=1:3", "--standalone"],
            "--nnodes allows 3 nodes, but --standalone runs one node: no other",
        ),
        (["--nnodes=1:3", "--rdzv-endpoint=h:0"], "--nnodes allows 3 nodes, but port 0 of --rdzv-endpoint"),
    ],
)
def test_warnings(argv: list[str], warning: str, parse: Parse) -> None:
    (found,) = notes(parse(*argv), "warning")
    assert found.startswith(warning)


@pytest.mark.parametrize(
    "argv",
    [[], ["--rdzv-backend=c10d"], ["--nnodes=2", "--master-addr=h"], ["--nnodes=2", "--rdzv-endpoint=h"]],
)
def test_no_warning_without_reason(argv: list[str], parse: Parse) -> None:
    assert notes(parse(*argv), "warning") == []


def test_node_unit(parse: Parse) -> None:
    assert parse("--nnodes=3:5", "--node-unit=4").job.node_unit == 4
    assert parse("--nnodes=4", "--node-unit=2").job.node_unit == 2


@pytest.mark.parametrize(
    ("argv", "command"),
    [
        ([], ""),
        (["--standalone", "--rdzv-endpoint=h:7"], ""),
        (["--nnodes=2", "--rdzv-endpoint=h:7"], "elastic-run --nnodes 2 --rdzv-endpoint h:7 ..."),
        (
            ["--nnodes=1:2", "--rdzv-backend=c10d", "--rdzv-endpoint=h", "--rdzv-id=a b", "--max-restarts=1"],
            "elastic-run --nnodes 1:2 --rdzv-backend c10d --rdzv-endpoint h --rdzv-id 'a b' ...",
        ),
        (
            ["--nnodes=2", "--master-addr=h", "--master-port=7", "--node-rank=0"],
            "elastic-run --nnodes 2 --master-addr h --master-port 7 --node-rank N ...",
        ),
    ],
)
def test_how_another_node_is_started(parse: Parse, argv: list[str], command: str) -> None:
    assert parse(*argv).job.join_command == command


def test_a_job_is_the_same_to_its_journal_however_its_options_are_spelled(parse: Parse) -> None:
    one, other = (parse("--nnodes=2", f"--rdzv-endpoint={spelled}") for spelled in ("h", "h:29400"))
    assert one.job.join_command != other.job.join_command
    assert one.job == other.job
