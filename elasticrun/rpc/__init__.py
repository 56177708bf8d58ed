"""The wire: protobuf messages, their codec, and one bidirectional gRPC stream per agent."""
