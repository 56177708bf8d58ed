"""The values of core/protocol/messages.py and core/protocol/orders.py as bytes, and back.

This package is the only one that knows the generated code. ``codec.control`` is imported by itself, since
agents neither give nor take orders. The two promises:

* Decoding gives a value in which every field is within its range, or raises ProtocolError with one
  sentence; it raises nothing else, whatever the bytes.
* Encoding never fails because of what a *user's program* wrote. Texts of failures and reasons are clipped
  (to MAX_FAILURE_TEXT bytes of UTF-8), characters that UTF-8 cannot express become U+FFFD and a number
  is clipped to its range or left out, so that the largest message stays below MAX_MESSAGE_BYTES. Names are
  not clipped, since two names must not become equal; the receiver refuses one that is too long.
"""

from elasticrun.core.protocol.bounds import MAX_MESSAGE_BYTES
from elasticrun.rpc.codec.messages import (
    GOODBYE,
    JOINT,
    decode_agent,
    decode_master,
    encode_agent,
    encode_master,
    join_master,
    version_in,
)
from elasticrun.rpc.codec.proofs import HelloProof, split_proof, with_proof

#: The key of the trailing metadata that carries the Rejected of a stream that was refused at admission.
REJECTED_KEY = "elasticrun-rejected-bin"

__all__ = [
    "GOODBYE",
    "JOINT",
    "MAX_MESSAGE_BYTES",
    "REJECTED_KEY",
    "HelloProof",
    "decode_agent",
    "decode_master",
    "encode_agent",
    "encode_master",
    "join_master",
    "split_proof",
    "version_in",
    "with_proof",
]
