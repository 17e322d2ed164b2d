"""Frameworks behind one small interface. Nothing above this floor knows which of them runs a model."""
