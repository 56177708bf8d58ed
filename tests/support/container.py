"""What a container of a strict platform is to a program, made by hand: no engine has to run.

The program is the first process there. The root is read-only but for an empty /tmp and a small /dev/shm. Its
user id is one that no file knows, with group 0 and without capabilities. The network is the host's.
"""

from __future__ import annotations

import sys
from pathlib import Path

from tests.support.launcher import ROOT

#: As OpenShift chooses it.
USER = 1_000_770_000

#: Takes the folders to keep, each with a blank behind it; those to hide likewise; the user; and the program.
#: What is kept below a hidden folder is put aside first, and then back.
_ENTER = """
mount --make-rprivate /
mount -t proc proc /proc
mount -t tmpfs tmpfs /mnt
number=0
for kept in $1; do
    number=$((number + 1))
    mkdir /mnt/$number
    mount --bind "$kept" /mnt/$number
done
for hidden in $2; do
    mount -t tmpfs -o mode=755 tmpfs "$hidden"
done
mount -t tmpfs -o mode=1777,size=64m tmpfs /dev/shm
number=0
for kept in $1; do
    number=$((number + 1))
    mkdir -p "$kept"
    mount --move /mnt/$number "$kept"
    mount -o remount,bind,ro "$kept"
done
umount /mnt
chmod 1777 /tmp
mount -o remount,bind,ro /
user=$3
shift 3
exec setsid setpriv --reuid "$user" --regid 0 --clear-groups \
    --bounding-set=-all --inh-caps=-all --no-new-privs "$@"
"""


def inside(*program: str) -> tuple[str, ...]:
    """What runs a program in such a container, and ends as the program does; it needs root."""
    kept = _outermost({ROOT, Path(sys.prefix), Path(sys.base_prefix)})
    closed = {parent for path in kept for parent in path.parents if not parent.stat().st_mode & 0o001}
    hidden = _outermost({Path("/tmp"), *closed})
    unshare = ("unshare", "--pid", "--fork", "--mount", "--ipc", "--uts", "--kill-child")
    words = (" ".join(map(str, sorted(paths))) for paths in (kept, hidden))
    return (*unshare, "sh", "-ec", _ENTER, "sh", *words, str(USER), *program)


def _outermost(paths: set[Path]) -> set[Path]:
    """Those that are below no other."""
    return {path for path in paths if not any(parent in paths for parent in path.parents)}
