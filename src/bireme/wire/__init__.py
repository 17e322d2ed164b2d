"""Pure codecs: bytes ⇄ requests. No sockets, no asyncio, no clock."""
