"""ModelConfig: what ``auto_complete_config`` may fill in.

Source: Triton's ``triton_python_backend_utils.py`` (rules and texts).
"""

from __future__ import annotations

import json
from typing import Any, Final

_INPUT_PROPERTIES: Final = ("name", "data_type", "dims", "optional")
_OUTPUT_PROPERTIES: Final = ("name", "data_type", "dims")


class ModelConfig:
    """A model's config, made from its JSON text."""

    def __init__(self, model_config: str) -> None:
        self._model_config: dict[str, Any] = json.loads(model_config)

    def as_dict(self) -> dict[str, Any]:
        """Return the config itself: changes to it count."""
        return self._model_config

    def set_max_batch_size(self, max_batch_size: int) -> None:
        """Set the largest batch. Raises `ValueError` where the config has a larger one."""
        specified = self._model_config.get("max_batch_size", 0)
        if specified > max_batch_size:
            raise ValueError(
                f"configuration specified max_batch_size {specified}, but in auto-complete-config function for model "
                f"'{self._name}' specified max_batch_size {max_batch_size}"
            )
        self._model_config["max_batch_size"] = max_batch_size

    def set_dynamic_batching(self) -> None:
        """Batch dynamically, unless that is set. Raises `ValueError` where the config has another scheduler."""
        for scheduler in ("sequence_batching", "ensemble_scheduling"):
            if scheduler in self._model_config:
                raise ValueError(
                    f"Configuration specified scheduling_choice as '{scheduler}', but auto-complete-config function for "
                    f"model '{self._name}' tries to set scheduling_choice as 'dynamic_batching'"
                )
        self._model_config.setdefault("dynamic_batching", {})

    def add_input(self, input: dict[str, Any]) -> None:  # noqa: A002 (the API's name)
        """Add an input with ``name``, ``data_type``, ``dims`` and, if need be, ``optional``.

        One that the config has already is filled in. Raises `ValueError` where the two disagree, or a property is missing
        or unknown.
        """
        self._add("input", input, _INPUT_PROPERTIES, "'name', 'data_type', 'dims' and 'optional'")

    def add_output(self, output: dict[str, Any]) -> None:
        """Add an output with ``name``, ``data_type`` and ``dims``. As `add_input`."""
        self._add("output", output, _OUTPUT_PROPERTIES, "'name', 'data_type' and 'dims'")

    def set_model_transaction_policy(self, transaction_policy_dict: dict[str, Any]) -> None:
        """Set ``decoupled``. Raises `ValueError` for other properties, or where the config has another value."""
        for key in transaction_policy_dict:
            if key != "decoupled":
                raise ValueError(
                    f"model transaction property in auto-complete-config function for model '{self._name}' contains "
                    f"property other than 'decoupled'."
                )
        policy = self._model_config.setdefault("model_transaction_policy", {})
        if "decoupled" not in transaction_policy_dict:
            return
        decoupled = transaction_policy_dict["decoupled"]
        if policy.setdefault("decoupled", decoupled) != decoupled:
            raise ValueError(
                f"trying to change decoupled property in auto-complete-config for model '{self._name}', which is already "
                f"set to '{policy['decoupled']}'."
            )

    @property
    def _name(self) -> str:
        return str(self._model_config.get("name", ""))

    def _add(self, kind: str, tensor: dict[str, Any], properties: tuple[str, ...], listed: str) -> None:
        function = f"in auto-complete-config function for model '{self._name}'"
        name = tensor.get("name")
        if any(key not in properties for key in tensor):
            raise ValueError(f"{kind} '{name}' {function} contains property other than {listed}.")
        if name is None:
            raise ValueError(f"{kind} {function} is missing 'name' property.")
        for key in ("data_type", "dims"):
            if key not in tensor:
                raise ValueError(f"{kind} '{name}' {function} is missing '{key}' property.")
        tensors = self._model_config.setdefault(kind, [])
        for existing in tensors:
            if existing["name"] == name:
                self._check_agreement(kind, existing, tensor)
                existing.update(tensor)
                return
        tensors.append(tensor)

    def _check_agreement(self, kind: str, existing: dict[str, Any], tensor: dict[str, Any]) -> None:
        name = tensor["name"]
        data_type = existing.get("data_type", "TYPE_INVALID")
        if data_type not in {"TYPE_INVALID", tensor["data_type"]}:
            raise ValueError(
                f"unable to load model '{self._name}', configuration expects datatype {data_type} for {kind} '{name}', "
                f"model provides {tensor['data_type']}"
            )
        if existing.get("dims") and existing["dims"] != tensor["dims"]:
            raise self._disagreement("dims", existing, tensor)
        if "optional" in existing and "optional" in tensor and existing["optional"] != tensor["optional"]:
            raise self._disagreement("optional", existing, tensor)

    def _disagreement(self, key: str, existing: dict[str, Any], tensor: dict[str, Any]) -> ValueError:
        return ValueError(
            f"model '{self._name}', tensor '{tensor['name']}': the model expects {key} {tensor[key]} but the model "
            f"configuration specifies {key} {existing[key]}"
        )
