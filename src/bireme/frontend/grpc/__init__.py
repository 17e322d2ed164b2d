"""The v2 protocol over gRPC: connections, calls, and one handler per method."""
