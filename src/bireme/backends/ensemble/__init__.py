"""Ensembles: graphs of models, run step by step by the server itself."""
