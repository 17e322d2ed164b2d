"""Repositories in object stores: S3 and what speaks it, Google Cloud Storage, Azure Blob Storage.

``location`` and ``credentials`` say which store, ``client`` talks to it (and alone knows the library, obstore), ``listing``
is what one look has seen, ``cache`` keeps what was fetched, ``download`` fetches, ``storage`` puts it together.
"""
