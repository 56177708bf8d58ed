"""An agent that comes back proves that it is itself, and the master that it still is the job's."""

from __future__ import annotations

from dataclasses import replace

import pytest

from elasticrun.core.protocol.messages import NodeInfo, RejectCode, Rejected, Trust
from elasticrun.errors import SupersededError
from elasticrun.rpc import codec
from elasticrun.rpc.client import MasterStream, UnprovenError
from elasticrun.rpc.security.auth import SIZE
from elasticrun.rpc.security.tickets import TicketCheck, TicketIssuer, Tickets
from tests.rpc.harness import DEADLINE, KEY, LOCKED, NONCE, OPEN, Recorder, hello, run, serving, welcome

INFO = hello().info


def greeting(tickets: Tickets, check: TicketCheck) -> bytes:
    """The bytes of the Hello that an agent with these tickets says."""
    data = codec.encode_agent(replace(hello(), nonce=NONCE))
    proof = tickets.proof([check.metadata], NONCE)
    return (
        data if proof is None else codec.with_proof(data, codec.HelloProof.RETURNING, proof.returning(data))
    )


def holding(issuer: TicketIssuer, info: NodeInfo = INFO) -> Tickets:
    tickets = Tickets()
    tickets.keep(issuer.number, issuer.of(info))
    return tickets


def returns(tickets: Tickets, check: TicketCheck, heard_as: NodeInfo = INFO) -> bool:
    said = replace(hello(), nonce=NONCE, info=heard_as)
    return check.is_returning(said, greeting(tickets, check))


def test_a_ticket_is_good_for_its_incarnation_and_its_journal_only() -> None:
    issuer, other = TicketIssuer(KEY), TicketIssuer(b"o" * SIZE)
    assert returns(holding(issuer), TicketCheck(issuer))
    assert not returns(Tickets(), TicketCheck(issuer))
    assert not returns(holding(other), TicketCheck(issuer))
    assert not returns(holding(issuer), TicketCheck(issuer), replace(INFO, incarnation="i1"))
    assert not returns(holding(issuer), TicketCheck(issuer), replace(INFO, node="n1"))


def test_a_forged_number_does_not_make_a_ticket_fit() -> None:
    issuer, thief = TicketIssuer(KEY), TicketIssuer(b"o" * SIZE)
    thief.number = issuer.number
    check = TicketCheck(thief)
    data = greeting(holding(issuer), check)
    assert not check.is_returning(replace(hello(), nonce=NONCE), data)
    assert check.sign(Rejected(RejectCode.SUPERSEDED, "go")).proof == b""


def test_what_was_proven_on_one_stream_is_worth_nothing_on_another() -> None:
    issuer = TicketIssuer(KEY)
    first, second = TicketCheck(issuer), TicketCheck(issuer)
    said, data = replace(hello(), nonce=NONCE), greeting(holding(issuer), first)
    assert first.is_returning(said, data)
    assert not second.is_returning(said, data)


def test_a_hello_that_was_changed_is_not_proven() -> None:
    issuer = TicketIssuer(KEY)
    check = TicketCheck(issuer)
    data = greeting(holding(issuer), check)
    assert not check.is_returning(replace(hello(), nonce=NONCE), b"\x0a\x02\x28\x07" + data)
    assert not check.is_returning(replace(hello(), nonce=NONCE), data + b"\x0a\x02\x28\x07")


def test_a_masters_proofs_are_each_for_one_thing() -> None:
    issuer = TicketIssuer(KEY)
    check = TicketCheck(issuer)
    assert returns(holding(issuer), check)
    refusals = [
        Rejected(RejectCode.SUPERSEDED, "go"),
        Rejected(RejectCode.EXCLUDED, "go"),
        Rejected(RejectCode.EXCLUDED, "go!"),
    ]
    proofs = {check.sign(refusal).proof for refusal in refusals}
    proofs.add(check.complete(welcome(hello()), INFO).returning)
    assert len(proofs) == 4 and {len(proof) for proof in proofs} == {SIZE}


def test_tickets_are_bounded_and_the_first_of_a_key_stays() -> None:
    tickets = Tickets()
    assert not tickets
    tickets.keep(b"short", bytes(SIZE))
    tickets.keep(bytes(16), b"short")
    assert not tickets
    issuer = TicketIssuer(KEY)
    tickets.keep(issuer.number, issuer.of(INFO))
    tickets.keep(issuer.number, bytes(SIZE))
    assert returns(tickets, TicketCheck(issuer))
    for number in range(100):
        tickets.keep(number.to_bytes(16, "big"), bytes(SIZE))
    assert len(tickets._held) == 16
    assert not returns(tickets, TicketCheck(issuer))


@pytest.mark.parametrize("metadata", [[], [("elasticrun-ticket-bin", b"short")], [("other-bin", bytes(48))]])
def test_metadata_without_a_number_and_a_challenge_means_nothing(metadata: list[tuple[str, bytes]]) -> None:
    assert holding(TicketIssuer(KEY)).proof(metadata, NONCE) is None


def test_the_ticket_is_in_no_text() -> None:
    issuer = TicketIssuer(KEY)
    check = TicketCheck(issuer)
    proof = holding(issuer).proof([check.metadata], NONCE)
    assert proof is not None and str(issuer.of(INFO)) not in repr(proof)


@pytest.mark.parametrize("security", [OPEN, LOCKED], ids=["none", "token"])
def test_what_an_agent_has_proven_is_told_to_the_job(security: object) -> None:
    mine = LOCKED if security is LOCKED else OPEN
    first = Trust.MEMBER if mine is LOCKED else Trust.STRANGER

    async def main() -> None:
        tickets = Tickets()
        async with serving(security=mine) as (recorder, endpoint):
            for _ in range(2):
                stream = await MasterStream.open(endpoint, hello(), DEADLINE, mine, tickets, needs_proof=True)
                await stream.close()
            await (await MasterStream.open(endpoint, hello(), DEADLINE, mine)).close()
            assert [said.trust for said in recorder.hellos] == [first, Trust.RETURNING, first]
        async with serving(security=mine) as (recorder, endpoint):  # restarted from its journal
            await (await MasterStream.open(endpoint, hello(), DEADLINE, mine, tickets, True)).close()
            assert [said.trust for said in recorder.hellos] == [Trust.RETURNING]

    run(main())


def test_a_master_that_lost_its_journal_is_followed_unless_there_must_be_a_proof() -> None:
    async def main() -> None:
        tickets = Tickets()
        async with serving() as (_, endpoint):
            await (await MasterStream.open(endpoint, hello(), DEADLINE, tickets=tickets)).close()
        async with serving(key=b"o" * SIZE) as (recorder, endpoint):
            with pytest.raises(UnprovenError, match="cannot prove that it is the one"):
                await MasterStream.open(endpoint, hello(), DEADLINE, tickets=tickets, needs_proof=True)
            await (await MasterStream.open(endpoint, hello(), DEADLINE, tickets=tickets)).close()
            await (await MasterStream.open(endpoint, hello(), DEADLINE, OPEN, tickets, True)).close()
            assert [said.trust for said in recorder.hellos][1:] == [Trust.STRANGER, Trust.RETURNING]

    run(main())


def test_who_was_followed_without_work_is_not_the_master_of_workers() -> None:
    """A master that welcomed the agent while nothing ran has a ticket of it, too, and may be anybody."""

    async def main() -> None:
        tickets = Tickets()
        async with serving(key=b"o" * SIZE) as (_, other):
            await (await MasterStream.open(other, hello(), DEADLINE, tickets=tickets)).close()
            async with serving() as (_, endpoint):
                await (await MasterStream.open(endpoint, hello(), DEADLINE, tickets=tickets)).close()
                tickets.rely()  # it has the agent start workers
                await (await MasterStream.open(other, hello(), DEADLINE, tickets=tickets)).close()
                with pytest.raises(UnprovenError, match="cannot prove that it is the one"):
                    await MasterStream.open(other, hello(), DEADLINE, OPEN, tickets, needs_proof=True)
                await (await MasterStream.open(endpoint, hello(), DEADLINE, OPEN, tickets, True)).close()

    run(main())


def test_with_a_token_a_master_without_its_journal_needs_no_ticket() -> None:
    async def main() -> None:
        tickets = Tickets()
        async with serving(security=LOCKED) as (_, endpoint):
            await (await MasterStream.open(endpoint, hello(), DEADLINE, LOCKED, tickets)).close()
        async with serving(security=LOCKED, key=b"o" * SIZE) as (_, endpoint):
            await (await MasterStream.open(endpoint, hello(), DEADLINE, LOCKED, tickets, True)).close()

    run(main())


class Refusing(Recorder):
    """Refuses as the job does, after the server has admitted the stream."""

    def attached(self, session: object, hello: object) -> None:
        from elasticrun.rpc.session import AgentStream

        assert isinstance(session, AgentStream)
        session.send(Rejected(RejectCode.SUPERSEDED, "another one came" + "x" * 20_000))
        session.close()


@pytest.mark.parametrize("security", [OPEN, LOCKED], ids=["none", "token"])
def test_a_refusal_of_our_own_master_is_proven_and_believed(security: object) -> None:
    from elasticrun.config import Endpoint
    from elasticrun.rpc.server import MasterServer
    from tests.rpc.harness import admit

    mine = LOCKED if security is LOCKED else OPEN

    async def main() -> None:
        tickets = Tickets()
        async with serving(security=mine) as (_, endpoint):
            await (await MasterStream.open(endpoint, hello(), DEADLINE, mine, tickets)).close()
        server = MasterServer(Refusing(), admit, security=mine, key=KEY)
        endpoint = Endpoint("127.0.0.1", await server.start("127.0.0.1", 0))
        with pytest.raises(SupersededError, match="another one came"):
            await MasterStream.open(endpoint, hello(), DEADLINE, mine, tickets)
        await server.stop(1.0)

    run(main())
