"""The response cache: answers that a model need not compute again."""

from bireme.engine.response_cache.interface import CachedResponse, CachedTensor, CacheFactory, ResponseCache
from bireme.engine.response_cache.local import LocalCache

__all__ = ["CacheFactory", "CachedResponse", "CachedTensor", "LocalCache", "ResponseCache"]
