"""How a returning agent proves its identity, and a master proves that it is still the same job's.

With Welcome an agent gets a *ticket*: a secret of its incarnation. The master derives it from the key in its
journal, so it stores no tickets, and a restarted master knows them as well. Neither end shows the ticket
again. The agent proves with its next Hello that it has one, and the master, to such an agent only, with
Welcome or Rejected::

    server -> client   number of the key, challenge      in the initial metadata
    client -> server   HMAC(ticket, "returning" | challenge | Hello)      behind the Hello that it covers
    server -> client   HMAC(ticket, "welcome" | challenge | nonce)        in Welcome
                       HMAC(ticket, "rejected" | challenge | nonce | code | text)   in Rejected

This works without a token: nobody can take the place of a node in a job, and a program that gets the port of
a lost master cannot send running workers away. A master that has lost its journal, or never had it, has
another key. It knows none of its agents, and proves nothing to them: ``client.py`` says which agents may
follow it.

All masters of a job have one key if they can: each listed host's agent is given it (``master/listed.py``), in
case its host takes over. Every master that an agent without work has followed gave it a ticket as well, and
could be anybody. So an agent whose workers run relies on one key only: that of the master that told it to
start them.

A ticket travels once, in the clear unless there is TLS. An eavesdropper can steal it from that Welcome; in a
job with a token he still cannot use it, as each Hello and each frame has to be proven with that, too.
"""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Iterable
from dataclasses import field, replace

from elasticrun.core.protocol.messages import Hello, NodeInfo, RejectCode, Rejected, Welcome
from elasticrun.dataclass import dataclass
from elasticrun.rpc.codec import HelloProof, split_proof
from elasticrun.rpc.security.auth import SIZE, KeyedHash, fresh, proof_of, proven, same
from elasticrun.rpc.text import clean, head

#: The key of the metadata that carries the number of the master's key and its challenge.
TICKET_KEY = "elasticrun-ticket-bin"
_NUMBER_SIZE = 16
_MOST_TICKETS = 16  # that one agent keeps; it gets one for each master whose journal knows nothing of it


@dataclass(frozen=True, slots=True)
class TicketProof:
    """What is proven with one ticket on one stream."""

    ticket: bytes = field(repr=False)
    challenge: bytes
    nonce: bytes

    def returning(self, hello: bytes) -> bytes:
        """The agent's proof, appended to the bytes of its Hello."""
        return proof_of(self.ticket, b"returning", self.challenge, hello)

    def welcome(self) -> bytes:
        """The master's proof, in Welcome."""
        return proof_of(self.ticket, b"welcome", self.challenge, self.nonce)

    def rejected(self, rejected: Rejected) -> bytes:
        """The master's proof, in Rejected."""
        code, text = rejected.code.value.encode(), head(rejected.message).encode()  # as it arrives
        return proof_of(self.ticket, b"rejected", self.challenge, self.nonce, code, text)


class TicketIssuer:
    """The master's side: makes tickets out of the journal's key."""

    def __init__(self, key: bytes) -> None:
        self._keyed = KeyedHash(key)
        self.number = self._keyed.of(b"number")[:_NUMBER_SIZE]

    def of(self, info: NodeInfo) -> bytes:
        """The ticket of an incarnation."""
        return self._keyed.of(proven(b"ticket", clean(info.node).encode(), clean(info.incarnation).encode()))


class Tickets:
    """The agent's side: the tickets of one incarnation, by the number of the key that made them."""

    def __init__(self) -> None:
        self._held: OrderedDict[bytes, bytes] = OrderedDict()
        self._newest = b""  # the number of the key of the master that welcomed us last
        self._relied_on = b""  # of the one whose round we run; b"": of none yet

    def __bool__(self) -> bool:
        """Whether a master has welcomed this incarnation before."""
        return bool(self._held)

    def keep(self, number: bytes, ticket: bytes) -> None:
        """Keep a master's ticket. One that we have of its key stays, as only the first is surely genuine."""
        if len(number) == _NUMBER_SIZE and len(ticket) == SIZE:
            self._held.setdefault(number, ticket)
            self._newest = number
            if len(self._held) > _MOST_TICKETS:
                self._held.popitem(last=False)

    def rely(self) -> None:
        """Rely on the master that welcomed us last, as it has us start workers."""
        self._relied_on = self._newest

    def proof(
        self, metadata: Iterable[tuple[str, str | bytes]], nonce: bytes, is_for_workers: bool = False
    ) -> TicketProof | None:
        """Our proof for the server with this initial metadata; None if we have no ticket of its key.

        With ``is_for_workers`` only for one that may be the master of the workers that run here.
        """
        for key, value in metadata:
            if key == TICKET_KEY and isinstance(value, bytes) and len(value) == _NUMBER_SIZE + SIZE:
                number = value[:_NUMBER_SIZE]
                if is_for_workers and self._relied_on not in (b"", number):
                    return None
                ticket = self._held.get(number)
                return TicketProof(ticket, value[_NUMBER_SIZE:], nonce) if ticket is not None else None
        return None


class TicketCheck:
    """The master's side of one stream."""

    def __init__(self, issuer: TicketIssuer) -> None:
        self._issuer = issuer
        self._challenge = fresh()
        self._proof: TicketProof | None = None  # of the agent, once it has given its own

    @property
    def metadata(self) -> tuple[str, bytes]:
        """The number of our key and the challenge, for the agent."""
        return TICKET_KEY, self._issuer.number + self._challenge

    def is_returning(self, hello: Hello, data: bytes) -> bool:
        """Whether the sender of ``hello``, which came as ``data``, has its incarnation's ticket."""
        covered, proof = split_proof(data, HelloProof.RETURNING)
        if not proof:  # a newcomer, as thousands may be at once
            return False
        expected = TicketProof(self._issuer.of(hello.info), self._challenge, hello.nonce)
        if not same(proof, expected.returning(covered)):
            return False
        self._proof = expected
        return True

    def complete(self, welcome: Welcome, info: NodeInfo) -> Welcome:
        """The Welcome with this incarnation's ticket, and our proof if the agent gave its own."""
        proof = b"" if self._proof is None else self._proof.welcome()
        ticket, number = self._issuer.of(info), self._issuer.number
        return Welcome(welcome.epoch, welcome.heartbeat_interval, ticket, proof, number)

    def sign(self, rejected: Rejected) -> Rejected:
        """The Rejected with our proof, likewise."""
        return rejected if self._proof is None else replace(rejected, proof=self._proof.rejected(rejected))


#: Refusals that a master sends before an agent has proven anything, so without a proof.
SAID_TO_STRANGERS = frozenset(
    {
        RejectCode.WRONG_VERSION,
        RejectCode.UNAUTHENTICATED,
        RejectCode.MALFORMED,
        RejectCode.OVERSIZED,
        RejectCode.OUT_OF_ORDER,
        RejectCode.TOO_MANY,
    }
)
