"""DLPack: capsules in and out, whatever made them."""

import ctypes
import gc
import weakref

import numpy as np
import pytest

from bireme.backends.python import pb_utils
from bireme.backends.python.pb_utils import dlpack
from bireme.backends.python.pb_utils.tensor import wrap_tensor
from bireme.types import Tensor as ServerTensor

EVERY_DTYPE = [np.bool_, *(f"{kind}{size}" for kind in "iu" for size in (1, 2, 4, 8)), "f2", "f4", "f8"]


class Exporter:
    """An object of another framework, which holds one capsule."""

    def __init__(self, capsule, device=(1, 0)):
        self.capsule = capsule
        self.device = device

    def __dlpack__(self, stream="unset"):
        assert stream is None
        return self.capsule

    def __dlpack_device__(self):
        return self.device


def patched(array, at, value, kind=ctypes.c_uint8):
    """Return a capsule over ``array`` whose structure says something else at that offset."""
    capsule = array.__dlpack__()
    kind.from_address(dlpack._get_pointer(capsule, b"dltensor") + at).value = value
    return capsule


DEVICE, CODE, BITS, LANES = 8, 20, 21, 22


@pytest.mark.parametrize("dtype", EVERY_DTYPE)
@pytest.mark.parametrize("wrap", [Exporter, lambda capsule: capsule], ids=["object", "capsule"])
def test_import_shares_memory(dtype, wrap):
    array = np.arange(6).astype(dtype).reshape(2, 3)
    made = pb_utils.Tensor.from_dlpack("X", wrap(array.__dlpack__()))

    assert made.name() == "X"
    assert made.shape() == [2, 3]
    assert made.as_numpy().dtype == array.dtype
    assert np.shares_memory(made.as_numpy(), array)
    np.testing.assert_array_equal(made.as_numpy(), array)
    made.as_numpy()[0, 0] = 1

    assert array[0, 0] == 1


@pytest.mark.parametrize("dtype", EVERY_DTYPE)
def test_export_shares_memory(dtype):
    array = np.arange(6).astype(dtype).reshape(2, 3)
    seen = np.from_dlpack(pb_utils.Tensor("X", array))

    assert seen.dtype == array.dtype
    assert np.shares_memory(seen, array)


def test_there_and_back():
    array = np.ones((2, 2), np.float32)
    made = pb_utils.Tensor.from_dlpack("Y", pb_utils.Tensor("X", array))

    assert made.name() == "Y"
    assert np.shares_memory(made.as_numpy(), array)
    assert pb_utils.Tensor("X", array).__dlpack_device__() == (1, 0)


def test_offsets_count():
    array = np.arange(10)
    made = pb_utils.Tensor.from_dlpack("X", array[4:])

    assert made.as_numpy().tolist() == [4, 5, 6, 7, 8, 9]
    moved = patched(array[:6], 40, 16, ctypes.c_uint64)

    assert pb_utils.Tensor.from_dlpack("X", moved).as_numpy().tolist() == [2, 3, 4, 5, 6, 7]


@pytest.mark.parametrize("shape", [(), (1,), (1, 3, 1), (0,), (2, 0)])
def test_shapes_at_the_edge(shape):
    array = np.ones(shape, np.float32)

    assert pb_utils.Tensor.from_dlpack("X", array.__dlpack__()).shape() == list(shape)
    assert np.from_dlpack(pb_utils.Tensor("X", array)).shape == shape


def test_strides_of_single_rows_do_not_matter():
    array = np.zeros((4, 3), np.float32)[::2][:1]

    assert pb_utils.Tensor.from_dlpack("X", array).shape() == [1, 3]


def test_an_import_gives_its_memory_back():
    array = np.zeros(1000)
    alive = weakref.ref(array)
    capsule = array.__dlpack__()
    made = pb_utils.Tensor.from_dlpack("X", capsule)
    del array, capsule
    view = made.as_numpy()[10:]
    del made
    gc.collect()

    assert alive() is not None
    del view
    gc.collect()

    assert alive() is None


def test_an_exporter_may_want_nothing_back():
    made = pb_utils.Tensor.from_dlpack("X", patched(np.ones(2), 56, 0, ctypes.c_uint64))

    assert made.as_numpy().tolist() == [1, 1]
    del made
    gc.collect()


def test_an_export_keeps_the_memory():
    array = np.zeros(1000)
    alive = weakref.ref(array)
    capsule = pb_utils.Tensor("X", array).to_dlpack()
    del array
    gc.collect()

    assert alive() is not None
    del capsule
    gc.collect()

    assert alive() is None


@pytest.mark.parametrize("dtype", [np.float32, np.bool_])
def test_read_only_inputs_can_be_exported(dtype):
    """Inputs that several models read are read-only; frameworks get them all the same."""
    array = np.ones((2, 3), dtype)
    array.flags.writeable = False
    alive = weakref.ref(array)
    seen = np.from_dlpack(pb_utils.Tensor("X", array))
    del array
    gc.collect()

    assert seen.tolist() == np.ones((2, 3), dtype).tolist()
    assert alive() is not None
    del seen
    gc.collect()

    assert alive() is None


def test_read_only_arrays_can_be_imported():
    array = np.ones(3)
    array.flags.writeable = False
    made = pb_utils.Tensor.from_dlpack("X", array).as_numpy()

    assert np.shares_memory(made, array)
    assert not made.flags.writeable


def test_the_newer_form_of_capsules():
    array = np.arange(6).reshape(2, 3)
    capsule = array.__dlpack__(max_version=(1, 0))

    assert "dltensor_versioned" in repr(capsule)
    made = pb_utils.Tensor.from_dlpack("X", capsule)
    del capsule

    assert np.shares_memory(made.as_numpy(), array)
    assert made.as_numpy().flags.writeable


def test_bf16_in_and_out():
    bits = np.array([0x3F80, 0x4000], np.uint16)
    made = pb_utils.Tensor.from_dlpack("X", patched(bits, CODE, 4))

    assert made.triton_dtype() == 14
    assert made.as_numpy() is None
    assert made._tensor.to_numpy().tolist() == bits.tolist()
    again = pb_utils.Tensor.from_dlpack("Y", made.to_dlpack())

    assert again.triton_dtype() == 14
    assert np.shares_memory(again._tensor.to_numpy(), bits)


def test_bf16_of_the_server_is_exported_as_such():
    made = wrap_tensor(ServerTensor("X", "BF16", (1,), np.zeros(1, np.uint16)))

    assert pb_utils.Tensor.from_dlpack("Y", made).triton_dtype() == 14


@pytest.mark.parametrize(
    ("patch", "text"),
    [
        ((CODE, 4), "Expected BF16 tensor to have 16 bits, but had: 64"),
        ((CODE, 5), "code 5, 64 bits"),
        ((BITS, 128), "128 bits"),
        ((LANES, 2, ctypes.c_uint16), "2 lanes"),
        ((DEVICE, 7, ctypes.c_int32), r"DLDevice type 7 is not support by Python backend\."),
        ((DEVICE, 2, ctypes.c_int32), "GPU"),
    ],
)
def test_what_cannot_be_taken_is_refused(patch, text):
    array = np.ones(2)
    alive = weakref.ref(array)

    with pytest.raises(pb_utils.TritonModelException, match=text):
        pb_utils.Tensor.from_dlpack("X", patched(array, *patch))
    del array
    gc.collect()

    assert alive() is None


def test_pinned_memory_is_memory():
    made = pb_utils.Tensor.from_dlpack("X", patched(np.ones(2), DEVICE, 3, ctypes.c_int32))

    assert made.as_numpy().tolist() == [1, 1]


@pytest.mark.parametrize("array", [np.ones((2, 3)).T, np.ones(6)[::2], np.ones((4, 4))[:, :2]])
def test_only_row_major_tensors_are_taken(array):
    with pytest.raises(pb_utils.TritonModelException, match="DLPack tensor is not contiguous"):
        pb_utils.Tensor.from_dlpack("X", array)


def test_a_capsule_can_be_taken_once():
    capsule = np.ones(2).__dlpack__()
    made = pb_utils.Tensor.from_dlpack("X", capsule)

    with pytest.raises(pb_utils.TritonModelException, match=r"taken already.*used_dltensor"):
        pb_utils.Tensor.from_dlpack("X", capsule)
    assert made.as_numpy().tolist() == [1, 1]


@pytest.mark.parametrize("source", [[1.0], None, 3])
def test_what_exports_nothing_is_refused(source):
    with pytest.raises(pb_utils.TritonModelException, match="Provided tensor is not supported"):
        pb_utils.Tensor.from_dlpack("X", source)


def test_an_import_needs_a_name():
    with pytest.raises(pb_utils.TritonModelException, match="empty string"):
        pb_utils.Tensor.from_dlpack("", np.ones(1))


def test_bytes_cannot_be_exported():
    made = pb_utils.Tensor("X", np.array([b"a"]))

    for export in (made.to_dlpack, made.__dlpack__, lambda: made.__dlpack__(copy=True)):
        with pytest.raises(
            pb_utils.TritonModelException, match=r"DLPack does not have support for string tensors\."
        ):
            export()


def test_arguments_of_newer_consumers():
    array = np.ones(2)
    made = pb_utils.Tensor("X", array)
    copied = pb_utils.Tensor.from_dlpack("Y", made.__dlpack__(copy=True))
    shared = pb_utils.Tensor.from_dlpack("Y", made.__dlpack__(max_version=(1, 0), dl_device=(1, 0)))

    assert not np.shares_memory(copied.as_numpy(), array)
    assert np.shares_memory(shared.as_numpy(), array)
    with pytest.raises(BufferError, match="device"):
        made.__dlpack__(dl_device=(2, 0))


class OnGpu(Exporter):
    """A tensor on a GPU, of a framework in the manner of torch."""

    def __init__(self, array):
        super().__init__(None, (2, 0))
        self.array = array

    def cpu(self):
        return Exporter(self.array.__dlpack__())


class OnGpuWithNewExport(Exporter):
    def __init__(self, array):
        super().__init__(None, (2, 1))
        self.array = array

    def __dlpack__(self, *, stream, max_version, dl_device):
        assert dl_device == (1, 0)
        return self.array.__dlpack__(max_version=max_version)


@pytest.mark.parametrize("kind", [OnGpu, OnGpuWithNewExport])
def test_tensors_on_a_gpu_are_copied_to_the_cpu(kind):
    made = pb_utils.Tensor.from_dlpack("X", kind(np.arange(3)))

    assert made.is_cpu()
    assert made.as_numpy().tolist() == [0, 1, 2]


def test_tensors_that_stay_on_a_gpu_are_refused():
    with pytest.raises(pb_utils.TritonModelException, match="on a GPU"):
        pb_utils.Tensor.from_dlpack("X", Exporter(None, (2, 0)))


def test_other_devices_are_refused():
    with pytest.raises(pb_utils.TritonModelException, match="DLDevice type 12 is not support"):
        pb_utils.Tensor.from_dlpack("X", Exporter(None, (12, 0)))
