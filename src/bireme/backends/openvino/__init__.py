"""The openvino backend: IR, ONNX and other model files on OpenVINO, compiled once per version, shared by its instances.

Only ``runtime`` imports openvino, and what imports that: ``tensors``, ``instance``, ``compilation`` and ``backend``.
"""
