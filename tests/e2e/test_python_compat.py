"""Python models answer as with Triton: what the real one said when it was asked the same, with the same models.

Each case runs in a worker process and in a thread of the server. Texts are those of Triton 2.51, of which ours may go on.
"""

from __future__ import annotations

import json
import re
from collections.abc import Iterator
from pathlib import Path

import pytest

from python_models import DECOUPLED, PLUS_ONE, GrpcStream, PythonServer, Reply
from serve_process import running

pytestmark = pytest.mark.slow

TELLER = """
def describe(response):
    if response.has_error():
        return response.error().code().name, response.error().message()
    return [(output.name(), output.as_numpy().tolist()) for output in response.output_tensors()]

def made(**settings):
    x = pb_utils.Tensor("X", np.array([1, 2], np.float32))
    return pb_utils.InferenceRequest(
        **{"model_name": "plus_one", "inputs": [x], "requested_output_names": ["Y"]} | settings
    )

class TritonPythonModel:
    def initialize(self, args):
        self.args = args
        self.kept = []
    def execute(self, requests):
        (request,) = requests
        scope = globals() | {"self": self, "request": request}
        parameters = json.loads(request.parameters())
        try:
            exec(parameters.get("before", ""), scope)
            text = str(eval(parameters["tell"], scope))
        except BaseException as error:
            text = f"{type(error).__name__}: {error}"
        return [reply(np.array([text.encode()], object))]
"""
"""Answers with the text of the expression in the parameter ``tell``, or with what it raised."""
TOOL = """
def texts(*values):
    return reply(np.array([value.encode() for value in values], object))

def failure(text):
    return pb_utils.InferenceResponse(error=pb_utils.TritonError(text))

class TritonPythonModel:
    def execute(self, requests):
        (request,) = requests
        scope = globals() | {"sender": request.get_response_sender(), "answers": None, "request": request}
        exec(json.loads(request.parameters())["code"], scope)
        return scope["answers"]
"""
"""Returns what the code in the parameter ``code`` leaves in ``answers``."""
ASYNC = """
class TritonPythonModel:
    async def execute(self, requests):
        x = pb_utils.Tensor("X", np.array([1], np.float32))
        call = pb_utils.InferenceRequest(model_name="plus_one", inputs=[x], requested_output_names=["Y"])
        return [await self.answer(call) for _ in requests]
    async def answer(self, call):
        values = []
        for response in await call.async_exec(decoupled=True):  # a plain one: what models have
            values += pb_utils.get_output_tensor_by_name(response, "Y").as_numpy().tolist()
        responses = await asyncio.gather(call.async_exec(), call.async_exec())
        return reply(values + [pass_on(response).output_tensors()[0].as_numpy()[0] for response in responses])
"""
WAITS = """
class TritonPythonModel:
    async def execute(self, requests):
        for request in requests:
            await asyncio.sleep(float(x_of(request)[0]))
            request.get_response_sender().send(reply(x_of(request)), flags=1)
"""
ASKS_WAITS = """
class TritonPythonModel:
    async def execute(self, requests):
        await asyncio.gather(*map(self.run, requests))
    async def run(self, request):
        sender = request.get_response_sender()
        x = pb_utils.Tensor("X", x_of(request))
        call = pb_utils.InferenceRequest(model_name="waits", inputs=[x], requested_output_names=["Y"])
        for response in await call.async_exec(decoupled=True):
            sender.send(pass_on(response))
        sender.send(flags=1)
"""
IN_THREAD = 'parameters { key: "EXECUTION_MODE" value { string_value: "thread" } }'
FAILED = "Failed to process the request(s) for model '{name}_0', message: "


class Models:
    """A server with the models of these tests, all in one mode."""

    def __init__(self, server: PythonServer, mode: str) -> None:
        self.server = server
        more = IN_THREAD if mode == "thread" else ""
        self.more = more
        for name, code, config in (
            ("plus_one", PLUS_ONE, ""),
            ("teller", TELLER, ""),
            ("tool", TOOL, ""),
            ("sender", TOOL, DECOUPLED),
            ("async", ASYNC, ""),
            ("waits", WAITS, DECOUPLED),
            ("asks_waits", ASKS_WAITS, DECOUPLED),
        ):
            server.add(name, code, f"{config} {more}")

    def tell(self, expression: str, before: str = "") -> str:
        reply = self.server.infer("teller", 1, 2, parameters={"tell": expression, "before": before})
        return str(reply.values[0])

    def tool(self, code: str) -> Reply:
        return self.server.infer("tool", 1, 2, parameters={"code": code})


@pytest.fixture(scope="module", params=["process", "thread"])
def models(tmp_path_factory: pytest.TempPathFactory, request: pytest.FixtureRequest) -> Iterator[Models]:
    with running(PythonServer(tmp_path_factory.mktemp(request.param))) as server:
        yield Models(server, request.param)


@pytest.mark.parametrize(
    ("expression", "told"),
    [
        # Names and messages may be elements of a BYTES tensor.
        ("pb_utils.Tensor(b'ab', np.ones(1)).name()", "ab"),
        ("pb_utils.TritonError(b'x\\xc3\\xa9').message()", "xé"),
        ("describe(made(model_name=b'plus_one', requested_output_names=[b'Y']).exec())", "[('Y', [2.0, 3.0])]"),
        ("made(request_id=b'a').request_id()", "a"),
        ("made(correlation_id=b's')", "TritonModelException: Correlation ID must be integer or string"),
        ("pb_utils.Logger.log_info(b'bytes')", "None"),
        # Numbers may be numpy's.
        ("made(correlation_id=np.int64(4)).correlation_id()", "TritonModelException: Correlation ID must be integer or string"),
        ("made(timeout=np.uint64(3), flags=np.int32(1)).timeout()", "3"),
        # Tensors.
        ("pb_utils.Tensor('', np.ones(1))", "TritonModelException: Tensor name cannot be an empty string."),
        ("pb_utils.Tensor('x', np.array(['a']))", "TritonModelException: NumPy dtype is not supported."),
        ("pb_utils.Tensor('x', np.array([1j]))", "TritonModelException: NumPy dtype is not supported."),
        ("pb_utils.Tensor('x', np.ones((2, 3)).T).shape()", "[3, 2]"),
        ("pb_utils.Tensor('x', np.array(3.0)).shape()", "[]"),
        ("pb_utils.Tensor('x', np.zeros((0, 3))).shape()", "[0, 3]"),
        ("pb_utils.Tensor('x', np.array([b'x'], object)).to_dlpack()", "TritonModelException: DLPack does not have support"),
        ("pb_utils.Tensor.from_dlpack('y', [1])", "TritonModelException: Provided tensor is not supported. Tensor must be"),
        ("pb_utils.get_input_tensor_by_name(request, 'NOPE')", "None"),
        # The module's functions.
        ("pb_utils.triton_string_to_numpy('TYPE_BF16')", "KeyError: 'TYPE_BF16'"),
        ("pb_utils.serialize_byte_tensor(np.array([], object))", "()"),
        ("pb_utils.serialize_byte_tensor(np.array([1.5]))", "None"),
        ("pb_utils.get_input_config_by_name({}, 'X')", "None"),
        ("pb_utils.using_decoupled_model_transaction_policy({})", "False"),
        # Errors and their codes.
        ("pb_utils.TritonError('x', pb_utils.TritonError.NOT_FOUND).code()", "__ErrorCode.NOT_FOUND"),
        ("pb_utils.TritonError('x').code() == pb_utils.TritonError.INTERNAL", "True"),
        ("isinstance(pb_utils.TritonError('x'), Exception)", "False"),
        ("pb_utils.TritonError('x', 3)", "TypeError: "),
        ("pb_utils.Logger.LogLevel.INFO == pb_utils.Logger.INFO", "True"),
        ("pb_utils.Logger.log('x', 1)", "TypeError: "),
        # Requests.
        ("request.flags(), request.timeout(), request.correlation_id()", "(0, 0, 0)"),
        ("request.requested_output_names(), request.is_cancelled()", "({'Y'}, False)"),
        ("made(parameters={'b': True, 'a': 1}).parameters()", '{"b": true, "a": 1}'),
        ("made(parameters={'f': 1.5})", "TritonModelException: Expect parameters values to have type bool/int/str, found type"),
        ("made(parameters={1: 2})", "TritonModelException: Expect parameters keys to have type str, found type"),
        ("made(inputs=[None])", "TritonModelException: Input tensor for request with id '' and model name 'plus_one' should not"),
        ("made(requested_output_names=[''])", "TritonModelException: Requested output name for request with id ''"),
        ("made(requested_output_names=['a', 'a']).requested_output_names()", "{'a'}"),
        ("made(inputs=(), requested_output_names=('a',)).inputs()", "[]"),
        ("made(model_version=1.0)", "TypeError: "),
        ("made(timeout=-1)", "TypeError: |ValueError: "),
        # Responses.
        ("pb_utils.InferenceResponse([None])", "TritonModelException: Output tensor for inference response should not be empty."),
        ("pb_utils.InferenceResponse([1])", "TypeError: "),
        ("pb_utils.InferenceResponse(error='e')", "TypeError: "),
        ("request.get_response_sender().send()", "TritonModelException: Inference Response object must be provided when the"),
        ("request.get_response_sender().send(flags=5)", "TritonModelException: Unable to send response. Unsupported flag"),
        ("request.get_response_sender().send(flags=1)", "TritonModelException: Unable to send response. Non-decoupled model cannot"),
        # Other models.
        ("describe(made().exec())", "[('Y', [2.0, 3.0])]"),
        ("describe(made(requested_output_names=[]).exec())", "[('Y', [2.0, 3.0])]"),
        ("[describe(response) for response in made().exec(decoupled=True)]", "[[('Y', [2.0, 3.0])]]"),
        ("made().async_exec()", "RuntimeError: no running event loop"),
        ("pb_utils.is_model_ready('plus_one')", "True"),
        ("pb_utils.is_model_ready('plus_one', '2')", "False"),
        ("pb_utils.is_model_ready('nope')", "False"),
        ("pb_utils.is_model_ready('plus_one', '-1')", "TritonModelException: Failed to check model readiness: failed to get"),
        ("pb_utils.load_model('nope')", "TritonModelException: Failed to load model: failed to load 'nope', failed to poll"),
        ("pb_utils.load_model('plus_one', files=[])", "TritonModelException: failed to load model 'plus_one', files should be"),
    ],
)  # fmt: skip
def test_what_models_see_is_what_triton_shows_them(models, expression, told):
    assert re.match("|".join(map(re.escape, told.split("|"))), models.tell(expression)), models.tell(
        expression
    )


@pytest.mark.parametrize(
    ("expression", "reason"),
    [
        (
            "made(model_name='nope').exec()",
            "Failed for execute the inference request. Model 'nope' is not ready.",
        ),
        ("next(made(model_name='nope').exec(decoupled=True))", "nope"),
        (
            "made(model_version=7).exec()",
            "Failed for execute the inference request. Model 'plus_one' is not ready.",
        ),
        (
            "made(model_name='sender').exec()",
            "Model sender is using the decoupled. The current BLS request call",
        ),
        (
            "made(requested_output_names=['NO']).exec()",
            "unexpected inference output 'NO' for model 'plus_one'",
        ),
        (
            "made(inputs=[]).exec()",
            "expected 1 inputs but got 0 inputs for model 'plus_one'. Got input(s) [], but missing",
        ),
    ],
)
def test_what_cannot_be_asked_is_an_answer(models, expression, reason):
    told = models.tell(f"describe({expression})")

    assert told.startswith(("('INTERNAL', 'Model ", "('INTERNAL', \"Model ")), told
    assert " - Error when running inference: " in told
    assert reason in told


@pytest.mark.parametrize(
    ("operation", "told"),
    [
        ("counter.increment(2) or counter.value()", "2.0"),
        ("counter.increment(-1)", "TritonModelException: Failed to increment metric value: .*can only be incremented monotonic"),
        ("counter.set(1)", "TritonModelException: Failed to set metric value: .*TRITONSERVER_METRIC_KIND_COUNTER does not sup"),
        ("counter.observe(1)", "TritonModelException: Failed to observe metric value: .*KIND_COUNTER does not support Observe"),
        ("gauge.increment(-5) or gauge.set(2) or gauge.value()", "2.0"),
        ("family.Metric(labels=[])", "TritonModelException: Failed to create metric. Labels must be a dictionary."),
        ("family.Metric(buckets=[1.0])", "TritonModelException: Failed to create metric. Unexpected buckets found."),
        ("family.Metric(labels={'1bad': 'x'})", "TritonModelException: Error when creating Metric: "),
        ("histograms.Metric()", "TritonModelException: Failed to create metric. Missing required buckets."),
        ("histograms.Metric(buckets=(1, 2))", "TritonModelException: Failed to create metric. Buckets must be a list."),
        ("histograms.Metric(buckets=[3, 1])", "TritonModelException: Error when creating Metric: "),
        ("pb_utils.MetricFamily('1 bad', 'd', family.GAUGE)", "TritonModelException: Error when creating MetricFamily: "),
    ],
)  # fmt: skip
def test_metrics_of_models(models, operation, told):
    before = """
family = pb_utils.MetricFamily("c", "d", pb_utils.MetricFamily.COUNTER)
gauges = pb_utils.MetricFamily("g", "d", pb_utils.MetricFamily.GAUGE)
histograms = pb_utils.MetricFamily("h", "d", pb_utils.MetricFamily.HISTOGRAM)
counter, gauge = family.Metric(labels={"l": "v"}), gauges.Metric()
"""
    assert re.match(told, models.tell(operation, before))


@pytest.mark.parametrize(
    ("code", "status", "text"),
    [
        ("answers = 5", 500, "{failed}Expected a list in the execute return, found type '<class 'int'>'."),
        ("answers = []", 500, "{failed}Number of InferenceResponse objects do not match the number of InferenceRequest objects."),
        ("answers = ['a']", 500, "{failed}Expected an 'InferenceResponse' object in the execute function return list, found type"),
        ("raise ValueError('boom é\\nline')", 500, "{failed}ValueError: boom é\nline\n\nAt:\n  <string>(1): <module>\n"),
        ("raise SystemExit(4)", 500, "{failed}SystemExit: 4\n\nAt:\n"),
        ("import asyncio; raise asyncio.CancelledError()", 500, "{failed}CancelledError: "),
        ("answers = [reply(np.array([1j]))]", 500, "{failed}TritonModelException: NumPy dtype is not supported."),
        ("this is no Python", 500, "{failed}SyntaxError: invalid syntax (<string>, line 1)"),
        *(
            (
                f"answers = [pb_utils.InferenceResponse(error=pb_utils.TritonError('te é', pb_utils.TritonError.{code}))]",
                status,
                "te é",
            )
            for code, status in (
                ("UNKNOWN", 400),
                ("INTERNAL", 500),
                ("NOT_FOUND", 404),
                ("INVALID_ARG", 400),
                ("UNAVAILABLE", 503),
                ("UNSUPPORTED", 501),
                ("ALREADY_EXISTS", 400),
                ("CANCELLED", 400),
            )
        ),
    ],
)  # fmt: skip
def test_errors_of_models(models, code, status, text):
    reply = models.tool(code)

    assert reply.status == status
    assert reply.error.startswith(text.format(failed=FAILED.format(name="tool")))


@pytest.mark.parametrize(
    ("code", "outputs"),
    [
        ("answers = [reply([1.5])]", [("Y", "FP64", [1], [1.5])]),
        ("answers = [reply(np.ones((2, 1), np.int8))]", [("Y", "INT8", [2, 1], [1, 1])]),
        ("answers = [reply(np.float32(3) * np.ones((), np.float32))]", [("Y", "FP32", [], [3.0])]),
        ("answers = [reply(np.zeros(0, np.float32))]", [("Y", "FP32", [0], [])]),
        ("answers = [texts('é', '')]", [("Y", "BYTES", [2], ["é", ""])]),
        ("answers = [reply([1.5], 'NOT_DECLARED')]", []),
        ("answers = [pb_utils.InferenceResponse([])]", []),
        ("sender.send(reply([2.5]), flags=1)", [("Y", "FP64", [1], [2.5])]),
        ("sender.send(reply([2.5]), flags=1); answers = [None]", [("Y", "FP64", [1], [2.5])]),
        ("sender.send(reply([2.5])); sender.send(flags=1)", [("Y", "FP64", [1], [2.5])]),
    ],
)
def test_outputs_are_what_the_model_made(models, code, outputs):
    """Types and shapes are not those of the config; what nobody asked for is dropped."""
    reply = models.tool(code)

    assert reply.status == 200
    found = [(o["name"], o["datatype"], o["shape"], o["data"]) for o in reply.body.get("outputs", [])]
    assert found == outputs


def test_parameters_as_models_get_them(models):
    asked = {"tell": "request.parameters()", "a": 1, "b": True, "d": 1.5, "é": "ü"}
    text = models.server.infer("teller", 1, parameters=asked).values[0]

    assert text == '{"tell":"request.parameters()","a":1,"b":true,"d":1.5,"é":"ü"}'
    assert json.loads(text) == asked


def test_async_models(models):
    assert models.server.infer("async", 1).values == [2, 2, 2]


def test_an_async_model_that_reads_streams_plainly_still_overlaps(models):
    """Each of its requests waits 0.3 s in another model; one after the other they would take four times that."""
    with GrpcStream(models.server) as stream:
        for _ in range(4):
            stream.ask("asks_waits", 0.3)
        answers = [stream.take(timeout_s=1.1) for _ in range(4)]

    assert answers == [[pytest.approx(0.3)]] * 4


@pytest.mark.parametrize(
    ("code", "answers"),
    [
        ("[sender.send(word(i), flags=int(i == 2)) for i in range(3)]", [[0], [1], [2]]),
        ("sender.send(word(1)); sender.send(flags=1)", [[1]]),
        ("raise ValueError('boom')", ["{failed}ValueError: boom"]),
        ("sender.send(word(1)); raise ValueError('later')", [[1], "{failed}ValueError: later"]),
        ("sender.send(word(1), flags=1); raise ValueError('after')", [[1]]),
        (
            "[sender.send(r) for r in (word(1), failure('te'), word(2))]; sender.send(flags=1)",
            [[1], "te", [2]],
        ),
        ("sender.send(word(1)); answers = [word(2)]", [[1], "{failed}Python model 'sender_0' is using the decoupled mode"]),
        ("answers = 5", ["{failed}Python model 'sender_0' is using the decoupled mode and the execute function must return"]),
        ("sender.send()", ["{failed}TritonModelException: Inference Response object must be provided when the response"]),
        ("sender.send(word(1), flags=7)", ["{failed}TritonModelException: Unable to send response. Unsupported flag"]),
        ("sender.send(flags=1); sender.send(word(1))", []),
    ],
)  # fmt: skip
def test_streams_of_decoupled_models(models, code, answers):
    with GrpcStream(models.server) as stream:
        stream.ask("sender", 1, parameters={"code": code})
        for expected in answers:
            found = stream.take()
            if isinstance(expected, str):
                assert str(found.message()).startswith(expected.format(failed=FAILED.format(name="sender")))
            else:
                assert found == expected
        stream.ask("sender", 1, parameters={"code": "sender.send(word(99), flags=1)"})
        assert stream.take() == [99]


def test_generate(models):
    stream = "[sender.send(word(i)) for i in range(2)]; sender.send(flags=1)"

    one = models.server.post("/v2/models/tool/generate", {"X": [1], "code": "answers = [texts('word')]"})
    several = models.server.post("/v2/models/sender/generate_stream", {"X": [1], "code": stream})
    unread = models.server.post("/v2/models/tool/generate", {"X": [1], "code": "raise ValueError('boom')"})

    assert one.body == {"Y": "word", "model_name": "tool", "model_version": "1"}
    events = [json.loads(event.removeprefix(b"data: ")) for event in several.body.split(b"\n\n") if event]
    assert [event["Y"] for event in events] == [0.0, 1.0]
    assert unread.error.startswith(FAILED.format(name="tool") + "ValueError: boom\n\nAt:\n")


@pytest.mark.parametrize(
    ("body", "text"),
    [
        ("def initialize(self, args): raise ValueError('no luck')", "ValueError: no luck\n\nAt:\n  {file}("),
        ("def initialize(self, args): sys.exit(3)", "SystemExit: 3\n\nAt:\n  {file}("),
        ("def initialize(self): pass", "TypeError: TritonPythonModel.initialize() takes 1 positional argument but 2 were given"),
        ("def __init__(self): raise KeyError('k')", "KeyError: 'k'\n\nAt:\n  {file}("),
        ("import surely_not_there", "ModuleNotFoundError: No module named 'surely_not_there'\n\nAt:\n  {file}("),
        ("def f(:", "SyntaxError: invalid syntax (model.py, line "),
        (
            "def initialize(self, args): ask('plus_one', [1])",
            "TritonModelException: BLS is only supported during the 'execute' function.\n\nAt:\n  {file}(",
        ),
        (
            "@staticmethod\n    def auto_complete_config(config): pass",
            "auto_complete_config function in model 'bad' must return a valid pb.ModelConfig object.",
        ),
        (
            "@staticmethod\n    def auto_complete_config(config):\n        config.set_max_batch_size(-1)",
            "ValueError: configuration specified max_batch_size 0, but in auto-complete-config function for model 'bad'",
        ),
        (
            "@staticmethod\n    def auto_complete_config(config): config.add_input({'name': 'X', 'dims': [1]})",
            "ValueError: input 'X' in auto-complete-config function for model 'bad' is missing 'data_type' property.",
        ),
    ],
)  # fmt: skip
def test_models_that_do_not_load(models, body, text):
    code = f"class TritonPythonModel:\n    {body}\n    def execute(self, requests): pass\n"
    reply = models.server.write_and_load("bad", code, models.more)

    assert reply.status == 400
    file = Path(models.server.root / "bad" / "1" / "model.py")
    start = "load failed for model 'bad': version 1 is at UNAVAILABLE state: "
    assert reply.error.startswith(start + text.format(file=file))
