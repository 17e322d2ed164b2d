"""ModelCaches: gives every model that wants it its look-up in the server's cache. Loop thread only.

What a key holds of a model is a token, which is another one for each load of a version: what the old one has answered is
never found again. A cache that others share gets one made from what was loaded, so that servers with the same files and
config find each other's answers, and a restarted one its own.

An ensemble answers by the models that it consists of, too: its token is made of theirs, at the moment of each look-up.
"""

from __future__ import annotations

import asyncio
import itertools
import logging
import secrets
from collections.abc import Callable, Iterable
from concurrent.futures import ThreadPoolExecutor
from functools import partial
from hashlib import sha256
from typing import TYPE_CHECKING, Final
from weakref import WeakKeyDictionary

from bireme.config import to_json
from bireme.engine.dependencies import Dependency
from bireme.engine.response_cache.registry import open_cache
from bireme.repository import version_of_path

if TYPE_CHECKING:
    from bireme.engine.answers import Answers
    from bireme.engine.load_plan import LoadPlan
    from bireme.engine.model import Model
    from bireme.engine.options import ServerOptions
    from bireme.engine.response_cache.interface import ResponseCache
    from bireme.engine.response_cache.lookup import CacheLookup
    from bireme.telemetry import ServerMetrics
    from bireme.types import InferenceRequest

log = logging.getLogger("bireme.engine")

_NUM_THREADS: Final = 8
"""Most look-ups on threads at one time. A thread is made when there is work for it."""
_NUM_PUT_THREADS: Final = 2

Find = Callable[[str, int], "Model | None"]


def open_caches(options: ServerOptions, metrics: ServerMetrics) -> ModelCaches | None:
    """Open the cache that ``options`` name, and let ``metrics`` show it; None: they name none.

    Raises:
        InvalidArgument: they name several, or none that is there; or a setting is wrong.
    """
    cache = open_cache(options.cache_config)
    if cache is None:
        return None
    metrics.show_cache(cache)
    log.info("response cache: %r", cache)
    return ModelCaches(cache, clients_have_memory=options.allow_client_shm)


class ModelCaches:
    """The cache of one server, and the tokens of its models."""

    def __init__(self, cache: ResponseCache, *, clients_have_memory: bool = False) -> None:
        """Take over ``cache``: `close` closes it. ``clients_have_memory``: requests may have inputs in it."""
        self.cache = cache
        self._executor = ThreadPoolExecutor(_NUM_THREADS, thread_name_prefix="bireme-cache")
        # Apart, so that nobody's look-up waits for what others have to keep.
        self._put_executor = ThreadPoolExecutor(_NUM_PUT_THREADS, thread_name_prefix="bireme-cache-put")
        self._clients_have_memory = clients_have_memory
        self._loads = itertools.count(1)
        self._tokens: WeakKeyDictionary[Model, bytes] = WeakKeyDictionary()
        self._needs: WeakKeyDictionary[Model, tuple[Dependency, ...]] = WeakKeyDictionary()

    def attach(self, model: Model, plan: LoadPlan, find: Find) -> None:
        """Let ``model``, which is new, use the cache if its config says so. ``find`` returns the version that serves."""
        self._tokens[model] = own = self._make_token(model, plan)
        if needs := plan.dependencies:
            self._needs[model] = needs
        if uses_cache(model):
            token = partial(self._token_now, model, find) if needs else lambda: own
            model.use_cache(self, token)

    def make_lookup(
        self,
        answers: Answers,
        enqueue: Callable[[InferenceRequest], None],
        outputs: Iterable[str],
        token: Callable[[], bytes | None],
    ) -> CacheLookup:
        """Return the look-up of one model; see there."""
        # Imported here: what makes keys takes time to import, and most servers have no cache.
        from bireme.engine.response_cache.lookup import CacheLookup

        return CacheLookup(
            self.cache,
            answers,
            enqueue,
            outputs=outputs,
            token=token,
            loop=asyncio.get_running_loop(),
            executor=self._executor,
            put_executor=self._put_executor,
            clients_have_memory=self._clients_have_memory,
        )

    def _make_token(self, model: Model, plan: LoadPlan) -> bytes:
        name = f"{plan.name}/{model.version}/"
        if not self.cache.is_shared:
            return f"{name}{next(self._loads)}".encode()
        fingerprint = plan.source.fingerprint
        if fingerprint is None:  # its files came with the call that loaded it
            return f"{name}{secrets.token_hex(16)}".encode()
        files = {
            path: mark
            for path, mark in fingerprint.files.items()
            if version_of_path(path) in (None, model.version)
        }
        config = {**to_json(model.config), "version_policy": None}
        text = repr((config, sorted(files.items())))
        return f"{name}{sha256(text.encode()).hexdigest()}".encode()

    def _token_now(self, model: Model, find: Find) -> bytes | None:
        """Return what stands for an ensemble and all that it consists of now; None: something of it does not serve."""
        tokens = [self._tokens[model]]
        for need in self._needs.get(model, ()):
            member = find(need.name, need.version)
            token = None if member is None else self._token_now(member, find)
            if token is None:
                return None
            tokens.append(token)
        return b"\0".join(tokens) if len(tokens) > 1 else tokens[0]

    def close(self) -> None:
        """Let go of everything; the models are closed. Blocking."""
        for executor in (self._executor, self._put_executor):
            executor.shutdown(wait=False, cancel_futures=True)
        try:
            self.cache.close()
        except Exception:
            log.exception("response cache: %r cannot be closed", self.cache)


def attach_cache(caches: ModelCaches | None, model: Model, plan: LoadPlan, find: Find) -> None:
    """As `ModelCaches.attach`; without caches, warn if ``model`` asks for one."""
    if caches is not None:
        caches.attach(model, plan, find)
    elif uses_cache(model):
        log.warning(
            "model '%s' has 'response_cache' enabled, but this server has no cache (--cache-config): every request runs "
            "the model",
            model.name,
        )


def uses_cache(model: Model) -> bool:
    """Whether the config of ``model`` asks for the response cache."""
    wish = model.config.response_cache
    return wish is not None and wish.enable
