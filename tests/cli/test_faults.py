"""What is parsed about faults: the health check alone, the notice file, the policy, secrets."""

from __future__ import annotations

import dataclasses
import json
import os
import sys
from collections.abc import Callable
from pathlib import Path

import pytest

from elasticrun.cli.master_settings import master_settings
from elasticrun.cli.parse import parse_command_line
from elasticrun.config import (
    Action,
    Entrypoint,
    EntrypointKind,
    FailureClass,
    HealthCheckMode,
    LaunchConfig,
    Policy,
    PolicyRule,
    SecurityConfig,
    TlsConfig,
)
from elasticrun.errors import UsageError
from elasticrun.master.service import MasterConfig
from elasticrun.rpc.records import from_json

Parse = Callable[..., LaunchConfig]

EMPTY = Entrypoint(EntrypointKind.SCRIPT, os.devnull, python=sys.executable)


def refusal(*argv: str, environ: dict[str, str] | None = None) -> str:
    with pytest.raises(UsageError) as caught:
        parse_command_line(argv, environ or {})
    assert "\n" not in str(caught.value)
    return str(caught.value)


# --- the health check alone


@pytest.mark.parametrize("flags", [[], ["-m"], ["--no-python"], ["-m", "--no-python"], ["--run-path"]])
@pytest.mark.parametrize("command", [[], ["no/such/script.py", "--lr", "1"]])
def test_a_check_alone_needs_and_starts_no_script(flags: list[str], command: list[str]) -> None:
    config = parse_command_line(["--health-check-only", *flags, *command], {})
    assert config.workers.entrypoint == EMPTY
    said = [sentence for _, sentence in config.notes if "is not started" in sentence]
    assert said == [
        f"--health-check-only checks nodes and ends: {script} is not started" for script in command[:1]
    ]


@pytest.mark.parametrize(
    ("argv", "level", "sentence"),
    [
        (
            ["--health-check=off", "--exclude-stragglers", "--straggler-ratio=3"],
            "warning",
            "--straggler-ratio, --exclude-stragglers without effect: the health check is off; "
            "see --health-check",
        ),
        (
            ["--health-check-timeout=5"],
            "info",
            "--health-check-timeout without effect: one node alone is not checked; see --health-check",
        ),
        (
            ["--health-check=off", "--health-check-only", "--exclude-stragglers"],
            "info",
            "--health-check off is not used: --health-check-only checks the nodes once",
        ),
        (["--health-check=always", "--exclude-stragglers"], "", ""),
        (["--nnodes=2", "--rdzv-endpoint=host", "--exclude-stragglers"], "", ""),
        (["--health-check=off"], "", ""),
    ],
)
def test_what_is_said_of_options_without_effect(
    parse: Parse, argv: list[str], level: str, sentence: str
) -> None:
    notes = [note for note in parse(*argv).notes if "check" in note[1] and "started" not in note[1]]
    assert notes == ([(level, sentence)] if sentence else [])


def test_options_of_a_storage_need_one(parse: Parse) -> None:
    lone = parse("--state-keep=3", "--state-keep-for=1d").notes
    sentence = "--state-keep, --state-keep-for without effect: no storage is given; see --state-storage"
    assert ("warning", sentence) in lone
    both = parse("--state-keep=3", "--state-storage=here").notes
    assert not [each for _, each in both if "storage" in each]


@pytest.mark.parametrize("mode", ["auto", "off", "start", "always"])
def test_a_check_alone_takes_place_in_every_mode(mode: str) -> None:
    health = parse_command_line(["--health-check-only"], {"PET_HEALTH_CHECK": mode}).job.health
    assert (health.only, health.mode) == (True, HealthCheckMode.START)


def test_a_check_alone_uses_the_python_of_the_workers(tmp_path: Path) -> None:
    python = tmp_path / "python"
    python.symlink_to(sys.executable)
    config = parse_command_line(["--health-check-only"], {"PYTHON_EXEC": str(python)})
    assert config.workers.entrypoint.python == str(python)
    sentence = refusal("--health-check-only", environ={"PYTHON_EXEC": "/no/such/python"})
    assert sentence.startswith("PYTHON_EXEC: there is no program")


# --- the notice file


def test_a_notice_may_be_there_already_or_come_later(parse: Parse, tmp_path: Path) -> None:
    (tmp_path / "there").touch()
    (tmp_path / "link").symlink_to("gone/far")
    for path in ("there", "link", "later", "no/such/directory/yet", str(tmp_path / "later")):
        assert parse("--preemption-file", path).workers.preemption_file == path


def test_a_notice_that_can_never_come(script: str, tmp_path: Path) -> None:
    assert refusal("--preemption-file", ".", script) == (
        "--preemption-file '.' is a directory: give the path of a file"
    )
    assert refusal("--preemption-file", f"{script}/a/b", script) == (
        f"--preemption-file '{script}/a/b' cannot come to exist: {str(tmp_path / script)!r} is not a "
        "directory; give another path"
    )


def test_a_notice_in_a_folder_that_is_gone(
    script: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    gone = tmp_path / "gone"
    gone.mkdir()
    monkeypatch.chdir(gone)
    gone.rmdir()
    assert refusal("--preemption-file", "notice", str(tmp_path / script)) == (
        "--preemption-file 'notice' begins in the working directory, which is gone; give an absolute path"
    )


# --- the policy


def test_the_policy_is_read(parse: Parse, tmp_path: Path) -> None:
    (tmp_path / "policy.yaml").write_text("same_error_rounds: 5\nactions: {hang: give_up}\n")
    expected = Policy((PolicyRule(FailureClass.HANG, Action.GIVE_UP),), same_error_rounds=5)
    for config in (parse("--policy=policy.yaml"), parse(environ={"PET_POLICY": "policy.yaml"})):
        assert config.job.policy == expected
    assert parse().job.policy == Policy()


def test_a_policy_that_cannot_be_used(script: str, tmp_path: Path) -> None:
    (tmp_path / "policy.yaml").write_text("restart: always\n")
    assert "policy.yaml" in refusal("--policy", "policy.yaml", script)
    assert "'gone.yaml'" in refusal("--policy", "gone.yaml", script)


# --- secrets

TOKEN = "5d0c1f4ae9b27386f1d2c4b8907e6a35"


def test_the_token_comes_from_the_file_else_from_the_environment(parse: Parse, tmp_path: Path) -> None:
    path = tmp_path / "token"
    path.write_text(f"{TOKEN}\n")
    path.chmod(0o600)
    variable = {"ELASTICRUN_TOKEN": TOKEN[::-1]}
    for given in (
        parse("--nnodes=2", "--token-file", str(path), environ=variable),
        parse("--nnodes=2", environ={**variable, "PET_TOKEN_FILE": str(path)}),
        parse("--nnodes=2", environ={"ELASTICRUN_TOKEN": TOKEN}),
    ):
        assert given.security.token == TOKEN
    assert parse("--nnodes=2", "--no-token", environ=variable).security == SecurityConfig()


def test_a_node_alone_needs_no_token(parse: Parse) -> None:
    assert parse("--standalone").security == SecurityConfig()
    security = parse("--standalone", environ={"ELASTICRUN_TOKEN": TOKEN}).security
    assert security == SecurityConfig(TOKEN, token_source="ELASTICRUN_TOKEN")


def test_the_files_of_tls(parse: Parse, tmp_path: Path) -> None:
    options = []
    for name, what in (("ca", "CERTIFICATE"), ("cert", "CERTIFICATE"), ("key", "PRIVATE KEY")):
        path = tmp_path / f"{name}.pem"
        path.write_text(f"-----BEGIN {what}-----\n-----END {what}-----\n")
        path.chmod(0o600)
        options.append(f"--tls-{name}={path}")
    paths = [option.partition("=")[2] for option in options]
    assert parse("--nnodes=2", *options).security.tls == TlsConfig(*paths)
    for lacking in range(3):
        given = options[:lacking] + options[lacking + 1 :]
        assert "TLS needs --tls-ca, --tls-cert and --tls-key" in refusal("--nnodes=2", *given, "train.py")


@pytest.mark.parametrize("option", ["--token-file", "--tls-ca", "--tls-cert", "--tls-key"])
@pytest.mark.parametrize("path", ["no/such/file", "empty", "."])
def test_a_file_with_a_secret_that_is_no_good(option: str, path: str, script: str, tmp_path: Path) -> None:
    (tmp_path / "empty").touch(0o600)
    (tmp_path / "good.pem").write_text("-----BEGIN CERTIFICATE-----\n-----BEGIN PRIVATE KEY-----\n")
    pems = [f"{other}=good.pem" for other in ("--tls-ca", "--tls-cert", "--tls-key")]
    assert refusal("--nnodes=2", *pems, option, path, script).startswith(f"{option} {path!r} ")


@pytest.mark.parametrize(
    "key",
    [
        "-----BEGIN ENCRYPTED PRIVATE KEY-----\n",
        "-----BEGIN EC PRIVATE KEY-----\nProc-Type: 4,ENCRYPTED\nDEK-Info: AES-256-CBC,00\n",
    ],
)
def test_a_key_with_a_passphrase_is_refused(key: str, script: str, tmp_path: Path) -> None:
    (tmp_path / "good.pem").write_text("-----BEGIN CERTIFICATE-----\n")
    (tmp_path / "key.pem").write_text(key)
    said = refusal("--nnodes=2", "--tls-ca=good.pem", "--tls-cert=good.pem", "--tls-key=key.pem", script)
    assert said.startswith("--tls-key 'key.pem' needs a passphrase") and "give a key without one" in said


def test_a_package_that_is_looked_into_does_not_see_the_token(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    package = tmp_path / "package"
    package.mkdir()
    (package / "__init__.py").write_text("import json, os; json.dump(dict(os.environ), open('seen', 'w'))")
    said = refusal("-m", "package.missing", environ={"ELASTICRUN_TOKEN": TOKEN, "HOME": "/nowhere"})
    assert "package.missing" in said
    seen = json.loads((tmp_path / "seen").read_text())
    assert seen["HOME"] == "/nowhere" and TOKEN not in seen.values()


def test_workers_are_not_given_the_token(parse: Parse) -> None:
    config = parse(environ={"ELASTICRUN_TOKEN": TOKEN, "HOME": "/nowhere"})
    env = dict(config.workers.env)
    assert env["HOME"] == "/nowhere" and "ELASTICRUN_TOKEN" not in env and TOKEN not in env.values()


def test_the_master_gets_the_secrets_and_nobody_who_reads_its_journal(parse: Parse) -> None:
    security = SecurityConfig("the-token", TlsConfig("ca.pem", "cert.pem", "key.pem"))
    config = dataclasses.replace(parse(), security=security)
    assert "the-token" not in repr(config)
    settings = master_settings(config, "127.0.0.1", 0, "state")
    told_by_its_host = {
        "temporary": False,
        "resume": False,
        "position": 0,
        "copy": "",
        "channel": -1,
        "hosts": [],
        "incarnation": "",
        "launcher": 0,
        "reached_as": "",
    }
    got = from_json(MasterConfig, {**settings, **told_by_its_host})
    assert (got.security, got.job) == (security, config.job)
    assert "the-token" not in repr(got)
    assert "the-token" not in json.dumps(settings["job"])
