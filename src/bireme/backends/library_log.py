"""What libraries warn of in Python, or write to loggers of their own, goes into our log.

Python's warnings are a matter of the whole process: who catches them replaces its filters and puts them back afterwards. So
one thread at a time does, whichever library it runs; warnings of other threads go the same way meanwhile.
"""

from __future__ import annotations

import logging
import threading
import warnings
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Final

_filters: Final = threading.RLock()
_ignored: Final[set[tuple[str, type[Warning]]]] = set()


@contextmanager
def warnings_taken(write: Callable[[str], None]) -> Iterator[None]:
    """Hand the Python warnings of the block to ``write`` when it is through: each text once, in one line, its class first.

    Where the block raises, they are dropped.
    """
    with _filters, warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        for message, category in _ignored:
            warnings.filterwarnings("ignore", message, category)
        yield
    texts = (f"{each.category.__name__}: {each.message}" for each in caught)
    for text in dict.fromkeys(" ".join(text.split()) for text in texts):
        write(text)


def ignore_warning(message: str, category: type[Warning]) -> None:
    """Have no thread see such warnings from now on; ``message`` is how they begin."""
    with _filters:
        _ignored.add((message, category))
        warnings.filterwarnings("ignore", message, category)


def take_records(name: str, log: logging.Logger, error_level: int = logging.ERROR) -> None:
    """Have the logger ``name`` and those below it write to ``log`` alone: errors at ``error_level``, the rest as debug.

    What a library warns about concerns the programs that use it, and alarms no operator.
    """
    logger = logging.getLogger(name)
    logger.handlers = [_Forward(log, error_level)]
    logger.propagate = False


class _Forward(logging.Handler):
    def __init__(self, log: logging.Logger, error_level: int) -> None:
        super().__init__()
        self._log = log
        self._error_level = error_level

    def emit(self, record: logging.LogRecord) -> None:
        level = self._error_level if record.levelno >= logging.ERROR else logging.DEBUG
        self._log.log(level, "%s", record.getMessage())
