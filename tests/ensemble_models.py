"""Repositories of small Python models and ensembles of them, of every form that an ensemble can have.

The models do what their requests say: an ensemble hands its request's parameters to its members, so that a parameter named
for a member is the code that this member runs.
"""

from __future__ import annotations

import json
import re
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from textwrap import dedent
from typing import Any

from python_models import DECOUPLED, HEAD, PythonServer, Reply

MEMBER = """
class TritonPythonModel:
    def initialize(self, args):
        self.name = args["model_name"]
    def execute(self, requests):
        return [self.answer(request) for request in requests]
    def answer(self, request):
        code = json.loads(request.parameters() or "{}").get(self.name)
        if code is None:
            return reply(x_of(request) + 1)
        scope = globals() | {"x": x_of(request), "request": request, "self": self, "answer": None}
        exec(code, scope)
        return scope["answer"]
"""
"""Adds 1 to X; or runs the code in the parameter named as the model, which sets ``answer``."""
SENDER = """
class TritonPythonModel:
    def initialize(self, args):
        self.name = args["model_name"]
    def execute(self, requests):
        for request in requests:
            sender = request.get_response_sender()
            code = json.loads(request.parameters() or "{}").get(self.name, "for value in x: send(value)")
            x = x_of(request)
            send = lambda *values, name="Y": sender.send(reply(np.array(values, np.float32), name))
            exec(code, globals() | locals())
            sender.send(flags=pb_utils.TRITONSERVER_RESPONSE_COMPLETE_FINAL)
"""
"""Sends each element of X; or runs the code in the parameter named as the model. The final flag comes by itself."""
TELLER = """
class TritonPythonModel:
    def execute(self, requests):
        return [reply(np.array([self.tell(request).encode()], object)) for request in requests]
    def tell(self, request):
        seen = {
            "id": request.request_id(),
            "correlation_id": request.correlation_id(),
            "flags": request.flags(),
            "timeout": request.timeout(),
            "parameters": json.loads(request.parameters() or "{}"),
            "outputs": sorted(request.requested_output_names()),
            "inputs": {tensor.name(): [*tensor.shape()] for tensor in request.inputs()},
        }
        return json.dumps(seen, sort_keys=True)
"""
"""Tells what came with the request."""
IDENTITY = """
class TritonPythonModel:
    def execute(self, requests):
        return [self.answer(request) for request in requests]
    def answer(self, request):
        return pb_utils.InferenceResponse([
            pb_utils.Tensor(tensor.name().replace("X", "Y"), tensor.as_numpy()) for tensor in request.inputs()
        ])
"""
"""Gives every input X… back as Y…; inputs that are absent leave their outputs out."""
SUM = """
class TritonPythonModel:
    def execute(self, requests):
        return [reply(sum(tensor.as_numpy() for tensor in request.inputs())) for request in requests]
"""
"""Adds up all inputs that are there."""

IN_THREAD = 'parameters { key: "EXECUTION_MODE" value { string_value: "thread" } }'
X = "X:FP32:-1"
Y = "Y:FP32:-1"
Step = tuple[str, Mapping[str, str], Mapping[str, str]]


def tensor_text(spec: str) -> str:
    """Return the config of the tensor ``NAME:TYPE:DIM,DIM[:optional]``."""
    name, datatype, dims, *more = spec.split(":")
    kind = "STRING" if datatype == "BYTES" else datatype
    optional = " optional: true" if more else ""
    return f'{{ name: "{name}" data_type: TYPE_{kind} dims: [ {dims} ]{optional} }}'


def tensors_text(inputs: Sequence[str], outputs: Sequence[str]) -> str:
    return "".join(
        [f"input {tensor_text(spec)}\n" for spec in inputs]
        + [f"output {tensor_text(spec)}\n" for spec in outputs]
    )


class Repository:
    """A folder of models to be written. Those for which ``in_thread`` holds run in threads, the others in processes."""

    def __init__(self, root: Path, in_thread: Callable[[str], bool] = lambda _name: False) -> None:
        self.root = root
        self._in_thread = in_thread

    def model(
        self,
        name: str,
        code: str = MEMBER,
        *,
        inputs: Sequence[str] = (X,),
        outputs: Sequence[str] = (Y,),
        max_batch_size: int = 0,
        more: str = "",
    ) -> None:
        """Write a Python model."""
        folder = self.root / name / "1"
        folder.mkdir(parents=True, exist_ok=True)
        (folder / "model.py").write_text(HEAD + dedent(code), "utf-8")
        more += IN_THREAD if self._in_thread(name) else ""
        text = f'backend: "python"\nmax_batch_size: {max_batch_size}\n{tensors_text(inputs, outputs)}{more}\n'
        (self.root / name / "config.pbtxt").write_text(text, "utf-8")

    def ensemble(self, name: str, text: str) -> None:
        """Write an ensemble with the config ``text``."""
        (self.root / name / "1").mkdir(parents=True, exist_ok=True)
        (self.root / name / "config.pbtxt").write_text(text, "utf-8")


def step_text(step: Step, version: int = -1) -> str:
    model, inputs, outputs = step
    maps = [f'input_map {{ key: "{key}" value: "{value}" }}' for key, value in inputs.items()]
    maps += [f'output_map {{ key: "{key}" value: "{value}" }}' for key, value in outputs.items()]
    return f'step {{ model_name: "{model}" model_version: {version} {" ".join(maps)} }}'


def ensemble_text(
    steps: Sequence[Step],
    *,
    inputs: Sequence[str] = (X,),
    outputs: Sequence[str] = (Y,),
    max_batch_size: int = 0,
    more: str = "",
    scheduling: str = "",
) -> str:
    """Return the config of an ensemble."""
    lines = "\n".join(map(step_text, steps))
    return (
        f'platform: "ensemble"\nmax_batch_size: {max_batch_size}\n{tensors_text(inputs, outputs)}'
        f"ensemble_scheduling {{\n{lines}\n{scheduling}\n}}\n{more}\n"
    )


def chain(
    *models: str, inputs: Sequence[str] = (X,), outputs: Sequence[str] = (Y,), **settings: object
) -> str:
    """Return the config of an ensemble of models from X to Y, one behind the other."""
    names = ["X", *(f"t{index}" for index in range(1, len(models))), "Y"]
    steps: list[Step] = [
        (model, {"X": names[index]}, {"Y": names[index + 1]}) for index, model in enumerate(models)
    ]
    return ensemble_text(steps, inputs=inputs, outputs=outputs, **settings)  # type: ignore[arg-type]


DATATYPES = (
    "BOOL",
    "INT8",
    "INT16",
    "INT32",
    "INT64",
    "UINT8",
    "UINT16",
    "UINT32",
    "UINT64",
    "FP16",
    "FP32",
    "FP64",
    "BYTES",
)
"""Those that numpy has."""


def build_forms(models: Repository) -> None:
    """Write members and an ensemble of every form."""
    for name in ("a", "b", "c", "d"):
        models.model(name)
    models.model("sum", SUM, inputs=("A:FP32:-1", "B:FP32:-1"))
    models.model("maybe_sum", SUM, inputs=("A:FP32:-1:optional", "B:FP32:-1:optional"))
    models.model("teller", TELLER, outputs=("Y:BYTES:1",))
    models.model("pair", PAIR, outputs=("Y1:FP32:-1", "Y2:FP32:-1"))
    models.ensemble("chain", chain("a", "b", "c"))
    models.ensemble(
        "diamond",
        ensemble_text(
            [
                ("sum", {"A": "left", "B": "right"}, {"Y": "Y"}),
                ("b", {"X": "top"}, {"Y": "left"}),
                ("c", {"X": "top"}, {"Y": "right"}),
                ("a", {"X": "X"}, {"Y": "top"}),
            ]
        ),
    )
    models.ensemble(
        "outer", ensemble_text([("chain", {"X": "X"}, {"Y": "t"}), ("d", {"X": "t"}, {"Y": "Y"})])
    )
    models.ensemble(
        "two",
        ensemble_text(
            [("a", {"X": "X"}, {"Y": "Y1"}), ("b", {"X": "Y1"}, {"Y": "Y2"})],
            outputs=("Y1:FP32:-1", "Y2:FP32:-1"),
        ),
    )
    models.ensemble(
        "fork",
        ensemble_text(
            [("a", {"X": "X"}, {"Y": "Y1"}), ("b", {"X": "X"}, {"Y": "Y2"})],
            outputs=("Y1:FP32:-1", "Y2:FP32:-1"),
        ),
    )
    models.ensemble(
        "optional",
        ensemble_text(
            [("maybe_sum", {"A": "A", "B": "B"}, {"Y": "t"}), ("a", {"X": "t"}, {"Y": "Y"})],
            inputs=("A:FP32:-1", "B:FP32:-1:optional"),
        ),
    )
    models.ensemble(
        "optional_both",
        ensemble_text(
            [("maybe_sum", {"A": "A", "B": "B"}, {"Y": "Y"})],
            inputs=("A:FP32:-1:optional", "B:FP32:-1:optional"),
        ),
    )
    # Its second input goes to a member that needs it.
    models.ensemble(
        "optional_needed",
        ensemble_text(
            [("a", {"X": "A"}, {"Y": "Y1"}), ("b", {"X": "B"}, {"Y": "Y2"})],
            inputs=("A:FP32:-1", "B:FP32:-1:optional"),
            outputs=("Y1:FP32:-1", "Y2:FP32:-1"),
        ),
    )
    models.ensemble(
        "pairs",
        ensemble_text(
            [
                ("pair", {"X": "X"}, {"Y1": "Y1", "Y2": "t"}),
                ("b", {"X": "t"}, {"Y": "Y2"}),
            ],
            outputs=("Y1:FP32:-1", "Y2:FP32:-1"),
        ),
    )
    models.ensemble(
        "pairs_optional",
        ensemble_text(
            [
                ("pair", {"X": "X"}, {"Y1": "t1", "Y2": "t2"}),
                ("maybe_sum", {"A": "t1", "B": "t2"}, {"Y": "Y"}),
            ],
        ),
    )
    models.ensemble("tell", chain("teller", outputs=("Y:BYTES:1",)))
    models.ensemble("a_tell", chain("a", "teller", outputs=("Y:BYTES:1",)))
    models.ensemble("a_b_tell", chain("a", "b", "teller", outputs=("Y:BYTES:1",)))
    models.ensemble("outer_tell", chain("chain", "a_tell", outputs=("Y:BYTES:1",)))
    two = {"inputs": ("X:FP32:2",), "outputs": ("Y:FP32:2",)}
    models.ensemble("counted", chain("b4", "b4", max_batch_size=4, **two))
    models.ensemble("counted_failure", chain("a", "d"))
    build_labels(models)
    build_batching(models)
    build_datatypes(models)
    build_streams(models)
    build_calls(models)


PAIR = """
class TritonPythonModel:
    def execute(self, requests):
        return [self.answer(request) for request in requests]
    def answer(self, request):
        wanted = json.loads(request.parameters() or "{}").get("pair", "Y1 Y2").split()
        return pb_utils.InferenceResponse([pb_utils.Tensor(name, x_of(request) + int(name[1:])) for name in wanted])
"""
"""Gives X + 1 as Y1 and X + 2 as Y2; only those that the parameter ``pair`` names, if it is there."""


def build_labels(models: Repository) -> None:
    """Write a model with class labels, an ensemble of it, one of that, and one with labels of its own."""
    config = {"inputs": ("X:FP32:3",), "outputs": ("Z:FP32:3",)}
    step: Step = ("labelled", {"X": "X"}, {"Y": "Z"})
    models.model("labelled", inputs=config["inputs"], outputs=("Y:FP32:3",))
    models.ensemble("of_labelled", ensemble_text([step], **config))
    models.ensemble("of_of_labelled", ensemble_text([("of_labelled", {"X": "X"}, {"Z": "Z"})], **config))
    models.ensemble("own_labels", ensemble_text([step], **config))
    for name, labels in (("labelled", "a b c"), ("own_labels", "eins zwei drei")):
        path = models.root / name / "config.pbtxt"
        path.write_text(
            path.read_text()
            .replace("dims: [ 3 ] }", 'dims: [ 3 ] label_filename: "labels" }')
            .replace('label_filename: "labels" }', "}", 1)
        )
        (models.root / name / "labels").write_text(labels.replace(" ", "\n"))


def build_batching(models: Repository) -> None:
    """Write ensembles between models that batch (``b4``) and those that don't (``nb``)."""
    models.model("b4", SHAPED, inputs=("X:FP32:2",), outputs=("Y:FP32:2", "S:INT64:2"), max_batch_size=4)
    models.model("nb", SHAPED, inputs=("X:FP32:2",), outputs=("Y:FP32:2", "S:INT64:1"))
    models.model("nb_any", SHAPED, inputs=("X:FP32:-1,2",), outputs=("Y:FP32:-1,2", "S:INT64:2"))
    shapes = ("Y:FP32:2", "S1:INT64:-1", "S2:INT64:-1")
    for name, first, second, size in (
        ("b4_nb", "b4", "nb", 0),
        ("b4_nb_1", "b4", "nb", 1),
        ("nb_b4", "nb", "b4", 0),
        ("b4_b4", "b4", "b4", 4),
        ("b4_b4_2", "b4", "b4", 2),
        ("b4_b4_0", "b4", "b4", 0),
        ("b4_any", "b4", "nb_any", 4),
    ):
        steps: list[Step] = [
            (first, {"X": "X"}, {"Y": "t", "S": "S1"}),
            (second, {"X": "t"}, {"Y": "Y", "S": "S2"}),
        ]
        text = ensemble_text(steps, inputs=("X:FP32:2",), outputs=shapes, max_batch_size=size)
        models.ensemble(name, text)


SHAPED = """
class TritonPythonModel:
    def execute(self, requests):
        return [self.answer(request) for request in requests]
    def answer(self, request):
        x = x_of(request)
        shape = np.array(x.shape, np.int64)
        if x.ndim == 2 and x.shape[0] != 1:
            shape = np.tile(shape, (x.shape[0], 1))
        elif x.ndim == 2:
            shape = shape.reshape(1, 2)
        return pb_utils.InferenceResponse([pb_utils.Tensor("Y", x + 1), pb_utils.Tensor("S", shape)])
"""
"""Adds 1, and tells the shape in which X came, in each row of a batch."""


def build_datatypes(models: Repository) -> None:
    """Write an ensemble that hands tensors of each type through a model twice."""
    inputs = [f"X_{name}:{name}:-1:optional" for name in DATATYPES]
    outputs = [f"Y_{name}:{name}:-1" for name in DATATYPES]
    models.model("identity", IDENTITY, inputs=inputs, outputs=outputs)
    steps: list[Step] = [
        (
            "identity",
            {f"X_{t}": f"{before}_{t}" for t in DATATYPES},
            {f"Y_{t}": f"{after}_{t}" for t in DATATYPES},
        )
        for before, after in (("X", "t"), ("t", "Y"))
    ]
    models.ensemble("every_type", ensemble_text(steps, inputs=inputs, outputs=outputs))


def build_streams(models: Repository) -> None:
    """Write ensembles with decoupled members."""
    models.model("sender", SENDER, more=DECOUPLED)
    models.model("resender", SENDER, more=DECOUPLED)
    models.ensemble("stream", chain("sender", "a"))
    models.ensemble("a_stream", chain("a", "sender", "b"))
    models.ensemble("stream_stream", chain("sender", "resender"))
    models.ensemble("stream_of_stream", chain("stream", "b"))
    # One input of `sum` comes from the stream, the other from the request.
    models.ensemble(
        "stream_and_input",
        ensemble_text([("sender", {"X": "X"}, {"Y": "t"}), ("sum", {"A": "t", "B": "X"}, {"Y": "Y"})]),
    )
    models.ensemble(
        "stream_and_side",
        ensemble_text(
            [("sender", {"X": "X"}, {"Y": "Y1"}), ("a", {"X": "X"}, {"Y": "Y2"})],
            outputs=("Y1:FP32:-1", "Y2:FP32:-1"),
        ),
    )


def build_calls(models: Repository) -> None:
    """Write models that call ensembles, and ensembles of such models."""
    for name, callee in (("calls_chain", "chain"), ("calls_outer", "outer"), ("calls_itself", "of_itself")):
        models.model(name, CALLS.format(callee=callee))
    models.ensemble("of_bls", chain("a", "calls_chain"))
    models.ensemble("of_itself", chain("a", "calls_itself"))


CALLS = """
class TritonPythonModel:
    def execute(self, requests):
        return [pass_on(ask("{callee}", x_of(request))) for request in requests]
"""


IN_THREADS = {
    "process": "^$",
    "thread": ".",
    "mixed": "^(b|c|sum|sender|nb|calls_chain)$",
    "slow in thread": "^(short|late|ranked|slow|sender|calls_.*|lone)$",
}
"""By mode, the names of the models that run in threads."""


class EnsembleServer(PythonServer):
    """A server of what ``write`` puts into its repository; everything is loaded."""

    def __init__(self, root: Path, write: Callable[[Repository], None], *, mode: str = "process") -> None:
        (root / "models").mkdir()
        in_thread = IN_THREADS[mode]
        self.repository = Repository(root / "models", lambda name: bool(re.search(in_thread, name)))
        write(self.repository)
        super().__init__(root, "--load-model=*", "--allow-client-shm=true")

    def ask(
        self,
        name: str,
        inputs: Mapping[str, Sequence[Any]],
        *,
        outputs: Sequence[str] = (),
        parameters: Mapping[str, Any] | None = None,
        request_id: str = "",
    ) -> Reply:
        """Infer over HTTP; keys are ``NAME``, ``NAME:TYPE`` or ``NAME:TYPE:DIM,DIM``."""
        body: dict[str, Any] = {"inputs": [json_tensor(key, values) for key, values in inputs.items()]}
        if outputs:
            body["outputs"] = [{"name": output} for output in outputs]
        if parameters:
            body["parameters"] = parameters
        if request_id:
            body["id"] = request_id
        return self.post(f"/v2/models/{name}/infer", body)

    def told(self, name: str, **settings: Any) -> dict[str, Any]:
        """Return what the teller that the ensemble ends in was asked."""
        (output,) = self.ask(name, {"X": [1, 2]}, **settings).body["outputs"]
        seen: dict[str, Any] = json.loads(output["data"][0])
        return seen

    def load_ensemble(self, name: str, text: str) -> Reply:
        """Write an ensemble and load it."""
        self.repository.ensemble(name, text)
        return self.load(name)

    def numbers(self, name: str) -> dict[str, int]:
        """Return the counters of a model on the metrics page, and how many of its requests are pending."""
        reasons = {reason: self.count("nv_inference_request_failure", name, reason) for reason in REASONS}
        return {
            "success": self.count("nv_inference_request_success", name),
            "pending": self.count("nv_inference_pending_request_count", name),
            **{reason: count for reason, count in reasons.items() if count},
        }


REASONS = ("REJECTED", "CANCELED", "BACKEND", "OTHER")


def json_tensor(key: str, values: Sequence[Any]) -> dict[str, Any]:
    name, _, rest = key.partition(":")
    datatype, _, dims = (rest or "FP32").partition(":")
    shape = [int(dim) for dim in dims.split(",")] if dims else [len(values)]
    return {"name": name, "datatype": datatype, "shape": shape, "data": list(values)}


def outputs_of(reply: Reply) -> dict[str, list[Any]]:
    """Return the outputs' values by name, in order."""
    assert reply.status == 200, reply
    return {output["name"]: output["data"] for output in reply.body["outputs"]}
