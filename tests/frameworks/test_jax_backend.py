"""Functions that JAX exported, against the functions themselves."""

import os
import threading
from dataclasses import replace

import jax
import jax.numpy as jnp
import ml_dtypes
import numpy as np
import pytest
from jax import export

from bireme.backends.interface import Placement
from bireme.backends.jax import predictor, runtime
from bireme.backends.jax.backend import JaxBackend
from bireme.types import BackendFailed, InvalidArgument, NotFound, Unsupported
from served_models import ROWS, OpenModel, context, parameters, place, serving

N, M = export.symbolic_shape("n, m")
X = ROWS.astype(np.float32)

pytestmark = pytest.mark.slow  # XLA compiles every function


def spec(*shape, dtype=jnp.float32):
    return jax.ShapeDtypeStruct(shape, dtype)


def serialise(function, *arguments, platforms=None, **keywords) -> bytes:
    return bytes(export.export(jax.jit(function), platforms=platforms)(*arguments, **keywords).serialize())


@pytest.fixture
def open_model(tmp_path):
    def open_it(function, *arguments, config="", backend_config=None, **keywords) -> OpenModel:
        path = place(tmp_path, "m", "model.jax")
        path.write_bytes(serialise(function, *arguments, **keywords))
        return OpenModel(JaxBackend(), path, config, **(backend_config or {}))

    return open_it


def double(x):
    return x * 2


def test_the_server_has_started_jax_with_its_own_number_of_threads():
    assert "NPROC" not in os.environ
    assert ["cpu"] == [device.platform for device in runtime.jax.devices()]


def test_a_function_of_an_array(open_model):
    model = open_model(double, spec(N, 4))

    assert [("INPUT__0", "FP32", (4,)), ("OUTPUT__0", "FP32", (4,))] == model.tensors()
    assert 4 == model.config.max_batch_size
    assert np.array_equal(model.run(INPUT__0=X[:3])["OUTPUT__0"], X[:3] * 2)


def test_dicts_and_keywords_name_tensors(open_model):
    def function(image, other, *, scale, deep):
        return {"sum": image["pixels"] + other, "more": {"scaled": other * scale, "list": [deep["a"]["b"]]}}

    model = open_model(
        function,
        {"pixels": spec(N, 2)},
        spec(N, 2),
        scale=spec(N, 1),
        deep={"a": {"b": spec(N, 3, dtype=jnp.int32)}},
    )

    found = model.run(
        **{
            "pixels": np.ones((2, 2), "f4"),
            "INPUT__1": np.full((2, 2), 3, "f4"),
            "scale": np.full((2, 1), 2, "f4"),
            "deep.a.b": np.ones((2, 3), "i4"),
        }
    )

    assert ["pixels", "INPUT__1", "deep.a.b", "scale"] == [tensor.name for tensor in model.config.input]
    assert {"OUTPUT__0": [[1, 1, 1]] * 2, "more.scaled": [[6, 6]] * 2, "sum": [[4, 4]] * 2} == {
        name: array.tolist() for name, array in found.items()
    }


def test_a_name_that_two_tensors_have_is_nobodys(open_model):
    model = open_model(lambda a, b: (a["x"], b["x"]), {"x": spec(N, 2)}, {"x": spec(N, 2)})

    assert ["INPUT__0", "INPUT__1", "OUTPUT__0", "OUTPUT__1"] == [name for name, *_ in model.tensors()]


@pytest.mark.parametrize(
    ("kind", "dtype"),
    [("BOOL", bool), ("UINT8", "u1"), ("INT16", "i2"), ("FP16", "f2"), ("FP32", "f4"), ("INT32", "i4")],
)
def test_types(open_model, kind, dtype):
    model = open_model(lambda x: x, spec(N, 2, dtype=dtype))
    rows = np.ones((3, 2), dtype)

    found = model.run(INPUT__0=rows)["OUTPUT__0"]

    assert kind == model.tensors()[0][1]
    assert np.array_equal(rows, found)
    assert not np.shares_memory(rows, found)


def test_64_bits_stay_64_bits(open_model):
    with jax.enable_x64(True):
        model = open_model(lambda x: x + 1, spec(N, 2, dtype=jnp.float64))
    rows = np.array([[1 + 1e-12, 2.0]])

    assert ("INPUT__0", "FP64", (2,)) == model.tensors()[0]
    assert np.array_equal(rows + 1, model.run(INPUT__0=rows)["OUTPUT__0"])


def test_bfloat16_goes_as_its_bits(open_model):
    model = open_model(double, spec(N, 2, dtype=jnp.bfloat16))
    rows = np.array([[1.5, -3.0]], ml_dtypes.bfloat16)

    found = model.run(INPUT__0=rows.view(np.uint16))["OUTPUT__0"]

    assert ("INPUT__0", "BF16", (2,)) == model.tensors()[0]
    assert np.uint16 == found.dtype
    assert [[3.0, -6.0]] == found.view(ml_dtypes.bfloat16).astype(float).tolist()


def test_types_that_no_client_has_are_refused(open_model):
    with pytest.raises(
        Unsupported, match="input 'INPUT__0' of the model file is a complex64, which no data type"
    ):
        open_model(lambda x: x.real, spec(N, 2, dtype=jnp.complex64))


def test_scalars_have_one_element(open_model):
    model = open_model(lambda x, k: (x * k).sum(), spec(2, 3), spec())

    assert [
        ("INPUT__0", "FP32", (2, 3)),
        ("INPUT__1", "FP32", (1,)),
        ("OUTPUT__0", "FP32", (1,)),
    ] == model.tensors()
    found = model.run(INPUT__0=np.ones((2, 3), "f4"), INPUT__1=np.array([2], "f4"))["OUTPUT__0"]
    assert [12.0] == found.tolist()


def test_only_what_the_config_lists_is_computed(open_model):
    config = 'max_batch_size: 8 output { name: "b" data_type: TYPE_FP32 dims: 4 }'
    model = open_model(lambda x: {"a": x, "b": -x}, spec(N, 4), config=config)

    assert ["b"] == list(model.run(INPUT__0=X[:2]))


# Shapes


def test_a_fixed_shape_does_not_batch(open_model):
    model = open_model(double, spec(2, 4))

    assert 0 == model.config.max_batch_size
    assert ("INPUT__0", "FP32", (2, 4)) == model.tensors()[0]
    assert model.instance.may_run_inline


def test_first_dimensions_that_differ_do_not_batch(open_model):
    model = open_model(lambda x: jnp.concatenate([x, x]), spec(N, 4))

    assert 0 == model.config.max_batch_size
    assert np.array_equal(np.vstack([X[:3]] * 2), model.run(INPUT__0=X[:3])["OUTPUT__0"])
    with pytest.raises(
        InvalidArgument, match="the first dimensions of the exported function's tensors are not the same"
    ):
        model.loaded.complete_config(replace(model.config, max_batch_size=4))


def test_batches_are_padded_to_few_sizes_that_are_compiled_at_load(open_model, monkeypatch):
    sizes: list[int] = []
    lent = predictor._lent
    monkeypatch.setattr(predictor, "_lent", lambda array: (sizes.append(len(array)), lent(array))[1])
    model = open_model(double, spec(N, 4), config="max_batch_size: 6")

    assert [1, 2, 4, 6] == sizes
    assert model.instance.may_run_inline
    for count in range(1, 7):
        found = model.run(INPUT__0=X[:count])["OUTPUT__0"]
        assert np.array_equal(found, X[:count] * 2)
    assert [1, 2, 4, 4, 6, 6] == sizes[4:]


def test_padding_can_be_switched_off(open_model, monkeypatch):
    sizes: list[int] = []
    lent = predictor._lent
    monkeypatch.setattr(predictor, "_lent", lambda array: (sizes.append(len(array)), lent(array))[1])
    model = open_model(double, spec(N, 4), config=f"max_batch_size: 6 {parameters(pad_batches='false')}")

    model.run(INPUT__0=X[:3])

    assert [3] == sizes
    assert not model.instance.may_run_inline


def test_compiling_may_wait_for_the_first_request(open_model, monkeypatch):
    calls: list[int] = []
    monkeypatch.setattr(predictor, "_zeros", lambda artifact, size: calls.append(size))

    model = open_model(double, spec(N, 4), config=parameters(compile_at_load="false"))

    assert not calls
    assert not model.instance.may_run_inline
    assert np.array_equal(model.run(INPUT__0=X[:3])["OUTPUT__0"], X[:3] * 2)


def test_other_dimensions_may_be_dynamic(open_model):
    model = open_model(lambda x: x.sum(axis=1, keepdims=True), spec(N, M))

    assert ("INPUT__0", "FP32", (-1,)) == model.tensors()[0]
    assert not model.instance.may_run_inline
    for width in (2, 3):
        assert [[width]] * 3 == model.run(INPUT__0=np.ones((3, width), "f4"))["OUTPUT__0"].tolist()


def test_shapes_that_do_not_go_together_are_the_callers_mistake(open_model):
    model = open_model(jnp.matmul, spec(N, M), spec(M, 2))

    with pytest.raises(
        InvalidArgument, match=r"the inputs' shapes do not go together: .* \(= 4\) .* 'm' \(= 5\)"
    ):
        model.run(INPUT__0=np.ones((2, 5), "f4"), INPUT__1=np.ones((4, 2), "f4"))


def test_large_inputs_are_lent_and_strided_ones_are_taken(open_model):
    model = open_model(double, spec(N, 4), config=f"max_batch_size: 16384 {parameters(pad_batches='false')}")
    rows = np.ones((16384, 8), np.float32)[:, ::2]
    rows.flags.writeable = False

    assert np.array_equal(rows * 2, model.run(INPUT__0=rows)["OUTPUT__0"])
    whole = np.ones((16384, 4), np.float32)
    assert not np.shares_memory(whole, model.run(INPUT__0=whole)["OUTPUT__0"])


def test_runs_may_overlap(open_model):
    model = open_model(double, spec(N, 4), config="max_batch_size: 8")
    wrong: list[int] = []

    def work(count: int) -> None:
        for _ in range(20):
            found = model.run(INPUT__0=X[:count])["OUTPUT__0"]
            wrong.extend([] if np.array_equal(found, X[:count] * 2) else [count])

    threads = [threading.Thread(target=work, args=(count,)) for count in (1, 3, 8)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()

    assert not wrong


# Files


@pytest.mark.parametrize(
    ("content", "message"),
    [
        (b"", "the file is empty"),
        (b"version https://git-lfs.github.com/spec/v1\n", "Git LFS pointer"),
        (b"hello there", "is it complete, and is it what jax.export.export"),
    ],
)
def test_a_file_that_is_no_export_is_explained(tmp_path, content, message):
    path = place(tmp_path, "m", "model.jax")
    path.write_bytes(content)

    with pytest.raises(InvalidArgument, match=message) as caught:
        JaxBackend().load(context(path))

    assert f"cannot load '{path}'" in caught.value.message


@pytest.mark.parametrize("part", [0.1, 0.5, 0.95])
def test_a_truncated_file_is_refused(tmp_path, part):
    path = place(tmp_path, "m", "model.jax")
    whole = serialise(double, spec(N, 4))
    path.write_bytes(whole[: int(len(whole) * part)])

    with pytest.raises(InvalidArgument, match=r"cannot load .*\(is it complete"):
        JaxBackend().load(context(path))


def test_a_package_that_jax_does_not_bring_along_is_named(tmp_path, monkeypatch):
    def deserialise(content):
        raise ModuleNotFoundError("No module named 'flatbuffers'", name="flatbuffers")

    monkeypatch.setattr(runtime.export, "deserialize", deserialise)
    path = place(tmp_path, "m", "model.jax")
    path.touch()

    with pytest.raises(Unsupported, match=r"JAX needs the package 'flatbuffers' .* pip install flatbuffers"):
        JaxBackend().load(context(path))


def test_an_export_for_gpus_alone_is_refused(tmp_path):
    path = place(tmp_path, "m", "model.jax")
    path.write_bytes(serialise(double, spec(N, 4), platforms=["cuda"]))

    with pytest.raises(
        InvalidArgument, match=r"was exported for cuda alone; expected cpu: export it with platforms=\['cpu'"
    ):
        JaxBackend().load(context(path))


def test_a_missing_file_is_named(tmp_path):
    with pytest.raises(NotFound, match=r"unable to find '.*model\.jax' for model 'm'"):
        JaxBackend().load(context(place(tmp_path, "m", "model.jax")))


def test_a_gpu_is_refused(open_model):
    with pytest.raises(Unsupported, match="KIND_GPU is not supported by the jax backend"):
        open_model(double, spec(N, 4)).loaded.create_instance(Placement("m_0", "KIND_GPU"))


def test_a_config_is_held_against_the_file(open_model):
    with pytest.raises(
        InvalidArgument, match="input 'INPUT__0': the config's data_type is TYPE_FP64, but the model file has"
    ):
        open_model(
            double,
            spec(N, 4),
            config='max_batch_size: 4 input { name: "INPUT__0" data_type: TYPE_FP64 dims: 4 }',
        )


def test_a_closed_model_keeps_no_weights_in_the_caches_of_jax(open_model):
    model = open_model(double, spec(N, 4))
    model.run(INPUT__0=X)
    exported = model.loaded._predictor._artifact.exported
    assert exported.mlir_module_serialized

    model.instance.close()
    model.loaded.close()

    assert exported.mlir_module_serialized == b""


def test_closed_instances_say_so(open_model):
    model = open_model(double, spec(N, 4))
    model.instance.close()
    model.loaded.close()

    with pytest.raises(BackendFailed, match="closed"):
        model.run(INPUT__0=X)


# Served


@pytest.fixture(scope="module")
def served(tmp_path_factory):
    root = tmp_path_factory.mktemp("jax")
    place(root, "plain", "model.jax").write_bytes(serialise(lambda d: {"y": d["x"] * 2}, {"x": spec(N, 4)}))
    batching = "max_batch_size: 16 dynamic_batching { max_queue_delay_microseconds: 20000 }"
    place(root, "batched", "model.jax", batching).write_bytes(serialise(double, spec(N, 4)))
    with serving(root) as running:
        yield running


def test_a_folder_without_a_config_is_served(served):
    assert np.array_equal(served.infer("plain", x=X[:3])["y"], X[:3] * 2)


def test_requests_share_a_batch(served):
    answers, rows, runs = served.infer_at_once(
        "batched", [{"INPUT__0": X[row : row + 1]} for row in range(7)]
    )

    assert 7 == rows
    assert runs < 7
    assert np.array_equal(np.concatenate([each["OUTPUT__0"] for each in answers]), X[:7] * 2)


def test_nan_goes_through(served):
    assert np.isnan(served.infer("plain", x=np.full((1, 4), np.nan, np.float32))["y"]).all()


def test_a_wrong_shape_is_the_callers_mistake(served):
    from tritonclient.utils import InferenceServerException

    with pytest.raises(InferenceServerException, match=r"\[400\].*Expected \[-1,4\], got \[1,5\]"):
        served.infer("plain", x=np.ones((1, 5), np.float32))
