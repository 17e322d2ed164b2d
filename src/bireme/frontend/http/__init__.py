"""The HTTP/1.1 front end: connections, routes and their handlers."""

from bireme.frontend.http.frontend import HttpFrontend
from bireme.frontend.http.options import ConnectionLimits, HttpOptions
from bireme.frontend.options import ListenOptions, Restriction

__all__ = ["ConnectionLimits", "HttpFrontend", "HttpOptions", "ListenOptions", "Restriction"]
