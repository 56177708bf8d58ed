"""The codec of messages between operators and the master; see the package."""

from __future__ import annotations

from elasticrun.core.protocol.orders import ControlHello, ControlReply, ControlRequest, Watched
from elasticrun.core.protocol.questions import Found
from elasticrun.core.protocol.status import JobStatus
from elasticrun.rpc import elastic_pb2 as pb
from elasticrun.rpc.codec.mapper import Codec

_CONTROL: Codec[ControlHello | ControlRequest, pb.ControlMessage] = Codec(
    ControlHello | ControlRequest, pb.ControlMessage
)
_REPLY: Codec[ControlReply, pb.ControlReply] = Codec(ControlReply, pb.ControlReply)

_STATUS: Codec[JobStatus, pb.JobStatus] = Codec(JobStatus, pb.JobStatus)

_WATCHED: Codec[Watched, pb.Watched] = Codec(Watched, pb.Watched)

_FOUND: Codec[Found, pb.Found] = Codec(Found, pb.Found)

encode_control = _CONTROL.encode
decode_control = _CONTROL.decode
encode_reply = _REPLY.encode
decode_reply = _REPLY.decode
encode_status = _STATUS.encode
encode_watched = _WATCHED.encode
encode_found = _FOUND.encode
