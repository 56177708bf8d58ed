"""Asks the masters of all jobs how their trainings are, beside the keeper, which never waits for any of it.

Theory. Each job has a task of its own, which has at most one question under way; of all jobs a bounded number
are. A master answers once something is new (``AwaitStatus``), so nobody asks in vain, and each question has a
deadline here, whatever the other end does. When there is something to show, the keeper is told that something
happened to the job: its next pass writes it, as it writes everything. ``core/fleet/training.py`` decides what
is shown, and when.

A master is looked for at the addresses of the job's pods, not by name: the operator may run where the
cluster's names mean nothing. It is asked with the token of the job's Secret, which no answer gives away.
"""

from __future__ import annotations

import asyncio
import base64
import binascii
import logging
from collections.abc import Awaitable, Callable
from dataclasses import replace

from elasticrun.clock import happens, within
from elasticrun.config import Endpoint, SecurityConfig
from elasticrun.control import JobControl, JobStatus
from elasticrun.core.fleet.figures import ANSWERED, Figures
from elasticrun.core.fleet.replicas import Note
from elasticrun.core.fleet.training import (
    SPACING,
    Contact,
    Shown,
    Speed,
    Trouble,
    answered,
    due,
    failed,
    note_of,
    pause_after,
    show,
    training_of,
    wait_for,
)
from elasticrun.dataclass import dataclass
from elasticrun.errors import (
    ElasticRunError,
    EndpointTakenError,
    MasterUnreachableError,
    ProtocolError,
    TooManyError,
    UnauthenticatedError,
)
from elasticrun.platforms.kubernetes.api import FORBIDDEN, NOT_FOUND, Api, ApiError
from elasticrun.platforms.kubernetes.names import MOST_REPLICAS, PORT, core_path, secret_name

log = logging.getLogger(__name__)

#: Questions under way, of all jobs.
AT_A_TIME = 64
#: Seconds for one address to answer, beyond the wait that it is granted.
ANSWER_TIME = 5.0
_AWAY = Trouble("NoMaster", "no pod that may have the job's master runs")


@dataclass(frozen=True, slots=True)
class Place:
    """Where a job's master is looked for."""

    namespace: str
    name: str
    uid: str
    addresses: tuple[str, ...]


class TokenError(ElasticRunError):
    """There is no token to ask a master with."""


Ask = Callable[[Place, str, float], Awaitable[JobStatus]]


class Questions:
    """One question after the other, each on a connection of its own."""

    def __init__(self, api: Api, port: int = PORT) -> None:
        self._api = api
        self._port = port
        self._tokens: dict[str, str] = {}  # by uid of the job

    async def __call__(self, place: Place, mark: str, wait: float) -> JobStatus:
        """The status once its mark is another one. Raises ElasticRunError."""
        security = SecurityConfig(await self._token(place))
        endpoints = [Endpoint(address, self._port) for address in place.addresses]
        control = JobControl(endpoints, place.uid, security, ANSWER_TIME)
        try:
            return await control.following.status(mark, wait)
        except UnauthenticatedError:
            self._tokens.pop(place.uid, None)  # there may be another one now
            raise

    def forget(self, place: Place) -> None:
        """The job is gone."""
        self._tokens.pop(place.uid, None)

    async def _token(self, place: Place) -> str:
        if (known := self._tokens.get(place.uid)) is not None:
            return known
        name = secret_name(place.name, place.uid)
        try:
            found = await self._api.get(core_path(place.namespace, "secrets", name))
            token = base64.b64decode(found["data"]["token"], validate=True).decode("ascii")
        except ApiError as error:
            raise TokenError(_no_token(name, error)) from None
        except (KeyError, TypeError, ValueError, binascii.Error):
            raise TokenError(
                f"the Secret {name} has no token: delete it, and suspend and resume the job"
            ) from None
        self._tokens[place.uid] = token
        return token


def _no_token(name: str, error: ApiError) -> str:
    if error.status == FORBIDDEN:
        return f"there is no right to get the Secret {name}: apply what elastic-ctl operator --rbac prints"
    if error.status == NOT_FOUND:
        return f"there is no Secret {name}: suspend and resume the job, which makes another one"
    return str(error)


class Masters:
    """What is known of all masters. Made, and used, inside the running loop."""

    def __init__(self, ask: Ask, at_a_time: int = AT_A_TIME, figures: Figures | None = None) -> None:
        self._ask = ask
        self._figures = figures or Figures()
        self._at_a_time = at_a_time
        self._slots = asyncio.Semaphore(at_a_time)
        self._lines: dict[str, _Line] = {}
        self._ending: set[asyncio.Task[None]] = set()
        self._happened: Callable[[str], None] = lambda _: None
        self._is_closed = False

    def notify(self, happened: Callable[[str], None]) -> None:
        """From now on call this with the name of a job of which there is something new to show."""
        self._happened = happened

    def know(self, job: str, place: Place) -> None:
        """Ask the master that is looked for here, again and again."""
        line = self._lines.get(job)
        if line is not None and line.place.uid == place.uid:
            line.move(place)
            return
        self.forget(job)
        if not self._is_closed:
            self._lines[job] = _Line(place, self._question, lambda: self._happened(job), self._figures)

    def forget(self, job: str) -> None:
        """The job is gone."""
        if (line := self._lines.pop(job, None)) is None:
            return
        if isinstance(self._ask, Questions):
            self._ask.forget(line.place)
        self._ending.add(line.task)
        line.task.add_done_callback(self._ending.discard)
        line.close()

    def shown(self, job: str) -> Shown | None:
        """What to show of a job; None: nothing is known yet. A speed that was kept is not shown again.

        Another operator may have written another one since: each would undo what the other one did.
        """
        line = self._lines.get(job)
        if line is None or line.contact.shown is None:
            return None
        shown = line.contact.shown
        return replace(shown, speed=None) if shown.speed == line.kept else shown

    def kept(self, job: str, speed: Speed) -> None:
        """This speed is in the job's status."""
        if (line := self._lines.get(job)) is not None:
            line.kept = speed

    def stranded(self, job: str) -> int:
        """How many replicas a master has with it that lacks others, as it just said; 0: it lacks none."""
        line = self._lines.get(job)
        return 0 if line is None else line.stranded

    def news(self, job: str, told: int | None) -> Note | None:
        """What to tell, once, of what is shown; ``told``: the round that was shown before."""
        line = self._lines.get(job)
        if line is None or line.contact.shown is None:
            return None
        training = line.contact.shown.training
        note = note_of(training, told) if note_of(training, line.told) else None
        line.told = line.told if training is None else training.round
        return note

    async def _question(self, line: _Line) -> JobStatus:
        """Ask, when it is this job's turn. Raises ElasticRunError, or asyncio.TimeoutError."""
        async with self._slots:
            place, mark = line.place, line.mark
            if not place.addresses:
                raise MasterUnreachableError(_AWAY.text)
            asking = sum(bool(each.place.addresses) for each in self._lines.values())
            wait = wait_for(asking, self._at_a_time) if mark else 0.0
            # One at a time: who answered is asked again, and a silent one does not hold up the others.
            address = line.asked = place.addresses[line.turn % len(place.addresses)]
            asked = Place(place.namespace, place.name, place.uid, (address,))
            return await within(wait + ANSWER_TIME, self._ask(asked, mark, wait))

    async def close(self) -> None:
        """Ask nobody any more."""
        self._is_closed = True
        for job in list(self._lines):
            self.forget(job)
        await asyncio.gather(*self._ending, return_exceptions=True)


class _Line:
    """To one job's master."""

    def __init__(
        self,
        place: Place,
        ask: Callable[[_Line], Awaitable[JobStatus]],
        happened: Callable[[], None],
        figures: Figures,
    ) -> None:
        self.place = place
        self.mark = ""  # of the last answer; "": there was none
        self.turn = 0  # which of the addresses is asked next
        self.told: int | None = None  # the round that was told last
        self.asked = ""  # the address that was asked last
        self.stranded = 0  # as that one said
        self.kept: Speed | None = None  # the last speed that was written
        self.contact = Contact()
        self._ask = ask
        self._happened = happened
        self._figures = figures
        self._loop = asyncio.get_running_loop()
        self._moved = asyncio.Event()  # it is to be looked for elsewhere
        self._timer: asyncio.TimerHandle | None = None
        self.task = self._loop.create_task(self._run())

    def move(self, place: Place) -> None:
        """It is looked for here from now on; at once, if it was not found."""
        if place.addresses != self.place.addresses:
            self.place = place
            self._moved.set()
            self._believe(self.stranded)

    def close(self) -> None:
        """End."""
        self.task.cancel()
        if self._timer is not None:
            self._timer.cancel()

    async def _run(self) -> None:
        while True:
            self._moved.clear()
            asked = self._loop.time()
            trouble = await self._try()
            if trouble is not _AWAY:
                self._figures.questions[trouble.reason if trouble else ANSWERED] += 1
            if trouble:
                self.mark, self.turn = "", self.turn + 1
                self._believe(0)
                self._hear(failed(self.contact, trouble, self._loop.time()))
                await happens(self._moved, self._pause())
            elif (left := asked + SPACING - self._loop.time()) > 0:
                await happens(self._moved, left)

    def _pause(self) -> float | None:
        """Seconds until the next question; longer only after each address was asked once more."""
        if not (count := len(self.place.addresses)):
            return None
        turns, others = divmod(self.contact.failures, count)
        return pause_after(1 if others else turns)

    async def _try(self) -> Trouble | None:
        """Ask once; why there is no answer."""
        if not self.place.addresses:
            return _AWAY
        try:
            status = await self._ask(self)
            training = training_of(status)
        except (ElasticRunError, asyncio.TimeoutError) as error:
            return _trouble(error)
        except Exception:
            log.exception("%s: a fault of this program, while the job's master was asked", self.place.name)
            return Trouble("Fault", "the operator could not ask the job's master: see its log")
        self.mark = status.mark
        self._hear(answered(self.contact, training, self._loop.time()))
        if self._believe(min(status.stranded, MOST_REPLICAS)):
            self._happened()
        return None

    def _believe(self, stranded: int) -> bool:
        """Take this in, if who said so is still there: those that run later know nothing of it."""
        before = self.stranded
        self.stranded = stranded if self.asked in self.place.addresses else 0
        return self.stranded != before

    def _hear(self, contact: Contact) -> None:
        """Know this from now on, and show it when it is time."""
        self.contact = contact
        if self._timer is not None:
            self._timer.cancel()
            self._timer = None
        if (when := due(contact)) is None:
            return
        if when <= self._loop.time():
            self._show(self._loop.time())
        else:
            self._timer = self._loop.call_at(when, self._show, when)

    def _show(self, when: float) -> None:
        self._timer = None
        self._hear(show(self.contact, when))
        self._happened()


def _trouble(error: Exception) -> Trouble:
    match error:
        case TokenError():
            return Trouble("NoToken", str(error))
        case MasterUnreachableError() | EndpointTakenError() | TooManyError():
            return Trouble("Unreachable", str(error))
        case ProtocolError():
            return Trouble("Senseless", str(error))
        case ElasticRunError():
            return Trouble("Refused", str(error))
        case _:
            return Trouble("Unreachable", "the job's master did not answer in time")
