"""Methods of the shared memory extensions: system and CUDA regions that clients register.

Names, keys, sizes and whether clients may register at all are checked by the registry.

Source: Triton ``grpc_server.cc`` (``RegisterSystemSharedMemoryStatus`` … ``RegisterCudaSharedMemoryUnregister``).
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from bireme.wire.grpc import message_class

if TYPE_CHECKING:
    from bireme.frontend.grpc.api import GrpcApi


def system_status(api: GrpcApi, request: Any) -> Any:
    """``SystemSharedMemoryStatus``: of one region, or of all."""
    make = message_class("inference.SystemSharedMemoryStatusResponse.RegionStatus")
    regions = {
        region.name: make(name=region.name, key=region.key, offset=region.offset, byte_size=region.byte_size)
        for region in api.server.shared_memory.system_status(request.name)
    }
    return message_class("inference.SystemSharedMemoryStatusResponse")(regions=regions)


def system_register(api: GrpcApi, request: Any) -> Any:
    """``SystemSharedMemoryRegister``."""
    api.server.shared_memory.register_system(request.name, request.key, request.offset, request.byte_size)
    return message_class("inference.SystemSharedMemoryRegisterResponse")()


def system_unregister(api: GrpcApi, request: Any) -> Any:
    """``SystemSharedMemoryUnregister``: one region, or all; an unknown one is no error."""
    api.server.shared_memory.unregister_system(request.name)
    return message_class("inference.SystemSharedMemoryUnregisterResponse")()


def cuda_status(api: GrpcApi, request: Any) -> Any:
    """``CudaSharedMemoryStatus``: of one region, or of all."""
    make = message_class("inference.CudaSharedMemoryStatusResponse.RegionStatus")
    regions = {
        region.name: make(name=region.name, device_id=region.device_id, byte_size=region.byte_size)
        for region in api.server.shared_memory.cuda_status(request.name)
    }
    return message_class("inference.CudaSharedMemoryStatusResponse")(regions=regions)


def cuda_register(api: GrpcApi, request: Any) -> Any:
    """``CudaSharedMemoryRegister``."""
    api.server.shared_memory.register_cuda(
        request.name, request.raw_handle, request.device_id, request.byte_size
    )
    return message_class("inference.CudaSharedMemoryRegisterResponse")()


def cuda_unregister(api: GrpcApi, request: Any) -> Any:
    """``CudaSharedMemoryUnregister``: one region, or all; an unknown one is no error."""
    api.server.shared_memory.unregister_cuda(request.name)
    return message_class("inference.CudaSharedMemoryUnregisterResponse")()
