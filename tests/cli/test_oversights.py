"""Warnings of what a user has probably not meant."""

from __future__ import annotations

from collections.abc import Callable

import pytest

from elasticrun.cli.parse import parse_command_line
from elasticrun.config import LaunchConfig

Parse = Callable[..., LaunchConfig]

PLACE = "give options before the script"


def warnings(config: LaunchConfig, word: str) -> list[str]:
    return [sentence for level, sentence in config.notes if level == "warning" and word in sentence]


@pytest.mark.parametrize(
    ("after", "begins"),
    [
        (["--nproc-per-node=2"], "--nproc-per-node stands after the script and goes to it"),
        (["--lr", "1", "--nproc_per_node", "2"], "--nproc-per-node stands after the script and goes to it"),
        (
            ["--nnodes", "2", "--max-restarts=1"],
            "--nnodes, --max-restarts stand after the script and go to it",
        ),
        (["--nnodes", "2", "--nnodes=3"], "--nnodes stands after"),
    ],
)
def test_an_option_after_the_script_is_told_once(script: str, after: list[str], begins: str) -> None:
    config = parse_command_line([script, *after], {})
    (told,) = warnings(config, PLACE)
    assert told.startswith(begins)
    assert config.workers.entrypoint.args == tuple(after), "it is the script's all the same"


@pytest.mark.parametrize(
    "argv",
    [
        ["SCRIPT", "--", "--nnodes", "2"],
        ["--", "SCRIPT", "--nnodes", "2"],
        ["--nnodes=1", "--", "SCRIPT", "--nnodes", "2"],
        ["SCRIPT", "--nno", "2"],
        ["SCRIPT", "-nnodes", "nnodes"],
        ["SCRIPT", "--log-dir=x", "--help", "--role", "a"],
        ["--nnodes=1", "SCRIPT"],
        ["--no-python", "echo", "--nnodes", "2"],
    ],
)
def test_what_is_or_may_be_meant_is_not_told(script: str, argv: list[str]) -> None:
    words = [script if word == "SCRIPT" else word for word in argv]
    assert warnings(parse_command_line(words, {"PATH": "/bin:/usr/bin"}), PLACE) == []


def test_a_mistyped_variable_is_told(parse: Parse) -> None:
    environ = {"PET_NPROC_PER_NOD": "2", "PET_NODES": "1", "PET_NAME": "rex", "PET_NNODES": "1", "PETS": "2"}
    config = parse(environ=environ)
    assert warnings(config, "PET") == [
        "PET_NODES is no variable of elastic-run; did you mean PET_NNODES?",
        "PET_NPROC_PER_NOD is no variable of elastic-run; did you mean PET_NPROC_PER_NODE?",
    ]
    assert config.workers.local_world_size == 1
