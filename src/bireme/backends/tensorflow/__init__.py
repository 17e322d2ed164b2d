"""The tensorflow backend: SavedModels and frozen graphs on the CPU, one session per model version, shared by its instances.

Nothing is imported here: what reads settings and signatures does without TensorFlow.
"""
