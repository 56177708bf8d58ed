"""What operators and the master say to each other, to bytes and back; see the package."""

from __future__ import annotations

from elasticrun.core.orders import (
    ControlHello,
    ControlReply,
    ControlRequest,
    DrainNode,
    SaveAllStacks,
    ScaleJob,
    ScaleRole,
    ShowStatus,
)
from elasticrun.core.tasks import MAX_CLUSTER
from elasticrun.errors import ProtocolError
from elasticrun.rpc import checks
from elasticrun.rpc import elastic_pb2 as pb
from elasticrun.rpc.codec.decode import UNKNOWN, parse, token
from elasticrun.rpc.codec.tasks import role_in, role_to_pb
from elasticrun.rpc.text import clean, head


def encode_control(message: ControlHello | ControlRequest) -> bytes:
    """The bytes of what an operator says."""
    return _control_to_pb(message).SerializeToString()


def encode_reply(reply: ControlReply) -> bytes:
    """The bytes of the master's answer to an operator."""
    answer = pb.ControlReply(ok=reply.ok, text=head(reply.text, checks.MAX_REPLY), proof=reply.proof)
    return answer.SerializeToString()


def _control_to_pb(message: ControlHello | ControlRequest) -> pb.ControlMessage:
    match message:
        case ControlHello(job_id, version, nonce, proof):
            hello = pb.ControlHello(job_id=clean(job_id), version=clean(version), nonce=nonce, proof=proof)
            return pb.ControlMessage(hello=hello)
        case ShowStatus():
            return pb.ControlMessage(show_status=pb.ShowStatus())
        case DrainNode(node, reason):
            return pb.ControlMessage(drain_node=pb.DrainNode(node=clean(node), reason=head(reason)))
        case ScaleJob(low, high):
            return pb.ControlMessage(scale_job=pb.ScaleJob(min_nodes=low, max_nodes=high))
        case ScaleRole(role, count):
            return pb.ControlMessage(scale_role=pb.ScaleRole(role=role_to_pb(role), count=count))
        case SaveAllStacks():
            return pb.ControlMessage(save_all_stacks=pb.SaveAllStacks())


def decode_control(data: bytes) -> ControlHello | ControlRequest:
    """What an operator said in ``data``; raises ProtocolError."""
    message = pb.ControlMessage()
    parse(message, data)
    match message.WhichOneof("kind"):
        case "hello":
            hello = message.hello
            job_id = checks.text("job_id", hello.job_id, checks.MAX_NAME)
            version = checks.name("version", hello.version)
            return ControlHello(job_id, version, token("nonce", hello.nonce), token("proof", hello.proof))
        case "show_status":
            return ShowStatus()
        case "drain_node":
            drain = message.drain_node
            return DrainNode(checks.name("node", drain.node), checks.text("reason", drain.reason))
        case "scale_job":
            low = checks.integer("min_nodes", message.scale_job.min_nodes, 1)
            return ScaleJob(low, checks.integer("max_nodes", message.scale_job.max_nodes, low))
        case "scale_role":
            role = role_in("role", message.scale_role.role)
            return ScaleRole(role, checks.integer("count", message.scale_role.count, 1, MAX_CLUSTER))
        case "save_all_stacks":
            return SaveAllStacks()
        case _:
            raise ProtocolError(UNKNOWN)


def decode_reply(data: bytes) -> ControlReply:
    """The master's answer to an operator in ``data``; raises ProtocolError."""
    reply = pb.ControlReply()
    parse(reply, data)
    text = checks.text("text", reply.text, checks.MAX_REPLY)
    return ControlReply(reply.ok, text, token("proof", reply.proof))
