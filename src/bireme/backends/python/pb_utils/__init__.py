"""What models import as ``triton_python_backend_utils``."""
