"""The job's token and the files for TLS, read from where the user put them.

The token is never an argument of a program, since everybody on a host can read those. It comes from a file,
else from ELASTICRUN_TOKEN, and goes to the master's process through a pipe. A node that is alone and has none
needs none: nobody but its agent can reach its master.

Workers do not get it, not even the variable: what they want of the job they ask their agent for, and
whoever could steer the job would be any code that a training program imports.
"""

from __future__ import annotations

import os
import stat
from collections.abc import Mapping

from elasticrun.cli import options
from elasticrun.cli.arguments import Given
from elasticrun.config import SecurityConfig, TlsConfig
from elasticrun.errors import UsageError

Notes = list[tuple[str, str]]

#: Read if no --token-file is given.
TOKEN_VARIABLE = "ELASTICRUN_TOKEN"
_HOW_TO_MAKE = "one can be made with: openssl rand -hex 32"
_MOST_BYTES = 4096
#: Shorter ones can be guessed by whoever hears a stream begin.
_FEW_CHARACTERS = 16
_LARGEST_PEM = 1 << 20


def read_security(given: Given, environ: Mapping[str, str], alone: bool, notes: Notes) -> SecurityConfig:
    """What protects the streams of this launch. Raises UsageError for a file that cannot be used."""
    token = read_token(given.find(options.TOKEN_FILE), environ, notes)
    ca, cert, key = (given.find(option) for option in (options.TLS_CA, options.TLS_CERT, options.TLS_KEY))
    if not alone:
        return SecurityConfig(token, read_tls(ca, cert, key, notes))
    if ca or cert or key:
        notes.append(("info", "the options for TLS are not used: this job stays on its host"))
    return SecurityConfig(token)


def without_token(environ: Mapping[str, str]) -> dict[str, str]:
    """What the user's programs get of an environment."""
    return {name: value for name, value in environ.items() if name != TOKEN_VARIABLE}


def read_token(path: str | None, environ: Mapping[str, str], notes: Notes) -> str | None:
    """The token in the file, else that in the environment, else None."""
    if path is not None:
        _note_if_open("--token-file", path, notes)
        return _checked(f"--token-file {path!r}", _read("--token-file", path, _MOST_BYTES), notes)
    text = environ.get(TOKEN_VARIABLE)
    return _checked(TOKEN_VARIABLE, os.fsencode(text), notes) if text else None


def read_tls(ca: str | None, cert: str | None, key: str | None, notes: Notes) -> TlsConfig | None:
    """The files for TLS, looked at as far as that is possible without TLS; None if none is given."""
    given = {"--tls-ca": ca, "--tls-cert": cert, "--tls-key": key}
    missing = [flag for flag, path in given.items() if not path]
    if not ca or not cert or not key:
        if len(missing) < len(given):
            raise UsageError(
                f"{' and '.join(missing)} not given: TLS needs --tls-ca, --tls-cert and --tls-key"
            )
        return None
    _check_pem("--tls-ca", ca, b"CERTIFICATE-----")
    _check_pem("--tls-cert", cert, b"CERTIFICATE-----")
    if b"ENCRYPTED" in _check_pem("--tls-key", key, b"PRIVATE KEY-----"):
        raise UsageError(
            f"--tls-key {key!r} needs a passphrase, which nobody could type on every node: "
            "give a key without one, that only its owner can read; openssl pkey makes one of it"
        )
    _note_if_open("--tls-key", key, notes)
    return TlsConfig(*(os.path.abspath(path) for path in (ca, cert, key)))  # noqa: PTH100


def _checked(source: str, data: bytes, notes: Notes) -> str:
    try:
        token = data.decode().strip()
    except UnicodeDecodeError:
        raise UsageError(f"{source} is not text: give a token in UTF-8; {_HOW_TO_MAKE}") from None
    if not token:
        raise UsageError(f"{source} is empty: give a token; {_HOW_TO_MAKE}")
    if len(token.splitlines()) > 1 or not token.isprintable():
        raise UsageError(f"{source} has more than one line: give nothing but the token; {_HOW_TO_MAKE}")
    if len(token) < _FEW_CHARACTERS:
        sentence = f"{source} has a token of {len(token)} characters, which can be guessed: {_HOW_TO_MAKE}"
        notes.append(("warning", sentence))
    return token


def _read(flag: str, path: str, most: int) -> bytes:
    try:
        with open(path, "rb") as file:  # noqa: PTH123
            data = file.read(most + 1)
    except (OSError, ValueError) as error:
        reason = getattr(error, "strerror", None) or error
        raise UsageError(f"{flag} {path!r} cannot be read: {reason}; name a readable file") from None
    if len(data) > most:
        raise UsageError(f"{flag} {path!r} is larger than {most} bytes: name the right file")
    return data


def _check_pem(flag: str, path: str, mark: bytes) -> bytes:
    data = _read(flag, path, _LARGEST_PEM)
    if mark not in data:
        what = mark.decode().rstrip("-").lower()
        raise UsageError(f"{flag} {path!r} holds no {what} in PEM format: name a file with one")
    return data


def _note_if_open(flag: str, path: str, notes: Notes) -> None:
    try:
        mode = os.stat(path).st_mode  # noqa: PTH116
    except (OSError, ValueError):
        return  # reading it says why
    if stat.S_ISREG(mode) and mode & stat.S_IROTH:
        notes.append(("warning", f"{flag} {path!r} can be read by every user of this host: chmod o-r it"))
