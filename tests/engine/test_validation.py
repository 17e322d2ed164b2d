"""Core validation: every rule of the HTTP reference, section 9.5, with its text."""

import numpy as np
import pytest

from bireme.config import ModelConfig
from bireme.config.model_config import ModelDynamicBatching, ModelInput, ModelOutput
from bireme.engine.validation import RequestValidator
from bireme.types import InferenceRequest, InvalidArgument, Tensor

BATCHING = ModelConfig(
    name="m",
    max_batch_size=4,
    input=(ModelInput("A", "TYPE_FP32", dims=(16,)), ModelInput("B", "TYPE_INT32", dims=(-1, 2))),
    output=(ModelOutput("Y", "TYPE_FP32", dims=(1,)),),
    dynamic_batching=ModelDynamicBatching(),
)
PLAIN = ModelConfig(
    name="m",
    input=(
        ModelInput("A", "TYPE_FP32", dims=(-1, 16)),
        ModelInput("T", "TYPE_STRING", dims=(2,), optional=True),
    ),
    output=(ModelOutput("Y", "TYPE_FP32", dims=(1,)),),
)


def request(
    *tensors: Tensor, outputs: tuple[str, ...] | None = None, request_id: str = ""
) -> InferenceRequest:
    return InferenceRequest(
        "m", {tensor.name: tensor for tensor in tensors}, lambda *_: None, outputs=outputs, id=request_id
    )


def fp32(name: str, *shape: int) -> Tensor:
    return Tensor.from_numpy(name, np.zeros(shape, np.float32))


def int32(name: str, *shape: int) -> Tensor:
    return Tensor.from_numpy(name, np.zeros(shape, np.int32))


def text(*elements: str) -> Tensor:
    return Tensor.from_numpy("T", list(elements))


GOOD_B = int32("B", 2, 5, 2)

WRONG = [
    (BATCHING, request(fp32("A", 2, 16)), "expected 2 inputs but got 1 inputs for model 'm'. Got input(s) ['A'], but missing required input(s) ['B']"),
    (BATCHING, request(fp32("A", 2, 16), GOOD_B, fp32("C", 1)), "expected 2 inputs but got 3 inputs for model 'm'"),
    (BATCHING, request(fp32("A", 2, 16), int32("b", 2, 5, 2)), "unexpected inference input 'b' for model 'm'; did you mean 'B'?"),
    (BATCHING, request(fp32("A"), GOOD_B), "input 'A' has no shape but model requires batch dimension for 'm'"),
    (BATCHING, request(fp32("A", 3, 16), GOOD_B), "input 'B' batch size does not match other inputs for 'm'. Expected 3, got 2"),
    (BATCHING, request(fp32("A", 5, 16), int32("B", 5, 1, 2)), "inference request batch-size must be <= 4 for 'm', got 5"),
    (BATCHING, request(fp32("A", 0, 16), int32("B", 0, 1, 2)), "inference request batch-size must be >= 1 for 'm', got 0"),
    (BATCHING, request(int32("A", 2, 16), GOOD_B), "inference input 'A' data-type is 'INT32', but model 'm' expects 'FP32'"),
    (BATCHING, request(fp32("A", 2, 15), GOOD_B), "unexpected shape for input 'A' for model 'm'. Expected [-1,16], got [2,15]."),
    (BATCHING, request(fp32("A", 16), GOOD_B), "send [1,16] for one item"),
    (BATCHING, request(fp32("A", 2, 16), int32("B", 2, 5)), "Expected [-1,-1,2], got [2,5]."),
    (BATCHING, request(fp32("A", 2, 16), GOOD_B, outputs=("y",)), "unexpected inference output 'y' for model 'm'"),
    (PLAIN, request(fp32("A", 1, 3, 16)), "so its inputs have no batch dimension: send [3,16]"),
    (PLAIN, request(), "expected number of inputs between 1 and 2 but got 0 inputs for model 'm'"),
    (PLAIN, request(fp32("A", 3, 16), fp32("Tt", 1)), "unexpected inference input 'Tt' for model 'm'"),
    (PLAIN, request(fp32("A", 3, 16), Tensor("T", "BYTES", (2,), encoded=b"\x09\0\0\0x")), "element 0 at offset 0 announces 9 bytes, but only 1 follow"),
]  # fmt: skip


@pytest.mark.parametrize(("config", "wrong", "message"), WRONG, ids=range(len(WRONG)))
def test_fault_is_named_with_what_was_expected_and_what_came(
    config: ModelConfig, wrong: InferenceRequest, message: str
) -> None:
    with pytest.raises(InvalidArgument) as caught:
        RequestValidator(config).check(wrong)

    assert message in caught.value.message
    assert caught.value.message.startswith("[request id: <id_unknown>] ")


def test_messages_carry_the_request_id() -> None:
    with pytest.raises(InvalidArgument, match=r"^\[request id: 7\] "):
        RequestValidator(BATCHING).check(request(request_id="7"))


def test_rows_and_key_are_set_for_the_batcher() -> None:
    good = request(fp32("A", 2, 16), GOOD_B, outputs=("Y",))
    RequestValidator(BATCHING).check(good)

    assert good.batch_size == 2
    assert good.batch_key == ((5, 2),)


def test_fixed_models_need_no_key() -> None:
    config = ModelConfig(
        name="m", max_batch_size=4, input=BATCHING.input[:1], dynamic_batching=ModelDynamicBatching()
    )
    good = request(fp32("A", 1, 16))
    RequestValidator(config).check(good)

    assert good.batch_key is None


def test_different_sets_of_optional_inputs_never_share_a_key() -> None:
    config = ModelConfig(
        name="m",
        max_batch_size=4,
        input=(BATCHING.input[0], ModelInput("O", "TYPE_FP32", dims=(1,), optional=True)),
        dynamic_batching=ModelDynamicBatching(),
    )
    validator = RequestValidator(config)
    without, with_it = request(fp32("A", 1, 16)), request(fp32("A", 1, 16), fp32("O", 1, 1))
    validator.check(without)
    validator.check(with_it)

    assert without.batch_key != with_it.batch_key


def test_only_requests_with_equal_shape_tensors_share_a_key_whatever_their_sizes() -> None:
    config = ModelConfig(
        name="m",
        max_batch_size=4,
        input=(BATCHING.input[0], ModelInput("N", "TYPE_INT32", dims=(2,), is_shape_tensor=True)),
        dynamic_batching=ModelDynamicBatching(),
    )
    validator = RequestValidator(config)

    def keyed(*rows: list[int]) -> object:
        shape_tensor = Tensor.from_numpy("N", np.array(rows, np.int32))
        checked = request(fp32("A", len(rows), 16), shape_tensor)
        validator.check(checked)
        return checked.batch_key

    assert keyed([7, 9]) == keyed([7, 9], [7, 9])
    assert keyed([7, 9]) != keyed([7, 8])
    with pytest.raises(InvalidArgument, match="the rows of shape tensor 'N' differ for 'm'"):
        keyed([7, 9], [7, 8])


def test_optional_input_may_be_left_out_and_strings_are_checked() -> None:
    validator = RequestValidator(PLAIN)
    validator.check(request(fp32("A", 0, 16)))
    validator.check(request(fp32("A", 3, 16), text("a", "")))
