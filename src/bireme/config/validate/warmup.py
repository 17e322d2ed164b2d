"""Rules on warm-up samples that can be checked without their data files.

Source: Triton ``backend_model_instance.cc`` (GenerateWarmupData).
"""

from __future__ import annotations

from collections.abc import Iterator

from bireme.config.model_config import ModelConfig


def find_faults(config: ModelConfig) -> Iterator[str]:
    """Yield the faults of ``model_warmup``; a sample of batch size 0 is skipped, as it is when the model loads."""
    for sample in config.model_warmup:
        if sample.batch_size == 0:
            continue
        for name, given in sample.inputs.items():
            sample_place = f"for sample '{sample.name}' for {config.name}"
            place = f"for input '{name}' of sample '{sample.name}' for {config.name}"
            if given.data_type == "TYPE_INVALID":
                yield f"warmup setting must specify 'data_type' {place}"
            if any(dim < 0 for dim in given.dims):
                yield (
                    f"warmup setting expects all variable-size dimensions are specified {place}: dims is "
                    f"{list(given.dims)}"
                )
            sources = (given.zero_data, given.random_data, given.input_data_file)
            if all(source is None for source in sources):
                yield (
                    f"warmup setting expects input '{name}' to have input_data_type set {sample_place}: add zero_data, "
                    f"random_data or input_data_file"
                )
