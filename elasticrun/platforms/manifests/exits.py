"""What a platform does about the exit codes of ``elastic-run``.

The failure of a worker never gets here: launchers restart workers by themselves, and go on. So a pod ends
only if the job is over, or if its node is.

====================  ==========================================================================
``GIVE_UP``           the job is over, and another start would end in the same way
``AWAY``              this node was told to leave: it is not started again
``WAIT``              too few others are there: start again, as often as it takes
all others            a fault of this node: start again, but not for ever
====================  ==========================================================================

Some platforms cannot tell these apart. There a few lines of shell stand before ``elastic-run``.
"""

from __future__ import annotations

from collections.abc import Iterable

from elasticrun.errors import ExitCode

GIVE_UP = (ExitCode.JOB_FAILED, ExitCode.USAGE, ExitCode.REPEATED_ERROR, ExitCode.UNHEALTHY)
AWAY = (ExitCode.DRAINED,)
WAIT = (ExitCode.RENDEZVOUS_TIMEOUT, ExitCode.MASTER_UNREACHABLE, ExitCode.MASTER_LOST)
#: The platform stopped a pod, which it replaces.
SIGTERM_STATUS = 128 + 15
#: What stopped a launcher from outside: SIGINT, SIGABRT, SIGKILL (out of memory, too), SIGSEGV, SIGTERM.
KILLED = (130, 134, 137, 139, SIGTERM_STATUS)
#: How often a fault of one node may start its pod again.
NODE_FAULTS = 10

_WATCH = """\
# Runs elastic-run, hands SIGTERM on to it, and then judges its exit code.
stopped=
trap 'stopped=1; kill -TERM $pid 2>/dev/null' TERM INT
"$0" "$@" & pid=$!
[ -z "$stopped" ] || kill -TERM $pid
wait $pid; code=$?
while kill -0 $pid 2>/dev/null; do wait $pid; code=$?; done
[ -z "$stopped" ] || exit $code
"""

# Nothing here signals the sleeping child: it ends with the pod, as its first process does.
_STAY = """\
trap 'exit 143' TERM INT
[ -z "$stopped" ] || exit 143
case $code in
{final})
    echo "elastic-run ended with $code: nothing is left to do, delete this StatefulSet"
    sleep infinity & wait $! ;;
*) exit $code ;;
esac
"""

_RETRY = """\
case $code in
0|{away}) exit 0 ;;
{final}) exit $code ;;
*) [ $code -ge 128 ] || code=$((128 + code))
    exit $code ;;
esac
"""


def _either(codes: Iterable[int]) -> str:
    return "|".join(str(int(code)) for code in codes)


#: Before the words of a command that must not be started again once the job is over.
STAYING = ("sh", "-c", _WATCH + _STAY.format(final=_either((0, *GIVE_UP, *AWAY))))
#: Before the words of a command whose platform starts again what ends with 128 or more.
RETRYING = ("sh", "-c", _WATCH + _RETRY.format(away=_either(AWAY), final=_either(GIVE_UP)))
