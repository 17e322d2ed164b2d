"""The jax backend: functions that ``jax.export`` has serialised, compiled by XLA for this machine's CPUs."""
