"""``elastic-ctl token``: make a token where agents will find it, and compare two without showing them."""

from __future__ import annotations

import os

import click

from elasticrun.cli.ctl_run import exit_on_errors
from elasticrun.cli.private_files import NotPrivateError, private_directory, write_private
from elasticrun.cli.secrets import TOKEN_VARIABLE, Notes, Token, given_token
from elasticrun.cli.strength import ENOUGH, is_weak
from elasticrun.cli.tokens import home_token
from elasticrun.errors import UsageError

#: Enough to tell a team's tokens apart, too few to reveal one.
FINGERPRINT_BITS = 48
_PURPOSE = b"elasticrun token fingerprint\0"


@click.group()
def token() -> None:
    """Make a job's token, or compare it with that of another host."""


@token.command()
@click.option(
    "--path",
    type=click.Path(dir_okay=False),
    metavar="FILE",
    help="Where to put it (default: ~/.config/elasticrun/token, which agents and elastic-ctl look for).",
)
@click.option("--force", is_flag=True, help="Replace the token that is there; running jobs keep the old one.")
def create(path: str | None, force: bool) -> None:
    """Make a random token of 256 bits in a file that only you can read."""
    with exit_on_errors():
        click.echo(_create(path, force))


@token.command(name="show-fingerprint")
@click.option("--token-file", type=click.Path(dir_okay=False), metavar="FILE", help="As for elastic-run.")
def show_fingerprint(token_file: str | None) -> None:
    """Show a short name of the token, to compare it with another host's.

    It has 48 bits and says nothing that helps to guess the token, which is why a token of less than 128 bits
    has none.
    """
    with exit_on_errors():
        click.echo(_show(token_file))


def fingerprint(text: str) -> str:
    """The token's short name, such as 3f2a-91c0-7d5e."""
    import hashlib

    digits = hashlib.sha256(_PURPOSE + text.encode()).hexdigest()[: FINGERPRINT_BITS // 4]
    return "-".join(digits[place : place + 4] for place in range(0, len(digits), 4))


def _create(path: str | None, force: bool) -> str:
    place = path or home_token(os.environ)
    if place is None:
        raise UsageError("neither XDG_CONFIG_HOME nor HOME is an absolute path: give --path FILE")
    text = os.urandom(32).hex()
    folder, name = os.path.split(os.path.abspath(place))  # noqa: PTH100
    try:
        if path is None:
            os.makedirs(os.path.dirname(folder), exist_ok=True)  # noqa: PTH103, PTH120
            with private_directory(folder, make=True) as directory:
                write_private(name, f"{text}\n".encode(), directory, replace=force)
        else:  # the user chose the directory: it need not be private
            directory = os.open(folder, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
            try:
                write_private(name, f"{text}\n".encode(), directory, replace=force)
            finally:
                os.close(directory)
    except FileExistsError:
        raise UsageError(
            f"there is a token in {place} already: give --force to replace it, or use it as it is"
        ) from None
    except NotPrivateError as error:
        raise UsageError(f"{folder} {error}: chmod 700 it, or give --path FILE") from None
    except OSError as error:
        raise UsageError(
            f"no token can be made in {place}: {error.strerror}; give another --path FILE"
        ) from None
    return (
        f"made the token {place}, fingerprint {fingerprint(text)}\n"
        + (
            "agents and elastic-ctl find it by themselves"
            if path is None
            else f"use it with --token-file {place}"
        )
        + " on every host that sees this file; on others, copy it there"
    )


def _show(path: str | None) -> str:
    notes: Notes = []
    found = _find(path, notes)
    if is_weak(found.text):
        raise UsageError(
            f"{found.source} has less than {ENOUGH} bits, so its fingerprint would help to guess it: "
            "make another token with: elastic-ctl token create"
        )
    return f"{fingerprint(found.text)} ({found.source})"


def _find(path: str | None, notes: Notes) -> Token:
    from elasticrun.cli.secrets import find_token
    from elasticrun.config import Endpoint

    local = (Endpoint("localhost", 0),)
    found = given_token(path, os.environ, notes, is_strict=False)
    found = found or find_token(None, os.environ, local, notes, is_strict=False, make=False)
    if found is None:
        raise UsageError(
            f"no token found: give --token-file or {TOKEN_VARIABLE}, or make one: elastic-ctl token create"
        )
    return found
