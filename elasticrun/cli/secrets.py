"""The job's token and the files for TLS, read from where the user put them.

The token is never an argument of a program, since everybody on a host can read those. ``tokens.py`` says
where it is looked for; it goes to the master's process through a pipe.

Workers do not get it, nor the variable: they reach the job through their agent, and with the token any code
that a training program imports could steer the job. As every process of a user may read the environment with
which another one was started, the variable is overwritten there too (``scrub.py``).
"""

from __future__ import annotations

import os
import stat
from collections.abc import Mapping, Sequence

from elasticrun.cli import options
from elasticrun.cli.arguments import Given
from elasticrun.config import Endpoint, RendezvousConfig, SecurityConfig, TlsConfig
from elasticrun.dataclass import dataclass
from elasticrun.errors import UsageError

Notes = list[tuple[str, str]]

#: Read if no --token-file is given.
TOKEN_VARIABLE = "ELASTICRUN_TOKEN"
#: How the source of a token that a file holds begins; the file's path follows, as a literal.
TOKEN_FILE_SOURCE = "--token-file "
_MOST_BYTES = 4096
_LARGEST_PEM = 1 << 20


@dataclass(frozen=True, slots=True)
class Token:
    """A token that was found."""

    text: str
    source: str  # in words, for messages


def read_security(
    given: Given, environ: Mapping[str, str], rendezvous: RendezvousConfig, notes: Notes
) -> SecurityConfig:
    """The token and TLS files of this launch. Raises UsageError for a file that cannot be used."""
    alone = rendezvous.standalone
    token = _wanted_token(given, environ, rendezvous, notes)
    if token is None and given.on(options.REQUIRE_TOKEN) and not alone:
        source = given.texts[options.REQUIRE_TOKEN.name].source
        raise UsageError(
            f"{source} is set, and there is no token: give one by --token-file or {TOKEN_VARIABLE}, "
            "or make one for all your hosts with: elastic-ctl token create"
        )
    if token is not None:
        notes.append(("info", f"the job's token was read from {token.source}"))
    text, source = (token.text, token.source) if token is not None else (None, "")
    ca, cert, key = (given.find(option) for option in (options.TLS_CA, options.TLS_CERT, options.TLS_KEY))
    if not alone:
        return SecurityConfig(text, read_tls(ca, cert, key, notes), source)
    if ca or cert or key:
        notes.append(("info", "the options for TLS are not used: this job stays on its host"))
    return SecurityConfig(text, token_source=source)


def _wanted_token(
    given: Given, environ: Mapping[str, str], rendezvous: RendezvousConfig, notes: Notes
) -> Token | None:
    path, is_strict = given.find(options.TOKEN_FILE), not given.on(options.INSECURE_TOKEN)
    if given.on(options.NO_TOKEN):
        for other in (options.TOKEN_FILE, options.REQUIRE_TOKEN):
            if given.find(other):
                sources = (given.texts[each.name].source for each in (options.NO_TOKEN, other))
                raise UsageError(f"{' and '.join(sources)} exclude each other: give one of them")
        return None
    if rendezvous.standalone:
        return given_token(path, environ, notes, is_strict)
    endpoints = (rendezvous.endpoint, *rendezvous.successors)
    return find_token(path, environ, endpoints, notes, is_strict, make=True)


def is_open(rendezvous: RendezvousConfig, security: SecurityConfig) -> bool:
    """Whether strangers, such as other users of this host, could join: there is a port, and no token."""
    return not rendezvous.standalone and security.token is None


def without_token(environ: Mapping[str, str]) -> dict[str, str]:
    """The environment without the token, for the user's programs."""
    return {name: value for name, value in environ.items() if name != TOKEN_VARIABLE}


def given_token(path: str | None, environ: Mapping[str, str], notes: Notes, is_strict: bool) -> Token | None:
    """The token in the file, else that in the environment, else None. ``is_strict`` refuses weak ones."""
    if path is not None:
        source = f"{TOKEN_FILE_SOURCE}{path!r}"
        _note_if_open("--token-file", path, notes)
        return _checked(source, _read("--token-file", path, _MOST_BYTES), is_strict)
    text = environ.get(TOKEN_VARIABLE)
    return _checked(TOKEN_VARIABLE, os.fsencode(text), is_strict) if text else None


def find_token(
    path: str | None,
    environ: Mapping[str, str],
    endpoints: Sequence[Endpoint],
    notes: Notes,
    is_strict: bool,
    *,
    make: bool,
) -> Token | None:
    """The token of ``given_token``, else one found elsewhere (``tokens.py``), or with ``make`` made there."""
    if (token := given_token(path, environ, notes, is_strict)) is not None:
        return token
    from elasticrun.cli.tokens import find_anywhere

    found = find_anywhere(environ, endpoints, notes, make=make)
    return None if found is None else _checked(found.source, found.data, is_strict)


def read_tls(ca: str | None, cert: str | None, key: str | None, notes: Notes) -> TlsConfig | None:
    """The files for TLS, checked as far as possible without using TLS; None if none is given."""
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


def _checked(source: str, data: bytes, is_strict: bool) -> Token:
    from elasticrun.cli import strength  # not needed by a job without a token

    try:
        text = data.decode().strip()
    except UnicodeDecodeError:
        raise UsageError(f"{source} is not text: give a token in UTF-8; {strength.HOW_TO_MAKE}") from None
    if not text:
        raise UsageError(f"{source} is empty: give a token; {strength.HOW_TO_MAKE}")
    if len(data) > _MOST_BYTES:
        raise UsageError(f"{source} is larger than {_MOST_BYTES} bytes: name the right file")
    if len(text.splitlines()) > 1 or not text.isprintable():
        raise UsageError(
            f"{source} has more than one line, or a character that cannot be printed: "
            f"give nothing but the token; {strength.HOW_TO_MAKE}"
        )
    if is_strict and strength.is_weak(text):
        raise UsageError(
            f"{source} has a token that can be guessed (about {strength.bits(text)} bits; a token needs "
            f"{strength.ENOUGH}): {strength.HOW_TO_MAKE}; or give --insecure-token"
        )
    return Token(text, source)


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
        return  # reading it will report why
    if stat.S_ISREG(mode) and mode & stat.S_IROTH:
        notes.append(("warning", f"{flag} {path!r} can be read by every user of this host: chmod o-r it"))
