"""Serialised descriptor of ``grpc/health/v1/health.proto``. Made by ``scripts/generate_protos``; do not edit."""

from typing import Final

COMPRESSED: Final = """
eNrjkk4vKkjWz0hNzCnJ0C8zhLL0CoryS/KF+ECSelChMkMlPS4hDzDHOSM1OTsotbA0tbhESIKLvTi1qCwzOVWCUYFRgzMIxlXa
yMgljKKhuCA/rzhVyJOLrbgksaS0GKyBz8hQD9UiPSya9IJBhualB4M1BkENUPLn4kWREOLmYg/18/bzD/cTYABxgl2Dwjz93AUY
hfi5uP38Q+JhAkxCwlz8YI6zazxMC7PROkYuNoj1QgFcrGAnCCnhdR84FKSUifCDUBAXa3hiSXIG1Uw0YExiA8eVMQCGR5Jr
"""
"""A FileDescriptorProto, compressed by zlib, in base64."""
