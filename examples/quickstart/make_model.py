"""Write the example's model: OUTPUT = A + B, for vectors of any length. `onnx` is all it takes."""

from pathlib import Path

from onnx import TensorProto, helper, save

REPOSITORY = Path(__file__).resolve().parent / "models"


def main() -> None:
    """Write ``models/add/1/model.onnx``. No config file: the server reads names, types and shapes from the model."""
    path = REPOSITORY / "add" / "1" / "model.onnx"
    path.parent.mkdir(parents=True, exist_ok=True)
    shape = ["batch", "length"]
    graph = helper.make_graph(
        [helper.make_node("Add", ["A", "B"], ["OUTPUT"])],
        "add",
        [helper.make_tensor_value_info(name, TensorProto.FLOAT, shape) for name in ("A", "B")],
        [helper.make_tensor_value_info("OUTPUT", TensorProto.FLOAT, shape)],
    )
    save(helper.make_model(graph, opset_imports=[helper.make_opsetid("", 17)], ir_version=8), path)
    print(f"wrote {path}")


if __name__ == "__main__":
    main()
