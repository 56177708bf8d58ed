"""A job as one OpenTelemetry trace, sent by OTLP over HTTP.

The job is the root span. Below it is a span for each round, with the failures of its workers as events, and
one for each recovery, with a span for each of its phases (``core/history/phases.py``).

Theory. Spans follow from the entries of the event log alone, their times and their ids too: the trace's from
the job's id and its start, a span's from the trace and what it is of. So an observer that starts anew, and
reads the log again, sends the same spans under the same ids. The start is the wall clock less the job's
clock, which all entries agree on but for a moment, so it is cut to ``START`` seconds.

Times are those of the job's clock, moved to the wall clock where a master began: spans are as long as it was,
whatever is done to the wall clock.

Sending is the business of a thread of the SDK; what cannot be sent is dropped, and told once.
"""

from __future__ import annotations

import hashlib
import logging
from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, cast
from urllib.parse import urlsplit

from elasticrun import __version__
from elasticrun.core.history.history import History
from elasticrun.core.history.phases import PhaseSpan
from elasticrun.core.history.views import Recovery, RoundView
from elasticrun.core.protocol import chronicle
from elasticrun.core.protocol.chronicle import LogEntry
from elasticrun.core.protocol.plain import plain
from elasticrun.errors import UsageError

if TYPE_CHECKING:
    from opentelemetry.sdk.trace import ReadableSpan, TracerProvider
    from opentelemetry.sdk.trace.export import SpanExporter, SpanExportResult
    from opentelemetry.sdk.trace.id_generator import IdGenerator
    from opentelemetry.trace import Span

logger = logging.getLogger(__name__)

#: Seconds to which the start of a job is cut for the trace's id.
START = 10.0
#: Seconds for one attempt to send, and between two.
TIMEOUT = 5.0
EACH = 2.0
PATH = "/v1/traces"
_LATEST = (1 << 63) - 1
_SUCCEEDED = "succeeded"
#: Who in the SDK logs each attempt that fails.
_NOISY = (
    "opentelemetry.exporter.otlp.proto.http.trace_exporter",
    "opentelemetry.sdk._shared_internal",
    "opentelemetry.sdk.trace.export",
)

Values = Mapping[str, str | int | float | bool | None]


class Tracer:
    """Makes spans of entries and sends them. Neither raises, whatever the network does."""

    def __init__(self, endpoint: str, job_id: str = "") -> None:
        """Send to an OTLP collector.

        Args:
            endpoint: Its URL, such as http://collector:4318; without a path, that of OTLP is meant.
            job_id: The job's id. Jobs of the same id that start together share a trace.

        Raises:
            UsageError: the URL is none, or OpenTelemetry is not installed.
        """
        self._job_id = job_id
        self._ids = _Ids()
        self._provider, self._sender = _provider(_url(endpoint), self._ids)
        self._tracer = self._provider.get_tracer("elasticrun", __version__)
        self._history = History()
        self._shift = 0.0  # from the job's clock to the wall clock
        self._root: Span | None = None
        self._round: tuple[int, Span] | None = None  # the one that runs, by number
        self._settled = 0
        self._is_over = False

    def take(self, entries: Sequence[LogEntry]) -> None:
        """Take in the next entries, in the order of the log."""
        for entry in entries:
            if not self._is_over:
                self._take(entry)

    def close(self) -> None:
        """Send what there is, and end; blocks for ``TIMEOUT`` seconds, or twice that, if nobody answers.

        A job that goes on is told as far as it is known.
        """
        if not self._is_over:
            self._end(self._history.last[0], "", "the observer ended before the job")
        self._sender.is_closing = True
        self._provider.shutdown()

    def _take(self, entry: LogEntry) -> None:
        told = entry.told
        if self._root is None or isinstance(told, chronicle.MasterStarted):
            self._shift = entry.time - entry.at
        if self._root is None:
            self._ids.begin(self._job_id, self._shift)
            self._root = self._start("job", "job", entry.at, {"job_id": self._job_id})
        self._history.take(entry)
        self._see_recovery()
        match told:
            case chronicle.RoundStarted():
                self._started(entry.at, told)
            case chronicle.RoundStopping():
                self._tell(told.round, {"cause": told.cause, "stop_reason": told.reason})
            case chronicle.RoundStopped():
                self._stopped(entry.at, told.round)
            case chronicle.WorkerFailed():
                self._failed(entry.at, told)
            case chronicle.JobEnded():
                self._end(entry.at, told.outcome, told.reason)
            case _:
                pass

    # -- spans

    def _start(self, key: str, name: str, at: float, values: Values) -> Span:
        """Begin a span below the root; the root itself if there is none yet."""
        from opentelemetry.trace import set_span_in_context

        self._ids.next = key
        parent = None if self._root is None else set_span_in_context(self._root)
        return self._tracer.start_span(
            name, parent, attributes=_attributes(values), start_time=self._nanos(at)
        )

    def _started(self, at: float, told: chronicle.RoundStarted) -> None:
        self._stopped(at, None)
        values: Values = {
            "round": told.round,
            "nodes": told.nodes,
            "workers": told.workers,
            "restart": told.restart,
            "restored_step": told.restored_step,
            "reason": told.reason,
        }
        self._round = told.round, self._start(f"round {told.round}", f"round {told.round}", at, values)

    def _tell(self, number: int, values: Values) -> None:
        if self._round is not None and self._round[0] == number:
            self._round[1].set_attributes(_attributes(values))

    def _stopped(self, at: float, number: int | None) -> None:
        """The round ended. None: whichever it is."""
        if self._round is not None and number in (None, self._round[0]):
            self._round[1].end(self._nanos(at))
            self._round = None

    def _failed(self, at: float, told: chronicle.WorkerFailed) -> None:
        if self._round is None or self._round[0] != told.round:
            return
        from opentelemetry.trace import Status, StatusCode

        values: Values = {
            "node": told.node,
            "host": told.host,
            "rank": told.rank,
            "local_rank": told.local_rank,
            "how": told.how,
            "exit_code": told.exit_code,
            "step": told.step,
            "summary": told.summary,
        }
        self._round[1].add_event("worker failed", _attributes(values), self._nanos(at))
        self._round[1].set_status(Status(StatusCode.ERROR, plain(told.summary)))

    def _see_recovery(self) -> None:
        totals = self._history.totals
        if totals.settled > self._settled and totals.newest is not None:
            self._settled = totals.settled
            self._recovered(*totals.newest)

    def _recovered(self, recovery: Recovery, after: RoundView, spans: Sequence[PhaseSpan]) -> None:
        from opentelemetry.trace import set_span_in_context

        values: Values = {
            "cause": recovery.cause,
            "reason": recovery.reason,
            "is_failure": recovery.is_failure,
            "round": after.number,
            "nodes": after.nodes,
            "workers": after.workers,
        }
        key = f"recovery {after.number}"
        whole = self._start(key, "recovery", spans[0].began, values)
        for each in spans:
            self._ids.next = f"{key} {each.phase.value}"
            self._tracer.start_span(
                each.phase.value.replace("_", " "),
                set_span_in_context(whole),
                attributes=_attributes({"phase": each.phase.value, "round": after.number}),
                start_time=self._nanos(each.began),
            ).end(self._nanos(each.ended))
        whole.end(self._nanos(spans[-1].ended))

    def _end(self, at: float, outcome: str, reason: str) -> None:
        self._is_over = True
        self._stopped(at, None)
        if self._root is None:
            return
        from opentelemetry.trace import Status, StatusCode

        history = self._history
        values: Values = {
            "outcome": outcome or None,
            "reason": reason,
            "is_over": bool(outcome),
            "restarts": history.restarts,
            "goodput": history.summary(at).goodput,
        }
        self._root.set_attributes(_attributes(values))
        if outcome:
            is_good = outcome == _SUCCEEDED
            self._root.set_status(
                Status(StatusCode.OK) if is_good else Status(StatusCode.ERROR, plain(reason))
            )
        self._root.end(self._nanos(at))

    def _nanos(self, at: float) -> int:
        """A moment of the job's clock as OpenTelemetry has it, which has 64 bits for it."""
        return min(max(0, round((at + self._shift) * 1e6)) * 1000, _LATEST)


class _Ids:
    """Ids that follow from what a span is of. An SDK's ``IdGenerator``."""

    def __init__(self) -> None:
        self.next = ""
        self._trace = 1

    def begin(self, job_id: str, start: float) -> None:
        """The job that all spans are of."""
        self._trace = _digest(f"{job_id}\n{start // START:.0f}", 16)

    def generate_trace_id(self) -> int:
        """The id of the only trace."""
        return self._trace

    def generate_span_id(self) -> int:
        """The id of the span that is about to start."""
        return _digest(f"{self._trace:032x} {self.next}", 8)

    def is_trace_id_random(self) -> bool:
        """Whether its bits are random: as good as, for who samples by them."""
        return False


class _Quiet(logging.Filter):
    """Keeps the newest trouble of the SDK's loggers, which tell of each attempt, and drops the rest."""

    def __init__(self) -> None:
        super().__init__()
        self.newest = ""
        self._loggers = [logging.getLogger(name) for name in _NOISY]
        for each in self._loggers:
            each.addFilter(self)

    def filter(self, record: logging.LogRecord) -> bool:
        """Let nothing pass."""
        if record.levelno >= logging.WARNING:
            self.newest = record.getMessage()
        return False

    def remove(self) -> None:
        """Let the SDK log again."""
        for each in self._loggers:
            each.removeFilter(self)


class _Sender:
    """Sends batches in the SDK's thread: a ``SpanExporter``. Tells once that one could not be sent."""

    def __init__(self, exporter: SpanExporter, endpoint: str) -> None:
        self.is_closing = False
        self._exporter = exporter
        self._endpoint = endpoint
        self._quiet = _Quiet()
        self._is_told = self._has_failed = False

    def export(self, spans: Sequence[ReadableSpan]) -> SpanExportResult:
        """Send a batch; when it ends, only as long as that succeeds."""
        from opentelemetry.sdk.trace.export import SpanExportResult

        if self.is_closing and self._has_failed:
            return SpanExportResult.FAILURE
        result = self._exporter.export(spans)
        self._has_failed = result is not SpanExportResult.SUCCESS
        if self._has_failed and not self._is_told:
            self._is_told = True
            why = plain(self._quiet.newest) or "no reason is known"
            logger.warning("traces cannot be sent to %s: %s (this is told once)", self._endpoint, why)
        return result

    def shutdown(self) -> None:
        """End; an attempt under way is cut short."""
        self._exporter.shutdown()
        self._quiet.remove()

    def force_flush(self, timeout_millis: int = 30000) -> bool:
        """Nothing is kept here."""
        return True


def _provider(url: str, ids: _Ids) -> tuple[TracerProvider, _Sender]:
    """The parts of the SDK that make spans and send them. Raises UsageError if it is not installed."""
    try:
        from opentelemetry.exporter.otlp.proto.http.trace_exporter import OTLPSpanExporter
        from opentelemetry.sdk.resources import Resource
        from opentelemetry.sdk.trace import TracerProvider
        from opentelemetry.sdk.trace.export import BatchSpanProcessor
        from opentelemetry.sdk.trace.sampling import ALWAYS_ON
    except ImportError:
        raise UsageError("traces need OpenTelemetry: pip install 'elasticrun[traces]'") from None
    sender = _Sender(OTLPSpanExporter(url, timeout=TIMEOUT), url)
    provider = TracerProvider(
        sampler=ALWAYS_ON,
        resource=Resource.create({"service.name": "elasticrun", "service.version": __version__}),
        shutdown_on_exit=False,
        id_generator=cast("IdGenerator", ids),
    )
    exporter = cast("SpanExporter", sender)
    provider.add_span_processor(BatchSpanProcessor(exporter, schedule_delay_millis=EACH * 1000))
    return provider, sender


def _url(endpoint: str) -> str:
    """Where to send to. Raises UsageError if it is no URL."""
    try:
        found = urlsplit(endpoint)
        is_good = found.scheme in ("http", "https") and bool(found.hostname) and found.port != 0
    except ValueError:
        is_good = False
    if not is_good:
        raise UsageError(
            f"{endpoint!r} is no endpoint for traces: give http://HOST:PORT or https://HOST:PORT"
        )
    return endpoint if found.path.strip("/") else found._replace(path=PATH).geturl()


def _attributes(values: Values) -> dict[str, str | int | float | bool]:
    return {
        f"elasticrun.{key}": plain(value) if isinstance(value, str) else value
        for key, value in values.items()
        if value is not None
    }


def _digest(text: str, size: int) -> int:
    """A number of so many bytes, never 0."""
    found = hashlib.sha256(text.encode(errors="surrogatepass")).digest()[:size]
    return int.from_bytes(found, "big") or 1
