"""What onnxruntime says about a file's tensors."""

from types import SimpleNamespace

from bireme.backends.onnxruntime.signature import read_node


def test_a_node_is_taken_over_with_its_dynamic_dimensions():
    node = SimpleNamespace(name="X", type="tensor(int64)", shape=["batch", None, 3, -1, 0])

    tensor = read_node(node)

    assert (tensor.name, tensor.datatype, tensor.shape) == ("X", "INT64", (-1, -1, 3, -1, 0))
    assert tensor.can_batch
