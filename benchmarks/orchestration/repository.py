"""The model repositories of the benchmark: chains of models that add 1, as files that both servers read.

``build`` writes two: ``shared``, for Bireme and the real Triton alike (each model in a process), and ``local``, for
Bireme alone (models in the server). In both, ``step_K`` adds 1, ``ensemble_N`` chains N of them,
``bls_N`` is a script that calls them, and ``hybrid_N`` an ensemble of ``step_1`` and of a script, ``tail_N``, that
calls the rest. The models of ``local`` carry the prefix of their EXECUTION_MODE, ``thread_`` or ``inline_``.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from pathlib import Path

SHARED, LOCAL = "shared", "local"
MODES = {"": SHARED, "thread": LOCAL, "inline": LOCAL}
"""Repositories by what the ways in it end with; the models' EXECUTION_MODE."""
NUM_SCRIPTS = 2
"""Instances of each script: as many as the machine has cores. A script that waits for its callees takes its instance."""

_STEP = """\
import triton_python_backend_utils as pb_utils


class TritonPythonModel:
    def execute(self, requests):
        return [self.answer(request) for request in requests]

    def answer(self, request):
        x = pb_utils.get_input_tensor_by_name(request, "X").as_numpy()
        return pb_utils.InferenceResponse([pb_utils.Tensor("Y", x + 1)])
"""

_SCRIPT = """\
import json

import triton_python_backend_utils as pb_utils


class TritonPythonModel:
    def initialize(self, args):
        parameters = json.loads(args["model_config"])["parameters"]
        self.callees = parameters["callees"]["string_value"].split(",")

    def execute(self, requests):
        return [self.answer(request) for request in requests]

    def answer(self, request):
        x = pb_utils.get_input_tensor_by_name(request, "X")
        for callee in self.callees:
            call = pb_utils.InferenceRequest(model_name=callee, inputs=[x], requested_output_names=["Y"])
            response = call.exec()
            if response.has_error():
                return pb_utils.InferenceResponse(error=response.error())
            y = pb_utils.get_output_tensor_by_name(response, "Y")
            x = pb_utils.Tensor("X", y.as_numpy())
        return pb_utils.InferenceResponse([y])
"""

_TENSORS = """\
max_batch_size: 0
input [ { name: "X" data_type: TYPE_FP32 dims: [ -1 ] } ]
output [ { name: "Y" data_type: TYPE_FP32 dims: [ -1 ] } ]
"""


def build(folder: Path, chain_lengths: Iterable[int], ways: Iterable[str]) -> tuple[Path, Path]:
    """Write both repositories below ``folder`` for chains of these lengths, and return their paths.

    ``ways`` are `results.WAYS`; models that none of them calls are left out.
    """
    lengths, kinds = sorted(set(chain_lengths)), set(ways)
    for mode, repository in MODES.items():
        root = folder / repository
        prefix, suffix = (f"{mode}_", f"_{mode}") if mode else ("", "")
        for position in range(1, lengths[-1] + 1):
            _write_python(root, f"{prefix}step_{position}", _STEP, mode=mode)
        for length in lengths:
            steps = [f"{prefix}step_{position}" for position in range(1, length + 1)]
            if f"ensemble{suffix}" in kinds:
                _write_ensemble(root, f"{prefix}ensemble_{length}", steps)
            if f"bls{suffix}" in kinds:
                _write_python(root, f"{prefix}bls_{length}", _SCRIPT, callees=steps, mode=mode)
            if f"hybrid{suffix}" in kinds:
                tail = f"{prefix}tail_{length}"
                _write_python(root, tail, _SCRIPT, callees=steps[1:], mode=mode)
                _write_ensemble(root, f"{prefix}hybrid_{length}", [steps[0], tail])
    return folder / SHARED, folder / LOCAL


def is_step(model: str) -> bool:
    """Whether ``model`` is one that computes, and not one that only calls others."""
    return model.removeprefix("thread_").removeprefix("inline_").startswith("step_")


def _write_python(root: Path, name: str, code: str, *, callees: Sequence[str] = (), mode: str = "") -> None:
    config = f'name: "{name}"\nbackend: "python"\n{_TENSORS}'
    config += f"instance_group [ {{ kind: KIND_CPU count: {NUM_SCRIPTS if callees else 1} }} ]\n"
    if callees:
        config += _parameter("callees", ",".join(callees))
    if mode:
        config += _parameter("EXECUTION_MODE", mode)
    _write(root / name / "config.pbtxt", config)
    _write(root / name / "1" / "model.py", code)


def _write_ensemble(root: Path, name: str, models: Sequence[str]) -> None:
    """Chain ``models`` through ensemble tensors X → T1 → T2 … → Y."""
    tensors = ["X", *(f"T{position}" for position in range(1, len(models))), "Y"]
    steps = ",\n".join(
        f'    {{ model_name: "{model}" model_version: -1'
        f' input_map {{ key: "X" value: "{read}" }} output_map {{ key: "Y" value: "{written}" }} }}'
        for model, read, written in zip(models, tensors, tensors[1:], strict=False)
    )
    config = f'name: "{name}"\nplatform: "ensemble"\n{_TENSORS}'
    _write(root / name / "config.pbtxt", f"{config}ensemble_scheduling {{\n  step [\n{steps}\n  ]\n}}\n")
    (root / name / "1").mkdir(exist_ok=True)


def _parameter(key: str, value: str) -> str:
    return f'parameters {{ key: "{key}" value {{ string_value: "{value}" }} }}\n'


def _write(path: Path, text: str) -> None:
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(text, encoding="utf-8")
