"""The descriptor pool that our own .proto files are loaded into.

The pool is private because a user's ``model.py`` may import ``tritonclient`` in the same process, whose generated
modules register the same names in protobuf's default pool: two files there under one name are an error.
Protobuf is imported on first use.
"""

from __future__ import annotations

import base64
import zlib
from functools import cache
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from google.protobuf.descriptor import Descriptor
    from google.protobuf.descriptor_pool import DescriptorPool
    from google.protobuf.message import Message


@cache
def pool() -> DescriptorPool:
    """Return the private pool that holds ``inference.ModelConfig``; other .proto files of ours may be added to it."""
    from google.protobuf.descriptor_pool import DescriptorPool

    from bireme.config._model_config_descriptor import COMPRESSED

    private = DescriptorPool()
    private.AddSerializedFile(zlib.decompress(base64.b64decode(COMPRESSED)))
    return private


def descriptor() -> Descriptor:
    """Return the descriptor of ``inference.ModelConfig``."""
    return pool().FindMessageTypeByName("inference.ModelConfig")


@cache
def message_class() -> type[Message]:
    """Return the protobuf class of ``inference.ModelConfig``."""
    from google.protobuf.message_factory import GetMessageClass

    return GetMessageClass(descriptor())
