"""``elastic-ctl manifest``: what it takes, and what it says about what it refuses."""

from __future__ import annotations

from typing import Any

import click
import pytest
import yaml
from click.testing import CliRunner

from elasticrun.cli import options
from elasticrun.cli.arguments import read_arguments
from elasticrun.cli.ctl import group
from elasticrun.cli.ctl_manifest import manifest
from elasticrun.cli.manifest_options import ROWS
from elasticrun.cli.option import Group

BASE = ("--format", "job", "--image", "r/x:1")


def run(*words: str) -> str:
    result = CliRunner().invoke(group, ["manifest", *words])
    assert result.exit_code == 0, result.output
    return result.stdout


def refusal(*words: str) -> str:
    result = CliRunner().invoke(group, ["manifest", *words])
    assert result.exit_code == 2, result.output
    assert len(result.stderr.splitlines()) == 1, result.stderr
    return str(result.stderr)


def pod(*words: str) -> dict[str, Any]:
    document = list(yaml.safe_load_all(run(*BASE, *words)))[-1]
    return dict(document["spec"]["template"]["spec"])


def command(*words: str) -> list[str]:
    return list(pod(*words)["containers"][0]["command"])


def test_the_script_may_come_first() -> None:
    first = run("examples/torch/digits.py", *BASE, "--nnodes", "2:4", "--", "--steps", "3")
    assert first == run(*BASE, "--nnodes", "2:4", "examples/torch/digits.py", "--steps", "3")


def test_what_elastic_run_gets_is_what_was_said() -> None:
    words = command(
        "--nnodes=1:2", "--hang-timeout", "60", "--rank-prefix", "-t3", "-m", "pkg.train", "--", "-x"
    )
    given = read_arguments(words[1:], {})
    assert given.command == ("pkg.train", "--", "-x")
    assert given.get(options.NNODES) == (1, 2)
    assert given.on(options.RANK_PREFIX)
    assert given.on(options.MODULE)
    assert given.texts["tee"].text == "3"
    assert given.find(options.HANG_TIMEOUT) == 60


def test_no_option_has_two_meanings() -> None:
    context = click.Context(manifest, help_option_names=[])
    spellings = [spelling for parameter in manifest.get_params(context) for spelling in parameter.opts]
    assert len(spellings) == len(set(spellings))
    shared = {row.flag for row in options.OPTIONS if row.group is not Group.ABOUT and not row.hidden}
    assert shared | {row.flag for row in ROWS} <= set(spellings)


def test_the_time_to_stop_is_that_of_workers_and_of_saved_states() -> None:
    assert pod("--shutdown-timeout", "90", "train.py")["terminationGracePeriodSeconds"] == 105
    found = pod("--state-storage", "/data", "--state-flush-timeout", "2m", "train.py")
    assert found["terminationGracePeriodSeconds"] == 30 + 120 + 15
    assert (
        pod("--state-storage", "/data", "--state-flush-timeout", "off", "t.py")[
            "terminationGracePeriodSeconds"
        ]
        == 45
    )


def test_pods_that_come_late_are_waited_for() -> None:
    words = command("--rdzv-conf", "join_timeout=1800", "train.py")
    assert words[words.index("--rdzv-conf") + 1] == "read_timeout=1800,join_timeout=1800"
    words = command("--rdzv-conf", "read_timeout=5", "train.py")
    assert words[words.index("--rdzv-conf") + 1] == "read_timeout=5"


def test_the_token_is_named_and_never_shown(tmp_path: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("ELASTICRUN_TOKEN", "5" * 64)
    file = tmp_path / "token"
    file.write_text("7" * 64)
    text = run(*BASE, "--namespace", "team", "--token-file", str(file), "train.py")
    assert f"kubectl create secret generic train-token --namespace team --from-file=token={file}\n" in text
    assert "5" * 64 not in text
    assert "7" * 64 not in text
    text = run(*BASE, "train.py")
    assert "elastic-ctl token create --path train.token\n" in text
    text = refusal(*BASE, "--env", f"ELASTICRUN_TOKEN={'5' * 64}", "train.py")
    assert "--env cannot set ELASTICRUN_TOKEN: whoever reads the manifest would have the job's token" in text
    assert "give --token-secret" in text
    assert "5" * 64 not in text
    text = run(*BASE, "--no-token", "train.py")
    assert "secret" not in text
    assert "--no-token" in text


def test_what_is_in_the_environment_here_is_not_for_the_cluster(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("PET_MAX_RESTARTS", "9")
    assert "'9'" not in run(*BASE, "train.py")


def test_variables_of_the_operator_of_pytorchjob_are_read() -> None:
    """What the training operator sets for an elasticPolicy: see its envvar package."""
    environ = {
        "PET_RDZV_BACKEND": "c10d",
        "PET_RDZV_ENDPOINT": "digits-worker-0:29400",
        "PET_RDZV_ID": "digits",
        "PET_RDZV_CONF": "read_timeout=600,join_timeout=900",
        "PET_NNODES": "2:4",
        "PET_NPROC_PER_NODE": "2",
        "PET_MAX_RESTARTS": "3",
    }
    given = read_arguments(["--", "train.py"], environ)
    assert {option.env for option in options.OPTIONS if given.has(option)} == set(environ)
    assert given.get(options.NNODES) == (2, 4)
    assert given.get(options.MAX_RESTARTS) == 3
    endpoints = given.find(options.RDZV_ENDPOINT)
    assert endpoints is not None
    assert [str(it) for it in endpoints] == ["digits-worker-0:29400"]
    assert dict(given.get(options.RDZV_CONF))["join_timeout"] == "900"


@pytest.mark.parametrize(
    ("words", "said"),
    [
        (("--image", "r/x", "train.py"), ("no --format given", "give job, jobset")),
        (("--image", "r/x", "train.py", "--format", "job"), ("stands behind the script",)),
        (("--format", "job", "train.py"), ("no --image given", "give the name of an image")),
        (("--format", "pod", "train.py"), ("--format 'pod' is not valid", "give job")),
        ((*BASE,), ("no training script given", "give elastic-ctl manifest")),
        ((*BASE, "--name", "My_Job", "train.py"), ("--name 'My_Job' is not valid", "lower-case")),
        ((*BASE, "--name", "a" * 44, "train.py"), ("it has 44 characters", "at most 43")),
        ((*BASE, "1st.py"), ("'1st' gives no name", "give --name")),
        ((*BASE, "--namespace", "-a", "train.py"), ("--namespace '-a' is not valid", "lower-case")),
        ((*BASE, "--nnodes", "4:2", "train.py"), ("--nnodes '4:2'", "4 is more than 2", "MIN:MAX")),
        ((*BASE, "--memory", "16GB", "train.py"), ("--memory '16GB'", "did you mean 16G?", "such as 64Gi")),
        ((*BASE, "--memory", "lots", "train.py"), ("--memory 'lots' is not valid", "such as 64Gi")),
        ((*BASE, "--memory", "512m", "train.py"), ("'m' is no unit", "did you mean 512M?")),
        ((*BASE, "--memory", "0", "train.py"), ("--memory '0' is not valid",)),
        ((*BASE, "--cpu", "4Gi", "train.py"), ("--cpu '4Gi'", "is no unit of cores")),
        ((*BASE, "--gpu", "a100=2", "train.py"), ("--gpu 'a100=2'", "names no resource", "amd.com/gpu=8")),
        ((*BASE, "--image", "my image", "train.py"), ("--image 'my image' is not valid",)),
        ((*BASE, "--env", "A", "train.py"), ("--env 'A' is not valid", "give NAME=VALUE")),
        ((*BASE, "--volume", "data:x", "train.py"), ("--volume 'data:x'", "is no absolute path")),
        ((*BASE, "--kubernetes", "1.20", "train.py"), ("--kubernetes '1.20'", "1.25 or newer")),
        ((*BASE, "--queue", "q", "train.py"), ("--queue 'q'", "has no queues", "kueue")),
        ((*BASE, "--runtime", "q", "train.py"), ("--runtime 'q'", "leave it out")),
        (
            ("--format", "trainjob", "--image", "r/x", "--priority-class", "low", "train.py"),
            ("--priority-class 'low'", "--format trainjob takes it from its runtime", "leave it out"),
        ),
        (
            ("--format", "trainjob", "--image", "r/x", "--restricted", "train.py"),
            ("--restricted", "--format trainjob takes it from its runtime", "leave it out"),
        ),
        (
            (*BASE, "--env", "TORCHELASTIC_HEALTH_CHECK_PORT=1", "train.py"),
            ("--env cannot set TORCHELASTIC_HEALTH_CHECK_PORT", "its probes ask", "leave it out"),
        ),
        (("--format", "kueue", "--image", "r/x", "train.py"), ("no --queue given", "LocalQueue")),
        (("--format", "sbatch", "--image", "r/x", "train.py"), ("--image was given", "leave it out")),
        (
            ("--format", "volcano", "--image", "r/x", "--time-limit", "3h", "train.py"),
            ("--time-limit '3h'", "no such limit"),
        ),
        ((*BASE, "--rdzv-endpoint", "a", "train.py"), ("--rdzv-endpoint is given to each node", "nothing")),
        ((*BASE, "--rdzv-id", "a", "train.py"), ("--rdzv-id is given", "give --name")),
        ((*BASE, "--rdzv-conf", "is_host=1", "train.py"), ("is_host", "leave it out")),
        ((*BASE, "--standalone", "train.py"), ("--standalone is given", "give --nnodes 1")),
        ((*BASE, "--role-counts", "chief=1", "train.py"), ("--role-counts", "give --format tfjob")),
        ((*BASE, "--no-token", "--token-secret", "s", "train.py"), ("exclude each other",)),
        (
            ("--format", "tfjob", "--image", "r/x", "--role-counts", "worker=2", "--nnodes", "2", "t.py"),
            ("leave out --nnodes",),
        ),
    ],
)
def test_bad_input_is_one_sentence(words: tuple[str, ...], said: tuple[str, ...]) -> None:
    text = refusal(*words)
    assert all(part in text for part in said), text


@pytest.mark.parametrize(("given", "written"), [("0.5", "0.5"), ("500m", "500m"), ("4", "4")])
def test_cores_are_asked_for_as_given(given: str, written: str) -> None:
    asked = pod("--cpu", given, "train.py")["containers"][0]["resources"]
    assert asked == {"requests": {"cpu": written}}
