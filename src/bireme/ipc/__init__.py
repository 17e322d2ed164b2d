"""Other processes: memory shared with them, and the workers that run there."""
