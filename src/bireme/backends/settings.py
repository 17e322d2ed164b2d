"""What every backend reads from a config's parameters and from ``--backend-config``. Pure."""

from __future__ import annotations

from collections.abc import Collection, Iterable, Mapping
from types import MappingProxyType
from typing import Final

from bireme.config import ModelConfig
from bireme.config.faults import near_name
from bireme.types import InvalidArgument

DEFAULT_MAX_BATCH_SIZE: Final = 4
"""Of a model file that batches, when neither its config nor ``--backend-config=default-max-batch-size=N`` gives one."""

MAX_THREADS: Final = 1024
"""The most that a parameter may ask for."""

BOOLEANS: Final = MappingProxyType(
    {
        **dict.fromkeys(("true", "on", "yes", "1"), True),
        **dict.fromkeys(("false", "off", "no", "0"), False),
    }
)
"""What a text means, in small letters. ``yes`` and ``no`` are OpenVINO's words; Triton takes the others everywhere.

Source: Triton ``backend_common.cc`` (ParseBoolValue).
"""


def default_num_threads(num_cpus: int, num_instances: int) -> int:
    """Return the size of the thread pool of a session that ``num_instances`` threads run at once on ``num_cpus``.

    The instances share one session, and so one pool; each run works on its caller's thread too. The size counts the
    caller, so ``num_instances`` callers and the pool's other threads together are as many threads as there are CPUs.
    """
    return max(1, num_cpus - num_instances + 1)


def num_threads_per_instance(config: ModelConfig, num_cpus: int) -> int:
    """Return how many threads each of the model's instances may use where they share no pool.

    OpenMP keeps a team of threads for every thread that calls it: all teams together are to be no more than the CPUs.
    """
    return max(1, num_cpus // max(1, num_instances(config)))


def num_instances(config: ModelConfig) -> int:
    """Return how many instances of the model may execute at one time."""
    return sum(
        max(group.count, 1) * max(len(group.gpus), 1) for group in config.instance_group if not group.passive
    )


def describe_unknown(
    config: ModelConfig, known: Collection[str], prefixes: tuple[str, ...] = ()
) -> list[str]:
    """Return a line for each parameter that is nearly one of ``known`` or begins like them, and is none.

    Triton ignores such parameters in silence.
    """
    lines: list[str] = []
    for key in config.parameters:
        if key in known:
            continue
        near = near_name(key, known)
        if near or key.startswith(prefixes):
            line = f"model '{config.name}': parameter '{key}' is unknown and ignored"
            lines.append(f"{line}; did you mean '{near}'?" if near else line)
    return lines


def read_default_max_batch_size(backend: str, settings: Mapping[str, str]) -> int:
    """Return the batch size of a model file that batches and whose config gives none, from ``--backend-config``.

    Raises:
        InvalidArgument: it is no integer.
    """
    reader = SettingsReader.of_backend(backend, settings)
    return reader.integer("default-max-batch-size", DEFAULT_MAX_BATCH_SIZE)


class SettingsReader:
    """Reads typed values from texts and names them in its errors."""

    def __init__(self, label: str, values: Mapping[str, str]) -> None:
        """``label`` stands in front of a key in messages, such as ``model 'm': parameter``."""
        self._label = label
        self._values = values

    @classmethod
    def of_model(cls, config: ModelConfig) -> SettingsReader:
        """Read the parameters of a model's config."""
        values = {key: parameter.string_value for key, parameter in config.parameters.items()}
        return cls(f"model '{config.name}': parameter", values)

    @classmethod
    def of_backend(cls, backend: str, settings: Mapping[str, str]) -> SettingsReader:
        """Read what ``--backend-config`` says to a backend."""
        return cls(f"backend '{backend}': setting", settings)

    def text(self, key: str, default: str = "") -> str:
        """Return a text as it is."""
        return self._values.get(key, default)

    def choice(self, key: str, choices: Iterable[str], default: str) -> str:
        """Return one of ``choices``.

        Raises:
            InvalidArgument: it is another text, as in every method here.
        """
        text = self._values.get(key, default)
        if text not in (expected := tuple(choices)):
            raise self.fault(key, " or ".join(f"'{each}'" for each in expected))
        return text

    def integer(self, key: str, default: int) -> int:
        """Return an integer."""
        text = self._values.get(key)
        if text is None:
            return default
        try:
            return int(text)
        except ValueError:
            raise self.fault(key, "an integer") from None

    def number(self, key: str) -> float | None:
        """Return a number; None when absent."""
        text = self._values.get(key)
        if text is None:
            return None
        try:
            return float(text)
        except ValueError:
            raise self.fault(key, "a number") from None

    def count(self, key: str) -> int:
        """Return a number of threads; 0 when absent. So many that no machine runs them cost all models their threads."""
        value = self.integer(key, 0)
        if not 0 <= value <= MAX_THREADS:
            raise self.fault(key, f"a number of threads up to {MAX_THREADS}, or 0 for the default")
        return value

    def boolean(self, key: str) -> bool | None:
        """Return whether it is set and true; None when absent."""
        text = self._values.get(key)
        if text is None:
            return None
        value = BOOLEANS.get(text.strip().lower())
        if value is None:
            raise self.fault(key, "true, on, yes or 1; or false, off, no or 0")
        return value

    def fault(self, key: str, expected: str) -> InvalidArgument:
        """Return the error of a value that is there and wrong."""
        return InvalidArgument(f"{self._label} '{key}' is '{self._values[key]}'; expected {expected}")
