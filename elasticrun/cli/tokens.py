"""Where the job's token is looked for, so that most users need not name one.

The places, in this order, for agents and for ``elastic-ctl`` alike, so that both find the same one:

1. ``--token-file``;
2. ELASTICRUN_TOKEN;
3. /var/run/secrets/elasticrun/token, where a secret of the platform is mounted;
4. ~/.config/elasticrun/token, made by ``elastic-ctl token create``: a shared home is all that several hosts
   need;
5. if every endpoint is a loopback address, a token that this user has on this host. The first agent that
   needs it makes it, and it stays: it belongs to the user, not to a job, so it is never stale.

For the fifth there are several directories, as none exists everywhere: that of the login session, the user's
own among the temporary files, and the user's cache. All of them are searched before a token is made, so that
agents with different environments (a shell, a cron job) find the same one. A directory that is not private to
this user is passed over, so that another user who takes its name can neither read nor plant a token.

A node that is alone stops after 2: without a token its master has no port at all, which is safer and faster.
"""

from __future__ import annotations

import contextlib
import os
from collections.abc import Iterator, Mapping, Sequence

from elasticrun.cli.private_files import NotPrivateError, private_directory, read_private, write_private
from elasticrun.config import Endpoint
from elasticrun.dataclass import dataclass
from elasticrun.errors import UsageError

Notes = list[tuple[str, str]]

MOUNTED = "/var/run/secrets/elasticrun/token"
SESSIONS = "/run/user"  # has the session directories; for when XDG_RUNTIME_DIR is not set
NAME = "token"
_FOLDER = "elasticrun"
#: A longer file is no token.
MOST_BYTES = 4096


@dataclass(frozen=True, slots=True)
class Found:
    """The content of a token's file, as it was read."""

    data: bytes
    source: str  # in words, for messages


def find_anywhere(
    environ: Mapping[str, str], endpoints: Sequence[Endpoint], notes: Notes, *, make: bool
) -> Found | None:
    """The token of places 3 to 5; ``make`` makes a missing fifth. Raises UsageError for an unusable file."""
    found = _mounted() or _at_home(environ, notes)
    if found is None and all(is_loopback(endpoint.host) for endpoint in endpoints):
        found = _of_this_user(environ, notes, make)
    return found


def is_loopback(host: str) -> bool:
    """Whether a host, as the user wrote it, is certainly this one, and unreachable from others."""
    if host.lower() == "localhost":
        return True
    import ipaddress

    try:
        address = ipaddress.ip_address(host.partition("%")[0])
    except ValueError:
        return False
    mapped = getattr(address, "ipv4_mapped", None)
    return bool((mapped or address).is_loopback)


def home_token(environ: Mapping[str, str]) -> str | None:
    """The path of the token in the user's home; None if there is no home."""
    folder = _folder(environ, "XDG_CONFIG_HOME", ".config")
    return folder and os.path.join(folder, _FOLDER, NAME)  # noqa: PTH118


def _folder(environ: Mapping[str, str], variable: str, default: str) -> str | None:
    """A folder of the XDG base directory specification, which ignores relative paths."""
    if (given := environ.get(variable, "")).startswith("/"):
        return given
    home = environ.get("HOME", "")
    return os.path.join(home, default) if home.startswith("/") else None  # noqa: PTH118


def _mounted() -> Found | None:
    """The mounted token; the platform decides who may read it, and it is often a link: no checks."""
    try:
        file = os.open(MOUNTED, os.O_RDONLY | os.O_NONBLOCK | os.O_CLOEXEC)
    except (FileNotFoundError, NotADirectoryError):
        return None
    except OSError as error:
        raise UsageError(
            f"the token {MOUNTED} cannot be read: {error.strerror}; let this user read it"
        ) from None
    try:
        return Found(os.read(file, MOST_BYTES + 1), MOUNTED)
    except OSError as error:
        raise UsageError(
            f"the token {MOUNTED} cannot be read: {error.strerror}; mount a file there"
        ) from None
    finally:
        os.close(file)


def _at_home(environ: Mapping[str, str], notes: Notes) -> Found | None:
    path = home_token(environ)
    if path is None:
        return None
    try:
        return Found(read_private(path, MOST_BYTES + 1), path)
    except NotPrivateError as error:
        if "belongs to" in str(error):  # as after sudo -E
            notes.append(("warning", f"the token {path} is not used: it {error}"))
            return None
        raise UsageError(
            f"the token {path} {error}: chmod 600 it, and make another one if it was read"
        ) from None
    except OSError:
        return None  # it is missing, or this home is closed to us


def _of_this_user(environ: Mapping[str, str], notes: Notes, make: bool) -> Found | None:
    candidates = list(_private_directories(environ))
    for path in candidates:
        if (found := _read_in(path)) is not None:
            return found
    if not make:
        return None
    problems = []
    for path in candidates:
        try:
            return _made_in(path)
        except OSError as error:
            problems.append(f"{path}: {error.strerror}")
        except NotPrivateError as error:
            problems.append(f"{path} {error}")
    notes.append(("warning", f"no token can be made for this user's jobs ({'; '.join(problems)})"))
    return None


def _private_directories(environ: Mapping[str, str]) -> Iterator[str]:
    """Directories in which this user's files last as long as a job."""
    import tempfile

    user = os.geteuid()
    session = [environ.get("XDG_RUNTIME_DIR", ""), f"{SESSIONS}/{user}"]
    if (ours := next(filter(_is_ours, session), None)) is not None:
        yield os.path.join(ours, _FOLDER)  # noqa: PTH118
    with contextlib.suppress(OSError):  # there is no folder for temporary files
        yield os.path.join(tempfile.gettempdir(), f"{_FOLDER}-{user}")  # noqa: PTH118
    if cache := _folder(environ, "XDG_CACHE_HOME", ".cache"):
        yield os.path.join(cache, _FOLDER)  # noqa: PTH118


def _is_ours(path: str) -> bool:
    """Whether this user owns the session directory; after sudo or su it may be another's."""
    try:
        return path.startswith("/") and os.stat(path).st_uid == os.geteuid()  # noqa: PTH116
    except OSError:
        return False


def _read_in(path: str) -> Found | None:
    try:
        with private_directory(path, make=False) as directory:
            return _found(path, read_private(NAME, MOST_BYTES + 1, directory))
    except (OSError, NotPrivateError):
        return None  # making one there will report why


def _made_in(path: str) -> Found:
    data = f"{os.urandom(32).hex()}\n".encode()
    with private_directory(path, make=True) as directory:
        try:
            write_private(NAME, data, directory)
        except FileExistsError:  # another agent was faster
            data = read_private(NAME, MOST_BYTES + 1, directory)
    return _found(path, data)


def _found(path: str, data: bytes) -> Found:
    return Found(data, f"{os.path.join(path, NAME)} (of this user's jobs on this host)")  # noqa: PTH118
