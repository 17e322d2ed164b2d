"""Routes of the shared memory extensions: system and CUDA regions, looked up, registered and unregistered.

Whether clients may register at all, and what, is the registry's to say.

Source: Triton ``http_server.cc`` (``HandleSystemSharedMemory``, ``HandleCudaSharedMemory``).
"""

from __future__ import annotations

from bireme.frontend.http.call import Call
from bireme.wire.http import decode_cuda_registration, decode_system_registration


def system_status(call: Call) -> None:
    """``GET /v2/systemsharedmemory[/region/{N}]/status``."""
    regions = call.server.shared_memory.system_status(call.target.region)
    call.reply_json([region._asdict() for region in regions])


def system_register(call: Call) -> None:
    """``POST /v2/systemsharedmemory/region/{N}/register``."""
    regions = call.server.shared_memory
    regions.check_name(call.target.region, "system")
    regions.register_system(
        call.target.region, *decode_system_registration(call.exchange.body, call.api.limits)
    )
    call.exchange.reply(200)


def system_unregister(call: Call) -> None:
    """``POST /v2/systemsharedmemory[/region/{N}]/unregister``: an unknown region is no error."""
    call.server.shared_memory.unregister_system(call.target.region)
    call.exchange.reply(200)


def cuda_status(call: Call) -> None:
    """``GET /v2/cudasharedmemory[/region/{N}]/status``."""
    regions = call.server.shared_memory.cuda_status(call.target.region)
    call.reply_json([region._asdict() for region in regions])


def cuda_register(call: Call) -> None:
    """``POST /v2/cudasharedmemory/region/{N}/register``."""
    regions = call.server.shared_memory
    regions.check_name(call.target.region, "cuda")
    regions.register_cuda(call.target.region, *decode_cuda_registration(call.exchange.body, call.api.limits))
    call.exchange.reply(200)


def cuda_unregister(call: Call) -> None:
    """``POST /v2/cudasharedmemory[/region/{N}]/unregister``: an unknown region is no error."""
    call.server.shared_memory.unregister_cuda(call.target.region)
    call.exchange.reply(200)
