"""Models written in Python, as for Triton's Python backend: each instance in a process of its own, or in a thread."""
