"""What TF_CONFIG may say, and in how few words it is refused."""

from __future__ import annotations

import json
from typing import Any

import pytest

from elasticrun.errors import ExitCode, UsageError
from elasticrun.tf.cluster import parse_server, parse_task

CLUSTER = {"chief": ["a:1"], "worker": ["b:1", "b:2"], "ps": ["c:1"]}


def config(cluster: Any = CLUSTER, role: Any = "ps", index: Any = 0, **more: Any) -> str:
    return json.dumps({"cluster": cluster, "task": {"type": role, "index": index}, **more})


def test_a_seat_is_read() -> None:
    task = parse_task(config(role="worker", index=1, rpc_layer="grpc"))
    assert (task.role, task.index, task.address, task.protocol) == ("worker", 1, "b:2", "grpc")
    assert task.cluster == {"chief": ("a:1",), "worker": ("b:1", "b:2"), "ps": ("c:1",)}
    assert parse_server(config(role="worker", index=1)) == task


def test_an_evaluator_is_no_part_of_the_cluster() -> None:
    task = parse_task(config(role="evaluator"))
    assert task.address == ""
    assert not task.serves


@pytest.mark.parametrize(
    ("text", "words"),
    [
        (None, "TF_CONFIG is not set"),
        ("  ", "TF_CONFIG is not set"),
        ("{", "is not valid JSON"),
        ("[]", "has to be a JSON object"),
        (config(cluster=None), 'no "cluster"'),
        (config(cluster={}), 'no "cluster"'),
        (config(cluster={"ps": "c:1"}), "must give 'ps' a list"),
        (config(cluster={"ps": [1]}), "must give 'ps' a list"),
        (config(cluster={"ps": ["c"]}), "must give 'ps' a list"),
        (config(cluster={"ps": ["c:70000"]}), "must give 'ps' a list"),
        (json.dumps({"cluster": CLUSTER}), 'no "task"'),
        (config(role=1), 'no "task"'),
        (config(index="0"), 'no "task"'),
        (config(index=-1), 'no "task"'),
        (config(cluster={"chief": ["a:1"]}), "ps:0, but the cluster has no ps"),
        (config(index=1), "ps:1, but the cluster has 1 of ps"),
        (config(rpc_layer=1), "rpc_layer"),
        (config(role="chief"), "chief:0, but only a worker or a ps can be a server"),
        (config(role="evaluator"), "evaluator:0, but only a worker or a ps can be a server"),
        (config(cluster={"worker": ["b:1"]}, role="worker"), "has no ps"),
    ],
)
def test_what_cannot_be_served_is_refused_in_one_sentence(text: str | None, words: str) -> None:
    with pytest.raises(UsageError) as refused:
        parse_server(text)
    assert words in str(refused.value)
    assert "\n" not in str(refused.value)
    assert "; " in str(refused.value) or ": " in str(refused.value), "it says what to do"
    assert refused.value.exit_code == ExitCode.USAGE
