"""Ensembles answer as with Triton: what the real one said when it was asked the same, with the same models.

Each case runs with the members in processes, in threads, and in both. Texts are those of Triton 2.51, which names no steps.
"""

from __future__ import annotations

import json
from collections.abc import Iterator

import numpy as np
import pytest
import tritonclient.grpc as grpc_client
import tritonclient.http as http_client

from ensemble_models import DATATYPES, EnsembleServer, build_forms, outputs_of
from python_models import GrpcStream, grpc_inputs
from serve_process import running
from shm_objects import ShmObjects

pytestmark = pytest.mark.slow


@pytest.fixture(scope="module", params=["process", "thread", "mixed"])
def server(
    tmp_path_factory: pytest.TempPathFactory, request: pytest.FixtureRequest
) -> Iterator[EnsembleServer]:
    with running(
        EnsembleServer(tmp_path_factory.mktemp(request.param), build_forms, mode=request.param)
    ) as server:
        yield server
        assert not [pending for pending in pending_counts(server) if pending], "something is left pending"


def pending_counts(server: EnsembleServer) -> list[int]:
    return [
        int(line.rpartition(" ")[2])
        for line in server.metrics().splitlines()
        if line.startswith("nv_inference_pending_request_count{")
    ]


@pytest.mark.parametrize(
    ("name", "outputs"),
    [
        ("chain", {"Y": [4, 5]}),
        ("diamond", {"Y": [6, 8]}),
        ("outer", {"Y": [5, 6]}),
        ("two", {"Y1": [2, 3], "Y2": [3, 4]}),
        ("fork", {"Y1": [2, 3], "Y2": [2, 3]}),
        ("of_bls", {"Y": [5, 6]}),
        ("calls_chain", {"Y": [4, 5]}),
        ("calls_outer", {"Y": [5, 6]}),
    ],
)
def test_forms(server, name, outputs):
    reply = server.ask(name, {"X": [1, 2]}, request_id="r1")

    assert outputs_of(reply) == outputs
    assert (reply.body["id"], reply.body["model_name"], reply.body["model_version"]) == ("r1", name, "1")
    with grpc_client.InferenceServerClient(server.grpc_address) as client:
        result = client.infer(name, grpc_inputs(1, 2), request_id="r1")
        assert {key: result.as_numpy(key).tolist() for key in outputs} == outputs
        assert result.get_response().id == "r1"


@pytest.mark.parametrize(
    ("name", "given", "outputs"),
    [
        ("optional", "AB", {"Y": [4]}),
        ("optional", "A", {"Y": [2]}),
        ("optional_both", "AB", {"Y": [3]}),
        ("optional_both", "A", {"Y": [1]}),
        ("optional_both", "B", {"Y": [2]}),
        ("optional_both", "", {"Y": [0]}),
        ("optional_needed", "AB", {"Y1": [2], "Y2": [3]}),
    ],
)
def test_optional_inputs(server, name, given, outputs):
    inputs = {"A": [1], "B": [2]}

    assert outputs_of(server.ask(name, {key: inputs[key] for key in given})) == outputs


def test_optional_input_that_a_member_needs(server):
    reply = server.ask("optional_needed", {"A": [1]})

    assert reply.status == 400
    assert reply.error.startswith("in ensemble 'optional_needed', step 1 ('b'): ")
    assert "expected 1 inputs but got 0 inputs for model 'b'. Got input(s) [], but missing" in reply.error


@pytest.mark.parametrize(
    ("name", "made", "asked", "outputs"),
    [
        ("pairs", "Y1 Y2", (), {"Y1": [2, 3], "Y2": [4, 5]}),
        ("pairs", "Y2", (), {"Y2": [4, 5]}),
        ("pairs", "Y2", ("Y1",), {}),
        ("pairs", "Y1", ("Y1",), {"Y1": [2, 3]}),
        ("pairs", "Y1", (), None),
        ("pairs", "", (), None),
        ("pairs_optional", "Y1 Y2", (), {"Y": [5, 7]}),
        ("pairs_optional", "Y1", (), {"Y": [2, 3]}),
        ("pairs_optional", "Y2", (), {"Y": [3, 4]}),
        ("pairs_optional", "", (), {"Y": [0]}),
    ],
)
def test_outputs_that_a_member_leaves_out_are_absent(server, name, made, asked, outputs):
    reply = server.ask(name, {"X": [1, 2]}, parameters={"pair": made}, outputs=asked)

    if outputs is None:
        assert reply.status == 400
        assert "expected 1 inputs but got 0 inputs for model 'b'" in reply.error
    else:
        assert outputs_of(reply) == outputs


@pytest.mark.parametrize(
    ("name", "shape", "shapes"),
    [
        ("b4_nb", "2", ([1, 2], [2])),
        ("b4_nb_1", "1,2", ([1, 2], [2])),
        ("nb_b4", "2", ([2], [1, 2])),
        ("b4_b4", "3,2", ([3, 2] * 3, [3, 2] * 3)),
        ("b4_b4_2", "2,2", ([2, 2] * 2, [2, 2] * 2)),
        ("b4_b4_0", "2", ([1, 2], [1, 2])),
        ("b4_any", "3,2", ([3, 2] * 3, [3, 2] * 3)),
        ("b4_nb", "1,2", "unexpected shape for input 'X' for model 'b4_nb'. Expected [2], got [1,2]."),
        ("b4_nb_1", "2,2", "inference request batch-size must be <= 1 for 'b4_nb_1'"),
        ("b4_b4", "2", "unexpected shape for input 'X' for model 'b4_b4'. Expected [-1,2], got [2]."),
        ("b4_b4_2", "3,2", "inference request batch-size must be <= 2 for 'b4_b4_2'"),
    ],
)
def test_batches_and_models_that_do_not_batch(server, name, shape, shapes):
    size = int(np.prod([int(dim) for dim in shape.split(",")]))
    reply = server.ask(name, {f"X:FP32:{shape}": range(size)})

    if isinstance(shapes, str):
        assert reply.status == 400
        assert shapes in reply.error
        return
    outputs = outputs_of(reply)
    assert (outputs["S1"], outputs["S2"]) == shapes
    assert outputs["Y"] == [value + 2 for value in range(size)]
    assert reply.body["outputs"][0]["shape"] == [int(dim) for dim in shape.split(",")]


def test_every_datatype(server):
    samples = {"BOOL": [True, False], "BYTES": ["a", "", "üü"]}
    for size in (3, 0):
        inputs = {f"X_{name}:{name}": samples.get(name, [1, 0, 100])[:size] for name in DATATYPES}
        reply = server.ask("every_type", inputs)
        found = {output["name"][2:]: output for output in reply.body["outputs"]}
        for name in DATATYPES:
            assert found[name]["datatype"] == name
            assert found[name]["data"] == samples.get(name, [1, 0, 100])[:size]


def test_megabytes(server):
    array = np.arange(1_500_000, dtype=np.float32)
    item = http_client.InferInput("X", [array.size], "FP32")
    item.set_data_from_numpy(array)
    with http_client.InferenceServerClient(f"127.0.0.1:{server.port}") as client:
        result = client.infer("chain", [item])

    np.testing.assert_array_equal(result.as_numpy("Y"), array + 3)


def test_shared_memory_on_both_sides(server):
    with ShmObjects() as objects, http_client.InferenceServerClient(f"127.0.0.1:{server.port}") as client:
        shm = objects.make(64)
        shm.memory[:8] = np.array([1, 2], np.float32).tobytes()
        client.register_system_shared_memory("region", shm.key, 64)
        item = http_client.InferInput("X", [2], "FP32")
        item.set_shared_memory("region", 8)
        wanted = http_client.InferRequestedOutput("Y")
        wanted.set_shared_memory("region", 8, 32)
        client.infer("chain", [item], outputs=[wanted])
        assert shm.memory[32:40] == np.array([4, 5], np.float32).tobytes()

        wanted.set_shared_memory("region", 4, 32)
        with pytest.raises(
            http_client.InferenceServerException, match="should be at least 8 bytes to hold the results"
        ):
            client.infer("chain", [item], outputs=[wanted])
        client.unregister_system_shared_memory("region")


@pytest.mark.parametrize("name", ["tell", "a_tell", "outer_tell"])
@pytest.mark.parametrize(
    ("parameters", "seen"),
    [
        (
            {"p": 1, "s": "text", "flag": True, "f": 1.5},
            {"parameters": {"p": 1, "s": "text", "flag": True, "f": 1.5}},
        ),
        ({"timeout": 12_345_678}, {"timeout": 12_345_678}),
        ({"priority": 3}, {}),
        ({"sequence_id": 42, "sequence_start": True}, {"correlation_id": 42, "flags": 1}),
        ({"sequence_id": "abc", "sequence_end": True}, {"correlation_id": "abc", "flags": 2}),
    ],
)
def test_members_are_told_what_the_ensemble_is(server, name, parameters, seen):
    plain = {"correlation_id": 0, "flags": 0, "timeout": 0, "parameters": {}}
    always = {"id": "r7", "inputs": {"X": [2]}, "outputs": ["Y"]}

    assert server.told(name, parameters=parameters, request_id="r7") == plain | always | seen


@pytest.mark.parametrize(
    ("said", "seen"),
    [
        ({"sequence_id": 77}, (77, 0)),
        ({"sequence_id": "new"}, ("new", 0)),
        ({"sequence_end": True}, (1, 2)),
        ({"sequence_id": 5, "sequence_start": True, "sequence_end": True}, (5, 3)),
        ({"mine": 3}, (1, 1)),
    ],
)
def test_sequence_that_a_members_response_names(server, said, seen):
    """It counts for all later steps and for the ensemble's response. Source: Triton ``ensemble_scheduler.cc``."""
    code = f"answer = pb_utils.InferenceResponse([pb_utils.Tensor('Y', x)], parameters={said})"
    asked = {"a": code, "sequence_id": 1, "sequence_start": True}
    reply = server.ask("a_b_tell", {"X": [1]}, parameters=asked)
    told = json.loads(outputs_of(reply)["Y"][0])

    assert (told["correlation_id"], told["flags"]) == seen
    if "mine" not in said:
        flags = {"sequence_start": bool(seen[1] & 1), "sequence_end": bool(seen[1] & 2)}
        assert reply.body["parameters"] == {"sequence_id": seen[0], **flags}


ERROR = "answer = pb_utils.InferenceResponse(error=pb_utils.TritonError('te é', pb_utils.TritonError.{code}))"


@pytest.mark.parametrize("step", ["a", "b", "c"])
@pytest.mark.parametrize(
    ("code", "status"),
    [
        ("UNKNOWN", 400),
        ("INTERNAL", 500),
        ("NOT_FOUND", 404),
        ("INVALID_ARG", 400),
        ("UNAVAILABLE", 503),
        ("UNSUPPORTED", 501),
        ("ALREADY_EXISTS", 400),
        ("CANCELLED", 400),
    ],
)
def test_error_of_a_member_keeps_its_code(server, step, code, status):
    reply = server.ask("outer", {"X": [1]}, parameters={step: ERROR.format(code=code)})

    assert reply.status == status
    in_outer, in_chain = "in ensemble 'outer', step 0 ('chain'): ", "in ensemble 'chain', step "
    assert reply.error == f"{in_outer}{in_chain}{'abc'.index(step)} ('{step}'): te é"


FAILED = "Failed to process the request(s) for model '{name}_0', message: "


@pytest.mark.parametrize(
    ("name", "code", "status", "text"),
    [
        ("chain", {"b": "raise ValueError('boom')"}, 500, "step 1 ('b'): " + FAILED.format(name="b") + "ValueError: boom\n\nAt:\n"),
        ("of_bls", {"a": "raise ValueError('boom')"}, 500, "step 0 ('a'): " + FAILED.format(name="a") + "ValueError: boom\n\nAt:\n"),
        ("chain", {"b": "answer = reply(np.ones((2, 2), np.float32))"}, 400, "step 2 ('c'): {id}unexpected shape for input 'X' for model 'c'."),
        ("chain", {"b": "answer = reply(np.ones(2, np.int32))"}, 400, "step 2 ('c'): {id}inference input 'X' data-type is 'INT32', but"),
        ("chain", {"b": "answer = pb_utils.InferenceResponse([])"}, 400, "step 2 ('c'): {id}expected 1 inputs but got 0 inputs for model"),
        # The first error counts, though it is told after the other branch has ended.
        ("diamond", {"b": "raise ValueError('1st')", "c": "time.sleep(0.05); raise ValueError('2nd')"}, 500, "step 1 ('b'): "),
        ("diamond", {"b": "raise ValueError('1st')", "c": "time.sleep(0.05); answer = reply(x)"}, 500, "step 1 ('b'): "),
    ],
)  # fmt: skip
def test_failing_members(server, name, code, status, text):
    reply = server.ask(name, {"X": [1, 2]}, parameters=code)

    assert reply.status == status
    assert reply.error.startswith(f"in ensemble '{name}', " + text.format(id="[request id: <id_unknown>] "))


@pytest.mark.parametrize(
    ("code", "outputs"),
    [
        ("answer = reply(np.ones(2, np.int32))", [("Y", "INT32", [2])]),
        ("answer = reply(np.ones((2, 2), np.float32))", [("Y", "FP32", [2, 2])]),
        ("answer = pb_utils.InferenceResponse([])", []),
    ],
)
def test_last_outputs_are_what_the_member_made(server, code, outputs):
    reply = server.ask("chain", {"X": [1, 2]}, parameters={"c": code})

    assert [(o["name"], o["datatype"], o["shape"]) for o in reply.body["outputs"]] == outputs


@pytest.mark.parametrize(
    ("inputs", "version", "status", "text"),
    [
        (
            {},
            "",
            400,
            "expected 1 inputs but got 0 inputs for model 'chain'. Got input(s) [], but missing required",
        ),
        ({"Z": [1]}, "", 400, "unexpected inference input 'Z' for model 'chain'"),
        ({"X": [1], "Z": [1]}, "", 400, "expected 1 inputs but got 2 inputs for model 'chain'"),
        (
            {"X:INT32": [1]},
            "",
            400,
            "inference input 'X' data-type is 'INT32', but model 'chain' expects 'FP32'",
        ),
        ({"X": [1]}, "/versions/7", 404, "Request for unknown model: 'chain' version 7 is not found"),
    ],
)
def test_wrong_requests(server, inputs, version, status, text):
    reply = server.ask("chain" + version, inputs)

    assert reply.status == status
    assert text in reply.error


def test_labels_are_those_of_the_member_or_the_ensembles_own(server):
    for name, labels in (
        ("of_labelled", ["b", "c"]),
        ("of_of_labelled", ["b", "c"]),
        ("own_labels", ["zwei", "drei"]),
    ):
        with http_client.InferenceServerClient(f"127.0.0.1:{server.port}") as client:
            item = http_client.InferInput("X", [3], "FP32")
            item.set_data_from_numpy(np.array([1, 5, 3], np.float32))
            wanted = [http_client.InferRequestedOutput("Z", class_count=2)]
            classes = client.infer(name, [item], outputs=wanted).as_numpy("Z").tolist()
        assert [each.decode().rpartition(":")[2] for each in classes] == labels


# Decoupled members.


def streamed(server: EnsembleServer, name: str, values: list[float], **settings: object) -> list[object]:
    """Return the outputs of all answers up to the final one, or its error; ``"final"`` for one that has none."""
    found: list[object] = []
    with GrpcStream(server) as stream:
        stream.ask(name, *values, enable_empty_final_response=True, request_id="s1", **settings)
        while True:
            message = stream.take_message()
            if isinstance(message, Exception):
                return [*found, str(message.message())]
            assert message.id == "s1"
            is_final = message.parameters["triton_final_response"].bool_param
            result = grpc_client.InferResult(message)
            outputs = {output.name: result.as_numpy(output.name).tolist() for output in message.outputs}
            found.append(outputs or ("final" if is_final else {}))
            if is_final:
                return found


@pytest.mark.parametrize(
    ("name", "values", "answers"),
    [
        ("stream", [1, 2, 3], [[2], [3], [4]]),
        ("stream", [1], [[2]]),
        ("stream", [], []),
        ("a_stream", [1, 2, 3], [[3], [4], [5]]),
        ("a_stream", [], []),
        ("stream_stream", [1, 2, 3], [[1], [2], [3]]),
        ("stream_stream", [], []),
        ("stream_of_stream", [1, 2, 3], [[3], [4], [5]]),
        ("stream_of_stream", [], []),
        ("chain", [1, 2], [[4, 5]]),
    ],
)
def test_later_steps_run_once_for_each_response(server, name, values, answers):
    found = streamed(server, name, values)

    # Whether the last answer is the final one is a matter of time.
    assert [answer for answer in found if answer != "final"] == [{"Y": answer} for answer in answers]
    assert "final" not in found[:-1]


@pytest.mark.parametrize(
    ("name", "code", "text"),
    [
        ("stream", {"sender": "raise ValueError('first')"}, "step 0 ('sender'): Failed to process the request(s) for model 'sender_0', "),
        ("stream", {"sender": "send(1); time.sleep(0.1); raise ValueError('2nd')"}, "step 0 ('sender'): Failed to process"),
        ("stream", {"sender": "sender.send(pb_utils.InferenceResponse(error=pb_utils.TritonError('mid'))); send(2)"}, "step 0 ('sender'): mid"),
        ("stream", {"sender": "sender.send(pb_utils.InferenceResponse([])); time.sleep(0.1)"}, "step 1 ('a'): "),
        ("a_stream", {"a": "raise ValueError('early')"}, "step 0 ('a'): Failed to process"),
        ("a_stream", {"b": "raise ValueError('late')"}, "step 2 ('b'): Failed to process"),
        ("stream_of_stream", {"sender": "raise ValueError('in')"}, "step 0 ('stream'): in ensemble 'stream', step 0 ('sender'): Failed"),
    ],
)  # fmt: skip
def test_error_ends_a_stream(server, name, code, text):
    *answers, error = streamed(server, name, [1, 2], parameters=code)

    assert str(error).startswith(f"in ensemble '{name}', {text}")
    assert answers in ([], [{"Y": [2]}])


def test_response_without_outputs_in_a_stream(server):
    code = "answer = pb_utils.InferenceResponse([]) if x[0] == 3 else reply(x)"
    found = streamed(server, "a_stream", [1, 2, 3], parameters={"b": code})

    assert [answer for answer in found if answer != "final"] == [{"Y": [2]}, {}, {"Y": [4]}]


def test_streams_over_http(server):
    refused = server.ask("stream", {"X": [1]})
    one = server.post("/v2/models/stream/generate", {"X": [5]})
    several = server.post("/v2/models/a_stream/generate_stream", {"X": [5, 6]})

    assert refused.status == 501
    assert refused.error.startswith("HTTP end point doesn't support models with decoupled transaction policy")
    assert one.body["Y"] == 6
    events = [json.loads(event.removeprefix(b"data: ")) for event in several.body.split(b"\n\n") if event]
    assert [event["Y"] for event in events] == [7, 8]


# What the server says of them.


def test_metadata_and_config(server):
    metadata = server.request("GET", "/v2/models/b4_b4").body
    config = server.request("GET", "/v2/models/stream/config").body

    assert metadata == {
        "name": "b4_b4",
        "versions": ["1"],
        "platform": "ensemble",
        "inputs": [{"name": "X", "datatype": "FP32", "shape": [-1, 2]}],
        "outputs": [
            {"name": "Y", "datatype": "FP32", "shape": [-1, 2]},
            {"name": "S1", "datatype": "INT64", "shape": [-1, -1]},
            {"name": "S2", "datatype": "INT64", "shape": [-1, -1]},
        ],
    }
    assert (config["platform"], config["backend"], config["instance_group"]) == ("ensemble", "", [])
    assert config["model_transaction_policy"] == {"decoupled": True}
    first, second = config["ensemble_scheduling"]["step"]
    assert first == {
        "model_name": "sender",
        "model_version": -1,
        "input_map": {"X": "X"},
        "output_map": {"Y": "t1"},
        "model_namespace": "",
    }
    assert second["model_name"] == "a"
    assert server.request("GET", "/v2/models/stream/ready").status == 200


def test_statistics_and_metrics(server):
    for values in ([1, 2], [1, 2, 3, 4]):
        assert server.ask("counted", {f"X:FP32:{len(values) // 2},2": values}).status == 200
    assert server.ask("counted", {"X:FP32:5,2": range(10)}).status == 400
    assert server.ask("counted_failure", {"X": [1]}, parameters={"d": "raise ValueError"}).status == 500
    (statistics,) = server.request("GET", "/v2/models/counted/stats").body["model_stats"]

    assert (statistics["inference_count"], statistics["execution_count"]) == (3, 2)
    assert {key: value["count"] for key, value in statistics["inference_stats"].items()} == {
        "success": 2, "fail": 0, "queue": 2, "compute_input": 2, "compute_infer": 2, "compute_output": 2,
        "cache_hit": 0, "cache_miss": 0,
    }  # fmt: skip
    assert [(row["batch_size"], row["compute_infer"]["count"]) for row in statistics["batch_stats"]] == [
        (1, 1),
        (2, 1),
    ]
    # A request that is wrong in itself isn't counted as one; failures of members are OTHER.
    assert server.numbers("counted") == {"success": 2, "pending": 0}
    assert server.numbers("counted_failure") == {"success": 0, "pending": 0, "OTHER": 1}
    assert server.count("nv_inference_count", "counted") == 3
    assert server.count("nv_inference_exec_count", "counted") == 2
