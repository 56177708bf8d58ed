"""Command lines of jobs on Ray: what the driver takes, and what it tells each node."""

from __future__ import annotations

import json
import math

import pytest

from elasticrun.cli import ray_job
from elasticrun.cli.arguments import read_arguments
from elasticrun.cli.parse import RunElsewhere, parse_command_line
from elasticrun.config import Endpoint
from elasticrun.core.fleet.replicas import Start
from elasticrun.errors import UsageError
from elasticrun.platforms.ray.driver import RayJob
from elasticrun.platforms.ray.words import Place

PLACE = Place("id", "10.0.1.1", "host1", "/opt/python", "/job")
ENDPOINT = Endpoint("10.0.0.1", 4321)


def job(*words: str, **environ: str) -> RayJob:
    given = read_arguments(["--platform", "ray", *words], environ)
    return ray_job.job_of(given, ray_job.check(given), environ, "/state")


def asked(made: RayJob, slot: int = -1) -> dict[str, object]:
    found = json.loads(made.request(ENDPOINT, Start(3, slot, 0, (), made.wish.shape), PLACE))
    assert isinstance(found, dict)
    return found


def test_a_node_is_told_what_the_driver_knows_and_what_the_user_gave() -> None:
    made = job(
        "--nnodes", "2:4", "--rdzv-conf=join_timeout=9", "-m", "--max-restarts=2", "train", "--lr", "1"
    )
    told = asked(made)
    words = told["argv"]
    assert isinstance(words, list)
    assert words[:3] == ["/opt/python", "-m", "elasticrun"] and words[-4:] == ["--", "train", "--lr", "1"]
    given = read_arguments(words[3:], {})
    assert {name: given.texts[name].text for name in given.texts} == {
        "nnodes": "2:4",
        "rdzv-backend": "static",
        "rdzv-endpoint": "10.0.0.1:4321",
        "rdzv-id": made.job_id,
        "rdzv-conf": "join_timeout=9,is_host=false",
        "node-rank": "3",
        "local-addr": "10.0.1.1",
        "platform": "host",
        "module": "1",
        "max-restarts": "2",
    }
    assert (told["directory"], told["silence"]) == ("/job", math.inf)


def test_the_token_goes_to_nodes_by_their_environment_alone() -> None:
    made = job("train.py", LOGLEVEL="INFO", SECRET="1")
    told = asked(made)
    assert told["environment"] == {"ELASTICRUN_TOKEN": made.security.token, "LOGLEVEL": "INFO"}
    assert str(made.security.token) not in str(told["argv"])


def test_a_node_takes_a_core_for_each_worker_unless_it_is_said() -> None:
    assert str(job("--nproc-per-node", "3", "train.py").needs) == "3 CPU"
    assert str(job("--nproc-per-node", "auto", "train.py").needs) == "1 CPU"
    needs = job("--platform-conf", "cpus=0.5,gpus=2,memory=1.5Gi,tpu=1", "train.py").needs
    assert str(needs) == "0.5 CPU, 2 GPU, 1.5 GiB, 1 tpu"


def test_how_often_nodes_are_replaced_is_the_user_s() -> None:
    wish = job("--nnodes=1:3", "--platform-conf=restarts=2", "--shutdown-timeout=7", "train.py").wish
    assert (str(wish.shape), wish.wanted, wish.max_failures, wish.grace) == ("1:3", 3, 2, 37.0)


def test_each_task_of_tensorflow_is_a_node_and_its_role_goes_with_the_slot() -> None:
    made = job("--role-counts", "ps=1,worker=2,chief=1", "--tf-servers=script", "train.py")
    assert (str(made.wish.shape), made.wish.shape.slots, made.wish.wanted) == ("4:4", 4, 4)
    roles = []
    for slot in range(4):
        words = asked(made, slot)["argv"]
        assert isinstance(words, list)
        given = read_arguments(words[3:], {})
        assert {"role-counts", "platform-conf"}.isdisjoint(given.texts)
        texts = {name: given.texts[name].text for name in ("nnodes", "nproc-per-node", "tf-servers")}
        assert texts == {"nnodes": "4:4", "nproc-per-node": "1", "tf-servers": "script"}
        roles.append(given.texts["tf-role"].text)
    assert roles == ["chief", "worker", "worker", "ps"]


def test_mirrored_workers_are_nodes_like_any_others() -> None:
    made = job("--framework", "tensorflow", "--nnodes", "2", "--nproc-per-node", "3", "train.py")
    words = asked(made)["argv"]
    assert isinstance(words, list) and made.wish.shape.slots == 0
    assert {"--framework=tensorflow", "--nproc-per-node=3"} <= {*words}


@pytest.mark.parametrize(
    ("words", "reason"),
    [
        (["--node-rank=1", "train.py"], "--node-rank cannot be given with --platform ray"),
        (["--standalone", "train.py"], "give --nnodes 1"),
        (["--platform-conf=cpus=many", "train.py"], "cpus"),
        (["--platform-conf=memory=2Q", "train.py"], "memory"),
        (["--platform-conf=tpu=-1", "train.py"], "tpu"),
        (["--platform-conf=restarts=1.5", "train.py"], "restarts"),
        (["--nnodes=0", "train.py"], "--nnodes"),
        (["--platform-conf=cpus=0", "train.py"], "each node takes nothing"),
        (["--platform-conf=CPU=1", "train.py"], "CPU is Ray's own word"),
        (["--platform-conf=gpus=1.5", "train.py"], "Ray gives whole ones, or a part of one"),
        (["--nproc-per-node=gpu", "train.py"], "give --platform-conf gpus=N"),
        ([], "no training script given"),
        (["--rdzv-conf=is_host=true", "train.py"], "is_host of --rdzv-conf cannot be given"),
        (["--tf-role=ps", "train.py"], "give --role-counts, or --framework tensorflow"),
        (["--role-counts=ps=1", "train.py"], "lacks the chief and the worker"),
        (["--role-counts=worker=2", "--health-check-only"], "a check has no tasks"),
        (["--role-counts=worker=2", "--nnodes=2", "train.py"], "each task is a node"),
        (["--role-counts=worker=2", "--nproc-per-node=2", "train.py"], "each task is a node"),
        (["--role-counts=worker=2", "--framework=torch", "train.py"], "it is for TensorFlow jobs"),
    ],
)
def test_what_makes_no_job_is_refused_with_a_sentence(words: list[str], reason: str) -> None:
    with pytest.raises(UsageError, match=reason):
        ray_job.check(read_arguments(["--platform", "ray", *words], {}))


def test_the_command_line_itself_hands_over() -> None:
    with pytest.raises(RunElsewhere) as caught:
        parse_command_line(["train.py"], {"PET_PLATFORM": "ray"})
    assert caught.value.given.command == ("train.py",)
