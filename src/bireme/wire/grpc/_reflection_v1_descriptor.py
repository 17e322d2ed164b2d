"""Serialised descriptor of ``grpc/reflection/v1/reflection.proto``. Made by ``scripts/generate_protos``; do not edit."""

from typing import Final

COMPRESSED: Final = """
eNqVVNtu00AQJc1NmdzMNiQuqAicVg0FpTRIvPGSAiqoFORUvFq2sw5GjjfsOhH5BH6Gn+MH2F1f4jiOBE9xzs7MmZlzdqE/owv7
gmLHw3bgEv9idZn6N1xQEhCERNAwBa8utT8H0JtgusJUT3Ad/1hiFiAEpW+EBWrhSWFQ0+U3OgfFcT1sWGtD/PrmHKtFcX59T28J
ZLx+H+HoNXRlrE38wHR9158ZbD23iKeWooyOOL9KjifyFFlwlM3DPwPsM96bWuap9dHJcHeW4bs4KBqAE/S2CZIINIZj0/M2dQ1/
ObcwZQZxjGC9wGolavGIhyVpt2HQZ+eOh6BTaHouCwzG9+famKnVKKch4EmEju9De44ZM2fYoGFjmgNKtll0Bu3UwLKHcPGtDSxp
n4GSbVs94JFlvY23G9V+l0DdVZctiM8wOgZYmZ47NVIi1yRyLZT+Cgqh7sz1TS/uW9LUR8/zlr/HRHo7LhLP6YAq1Z1iZlN3ERDK
y4ctSV/UR+d59YWr3iYp8RB82dJjuyeIwuN8hRO28v5pMoqn6B7l+CHhNKC75YgNV0VyneVx3WzMkuLppD2UEHyEFqY0vbKqLPw0
dwgRmSrZxGlgjEDZ+DLEtBvo5i8ajeBBVjb5qnDjFAcN/XBbhS/iSPsOvT2LRCfQskyGpc8N+YqEBmwIVNj8Vrwg+VYv5ln9Dg5z
FoneQDUSQzZaH/X3mTeVpcc52im0sxX5q5jqV35rE2huLVvcrVAnm0zD0LJek8gVB1AfQi2MSAB5sfjwEvwUYqNfBVCytwotoZPF
PvgOQf9zJx+++LfgcJZB4WXBqkitX/0FX58x7A==
"""
"""A FileDescriptorProto, compressed by zlib, in base64."""
