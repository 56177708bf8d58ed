"""Where a token is found, which are refused, and that two agents at once make one and the same."""

from __future__ import annotations

import base64
import os
import random
import secrets
import string
import subprocess
import sys
import tempfile
import uuid
from collections.abc import Callable
from pathlib import Path

import pytest

from elasticrun.cli import tokens
from elasticrun.cli.parse import parse_command_line
from elasticrun.cli.strength import ENOUGH, bits
from elasticrun.config import Endpoint, SecurityConfig
from elasticrun.errors import UsageError
from tests.cli.conftest import Parse
from tests.support.launcher import ROOT, private_folders

TOKEN = "9f1c2ab47d63e80512fa76c03be94d58"
LOCAL = "--nnodes=2"  # at the loopback address
REMOTE = ("--nnodes=2", "--rdzv-endpoint=node0")


@pytest.fixture
def environ(tmp_path: Path) -> dict[str, str]:
    """An environment whose folders are the test's own."""
    (tmp_path / "session").mkdir()
    return {"HOME": str(tmp_path / "home"), **private_folders(tmp_path)}


def put(path: Path, text: str = TOKEN, mode: int = 0o600) -> Path:
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(f"{text}\n")
    path.chmod(mode)
    return path


def refused(parse: Parse, *options: str, environ: dict[str, str]) -> str:
    with pytest.raises(UsageError) as caught:
        parse(*options, environ=environ)
    return str(caught.value)


# --- where


def test_the_places_come_in_the_order_of_the_manual(
    parse: Parse, environ: dict[str, str], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(tokens, "MOUNTED", str(tmp_path / "secrets/elasticrun/token"))
    made = parse(LOCAL, environ=environ).security
    assert made.token_source.startswith(str(tmp_path / "session/elasticrun/token"))
    found = [made.token]
    texts = [secrets.token_hex(16) for _ in range(4)]
    put(tmp_path / "config/elasticrun/token", texts[0])
    found.append(parse(LOCAL, environ=environ).security.token)
    put(tmp_path / "secrets/elasticrun/token", texts[1], 0o644)  # as kubelet mounts it
    found.append(parse(LOCAL, environ=environ).security.token)
    environ["ELASTICRUN_TOKEN"] = texts[2]
    found.append(parse(LOCAL, environ=environ).security.token)
    file = put(tmp_path / "file", texts[3])
    found.append(parse(LOCAL, f"--token-file={file}", environ=environ).security.token)
    assert found[1:] == texts and made.token not in texts


def test_the_home_is_found_without_xdg(parse: Parse, tmp_path: Path) -> None:
    put(tmp_path / "home/.config/elasticrun/token")
    security = parse(*REMOTE, environ={"HOME": str(tmp_path / "home")}).security
    assert security == SecurityConfig(TOKEN, token_source=str(tmp_path / "home/.config/elasticrun/token"))


def test_a_node_alone_looks_only_where_it_is_told(
    parse: Parse, environ: dict[str, str], tmp_path: Path
) -> None:
    put(tmp_path / "config/elasticrun/token")
    assert parse("--standalone", environ=environ).security.token is None
    assert parse("--standalone", environ={**environ, "ELASTICRUN_TOKEN": TOKEN}).security.token == TOKEN


@pytest.mark.parametrize("host", ["node0", "10.0.0.1", "0.0.0.0", "::", "127.evil.example", "2001:db8::1"])
def test_no_token_is_made_for_an_endpoint_that_others_may_reach(
    host: str, parse: Parse, environ: dict[str, str], tmp_path: Path
) -> None:
    assert not tokens.is_loopback(host)
    for endpoint in (f"[{host}]:7" if ":" in host else host, f"127.0.0.1,{Endpoint(host, 7)}"):
        assert parse("--nnodes=2", f"--rdzv-endpoint={endpoint}", environ=environ).security.token is None
    assert not list((tmp_path / "session").iterdir())


@pytest.mark.parametrize(
    "host", ["localhost", "LOCALHOST", "127.0.0.1", "127.1.2.3", "::1", "::ffff:127.0.0.1"]
)
def test_a_loopback_address_in_all_its_clothes(host: str) -> None:
    assert tokens.is_loopback(host)


def test_who_looks_only_makes_nothing(environ: dict[str, str], tmp_path: Path) -> None:
    assert tokens.find_anywhere(environ, [Endpoint("127.0.0.1", 1)], [], make=False) is None
    assert not list((tmp_path / "session").iterdir())


def test_agents_of_other_environments_find_the_same_token(environ: dict[str, str], parse: Parse) -> None:
    """A cron job, or a shell after ``su``, knows nothing of the session in which the first agent ran."""
    first = parse(LOCAL, environ={}).security.token
    assert parse(LOCAL, environ=environ).security.token == first


def test_agents_that_start_at_once_make_one_token(environ: dict[str, str], tmp_path: Path) -> None:
    code = "import os, sys\nfrom elasticrun.cli.tokens import find_anywhere\n"
    code += "from elasticrun.config import Endpoint\nsys.stdin.read()\n"
    code += (
        "print(find_anywhere(os.environ, [Endpoint('localhost', 1)], [], make=True).data.decode().strip())"
    )
    env = {**environ, "TMPDIR": str(tmp_path)}
    read, write = os.pipe()
    agents = [
        subprocess.Popen([sys.executable, "-c", code], cwd=ROOT, stdin=read, stdout=subprocess.PIPE, env=env)
        for _ in range(8)
    ]
    os.close(read)
    os.close(write)  # all of them go on by that
    made = {agent.communicate(timeout=60)[0] for agent in agents}
    assert len(made) == 1 and len(made.pop().strip()) == 64
    folder = tmp_path / "session/elasticrun"
    assert [path.name for path in folder.iterdir()] == ["token"], "no draft is left behind"
    assert folder.stat().st_mode & 0o777 == 0o700 and (folder / "token").stat().st_mode & 0o777 == 0o600


# --- places of others


def test_a_squatted_directory_is_passed_over(parse: Parse, environ: dict[str, str], tmp_path: Path) -> None:
    """Nobody else's directory, no link, and none that is open: neither to read a token nor to put one."""
    theirs = tmp_path / "theirs"
    put(theirs / "token")
    (tmp_path / "session/elasticrun").symlink_to(theirs)
    name = tmp_path / f"elasticrun-{os.geteuid()}"
    put(name / "token").parent.chmod(0o777)
    (tmp_path / "cache").mkdir()
    security = parse(LOCAL, environ=environ).security
    assert security.token not in (None, TOKEN)
    assert security.token_source.startswith(str(tmp_path / "cache/elasticrun/token"))


def test_where_no_token_can_be_made_the_job_runs_without_and_says_why(
    parse: Parse, environ: dict[str, str], tmp_path: Path
) -> None:
    (tmp_path / "session/elasticrun").symlink_to(tmp_path)
    (tmp_path / f"elasticrun-{os.geteuid()}").mkdir(0o755)
    config = parse(LOCAL, environ=environ)
    assert config.security.token is None
    (warning,) = [sentence for _, sentence in config.notes if "no token can be made" in sentence]
    assert "is open to other users (mode 0755)" in warning and "session/elasticrun" in warning
    assert "--require-token is set" in refused(parse, LOCAL, "--require-token", environ=environ)


def test_where_nothing_can_be_written_at_all(
    parse: Parse, environ: dict[str, str], monkeypatch: pytest.MonkeyPatch
) -> None:
    def nowhere() -> str:
        raise FileNotFoundError(2, "No usable temporary directory found")

    monkeypatch.setattr(tempfile, "gettempdir", nowhere)
    config = parse(LOCAL, environ=environ | {"XDG_RUNTIME_DIR": "/nowhere"})
    assert config.security.token is None
    assert any("no token can be made for this user's jobs" in sentence for _, sentence in config.notes)


@pytest.mark.skipif(os.geteuid() != 0, reason="needs root, to give a file to somebody else")
def test_the_token_of_somebody_else_is_not_used(
    parse: Parse, environ: dict[str, str], tmp_path: Path
) -> None:
    os.chown(put(tmp_path / "config/elasticrun/token"), 12345, -1)
    config = parse(*REMOTE, environ=environ)
    assert config.security.token is None
    assert any("belongs to user 12345" in sentence for level, sentence in config.notes if level == "warning")
    os.chown(put(tmp_path / "session/elasticrun/token").parent, 12345, -1)
    (tmp_path / "cache").mkdir()
    assert parse(LOCAL, environ=environ).security.token != TOKEN


@pytest.mark.parametrize("mode", [0o640, 0o604, 0o660])
def test_an_open_token_in_the_home_is_refused(
    mode: int, parse: Parse, environ: dict[str, str], tmp_path: Path
) -> None:
    put(tmp_path / "config/elasticrun/token", mode=mode)
    assert f"is open to other users (mode {mode:04o}): chmod 600 it" in refused(parse, LOCAL, environ=environ)


def test_a_pipe_in_the_place_of_a_token_holds_nobody_up(
    parse: Parse, environ: dict[str, str], tmp_path: Path
) -> None:
    (tmp_path / "config/elasticrun").mkdir(parents=True)
    os.mkfifo(tmp_path / "config/elasticrun/token", 0o600)
    assert "is not a regular file" in refused(parse, LOCAL, environ=environ)


def test_a_secret_that_is_mounted_and_cannot_be_read(
    parse: Parse, environ: dict[str, str], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(tokens, "MOUNTED", str(tmp_path / "secret"))
    (tmp_path / "secret").mkdir()
    assert "cannot be read" in refused(parse, *REMOTE, environ=environ)
    monkeypatch.setattr(tokens, "MOUNTED", str(put(tmp_path / "empty", "")))
    assert "is empty: give a token" in refused(parse, *REMOTE, environ=environ)


# --- whether


@pytest.mark.parametrize("variable", [{"ELASTICRUN_REQUIRE_TOKEN": "1"}, {"PET_REQUIRE_TOKEN": "1"}, {}])
def test_a_token_can_be_required(parse: Parse, environ: dict[str, str], variable: dict[str, str]) -> None:
    options = () if variable else ("--require-token",)
    words = next(iter(variable), "--require-token")
    assert refused(parse, *REMOTE, *options, environ=environ | variable).startswith(
        f"{words} is set, and there"
    )
    assert parse(LOCAL, *options, environ=environ | variable).security.token, "one was made"
    assert parse("--standalone", *options, environ=environ | variable).security.token is None
    off = environ | {"ELASTICRUN_REQUIRE_TOKEN": "0"}
    assert parse(*REMOTE, environ=off).security.token is None


def test_no_token_means_none(parse: Parse, environ: dict[str, str], tmp_path: Path) -> None:
    given = environ | {"ELASTICRUN_TOKEN": TOKEN}
    assert parse(LOCAL, "--no-token", environ=given).security == SecurityConfig()
    assert parse("--standalone", "--no-token", environ=given).security == SecurityConfig()
    assert "exclude each other" in refused(parse, LOCAL, "--no-token", "--token-file=t", environ=environ)
    image = environ | {"ELASTICRUN_REQUIRE_TOKEN": "1"}
    assert refused(parse, LOCAL, "--no-token", environ=image).startswith(
        "--no-token and ELASTICRUN_REQUIRE_TOKEN"
    )


def test_where_the_token_comes_from_is_told_and_nothing_of_it(parse: Parse, environ: dict[str, str]) -> None:
    notes = parse(LOCAL, environ=environ | {"ELASTICRUN_TOKEN": TOKEN}).notes
    assert ("info", "the job's token was read from ELASTICRUN_TOKEN") in notes
    assert TOKEN not in str(notes)


# --- how hard to guess

MADE: dict[str, Callable[[random.Random], str]] = {
    "openssl rand -hex 16": lambda chance: chance.randbytes(16).hex(),
    "token_hex": lambda chance: chance.randbytes(32).hex().upper(),
    "token_urlsafe": lambda chance: base64.urlsafe_b64encode(chance.randbytes(16)).decode().rstrip("="),
    "base64": lambda chance: base64.b64encode(chance.randbytes(16)).decode(),
    "uuid4": lambda chance: str(uuid.UUID(bytes=chance.randbytes(16), version=4)),
    "letters": lambda chance: "".join(chance.choices(string.ascii_letters + string.digits, k=22)),
    "decimal": lambda chance: "".join(chance.choices(string.digits, k=39)),
}


@pytest.mark.parametrize("make", MADE.values(), ids=MADE)
def test_what_a_generator_makes_is_enough(make: Callable[[random.Random], str]) -> None:
    """All but one in 400,000, which happens to hold no capital; so these are always the same."""
    chance = random.Random(0)
    assert min(bits(make(chance)) for _ in range(1000)) >= ENOUGH


@pytest.mark.parametrize(
    "text",
    [
        "changeme",
        "a-token-of-some-length",
        "correct horse battery staple and then some",
        "PASSWORDPASSWORDPASSWORDPASSWORDPASSWORD",
        "a" * 4000,
        "ab" * 2000,
        "0123456789abcdef" * 2,
        "12345678901234567890123456789012345678901",
        string.ascii_lowercase + string.digits,
        "hunter2" * 20,
        pytest.param(secrets.token_hex(15), id="120 random bits"),
        "===",
    ],
)
def test_what_people_type_is_not(text: str, parse: Parse) -> None:
    assert bits(text) < ENOUGH
    said = refused(parse, "--standalone", environ={"ELASTICRUN_TOKEN": text})
    assert said.startswith("ELASTICRUN_TOKEN has a token that can be guessed") and text not in said
    assert "elastic-ctl token create" in said
    taken = parse("--standalone", "--insecure-token", environ={"ELASTICRUN_TOKEN": text})
    assert taken.security.token == text


def test_parsing_needs_no_environment_of_the_process(environ: dict[str, str], script: str) -> None:
    config = parse_command_line([LOCAL, script], environ)
    assert config.security.token and config.security.token not in repr(config)
