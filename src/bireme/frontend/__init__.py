"""Front ends: sockets, protocols and their limits, over one engine."""
