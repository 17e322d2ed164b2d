"""The users' cases on ensembles, and ensembles at their worst: full queues, deaths, clients that leave, circles, reloads."""

from __future__ import annotations

import http.client
import json
import socket
import threading
import time
from collections.abc import Iterator
from concurrent.futures import Future, ThreadPoolExecutor

import pytest
import tritonclient.grpc as grpc_client

from e2e_server import wait_until
from ensemble_models import MEMBER, SENDER, EnsembleServer, Repository, X, chain, ensemble_text, outputs_of
from onnx_models import add_model as add_onnx_model, save_plus_one
from python_models import CALLER, DECOUPLED, GrpcStream, Reply, calls, grpc_inputs
from serve_process import running

pytestmark = pytest.mark.slow

ONE_BY_ONE = "dynamic_batching {{ {policy} }}"
WAIT = "signal_file('{name}'); {then}answer = reply(x)"
UNTIL_GO = "signal_file('{sign}')\nwhile not os.path.exists(os.environ['SIGNALS'] + '/{go}'): time.sleep(0.003)\nanswer = reply(x)"
"""Leaves a sign, and waits for one."""
UNTIL_CANCELLED = """
signal_file('{sign}')
for _ in range(2000):
    if request.is_cancelled():
        signal_file('{sign}-cancelled')
        break
    time.sleep(0.003)
answer = reply(x)
"""


def build(models: Repository) -> None:
    for name in ("a", "b"):
        models.model(name)
    models.model("sender", SENDER, more=DECOUPLED)
    for name, policy in (
        ("short", "default_queue_policy { max_queue_size: 1 }"),
        (
            "late",
            "default_queue_policy { default_timeout_microseconds: 100000 allow_timeout_override: true }",
        ),
        ("ranked", "priority_levels: 2 default_priority_level: 2"),
        ("slow", ""),
    ):
        models.model(name, max_batch_size=1, more=ONE_BY_ONE.format(policy=policy))
        models.ensemble(f"to_{name}", chain("a", name))
    models.ensemble("around_slow", chain("to_slow", "b"))
    models.ensemble(
        "fork_slow",
        ensemble_text(
            [("a", {"X": "X"}, {"Y": "Y1"}), ("slow", {"X": "X"}, {"Y": "Y2"})],
            outputs=("Y1:FP32:-1", "Y2:FP32:-1"),
        ),
    )
    two = [("a", {"X": "X"}, {"Y": "Y1"}), ("b", {"X": "Y1"}, {"Y": "Y2"})]
    models.ensemble("two", ensemble_text(two, outputs=("Y1:FP32:-1", "Y2:FP32:-1")))
    conditional = """
        parameters { key: "when:Y2" value { string_value: "max(Y1) > 100" } }
        parameters { key: "default:Y2" value { string_value: "[7]" } }
    """
    models.ensemble("conditional", ensemble_text(two, outputs=("Y1:FP32:-1", "Y2:FP32:-1"), more=conditional))
    models.ensemble("narrow", chain("sender", "slow", scheduling="max_inflight_requests: 1"))
    models.ensemble("again", chain("sender", "sender", scheduling="max_inflight_requests: 1"))
    models.model("resender", SENDER, more=DECOUPLED)
    models.ensemble("there", chain("sender", "resender", scheduling="max_inflight_requests: 1"))
    models.ensemble("back", chain("resender", "sender", scheduling="max_inflight_requests: 1"))
    models.model("calls_circle", CALLER, more=calls("circle"))
    models.ensemble("circle", chain("a", "calls_circle"))
    models.model("calls_bls", CALLER, more=calls("of_bls"))
    models.model("calls_two_step", CALLER, more=calls("two_step"))
    models.ensemble("two_step", chain("a", "b"))
    models.ensemble("of_bls", chain("a", "calls_two_step"))
    models.ensemble("deep", chain("b", "calls_bls"))
    models.model("lone")
    models.ensemble("of_lone", chain("lone", "a"))
    onnx_config = 'input [{ name: "X" data_type: TYPE_FP32 dims: [-1] }]\noutput [{ name: "Y" data_type: TYPE_FP32 dims: [-1] }]'
    add_onnx_model(models.root, "onnx", save_plus_one, config=onnx_config)
    models.model("b_thread", more='parameters { key: "EXECUTION_MODE" value { string_value: "thread" } }')
    models.ensemble("mixed", chain("a", "onnx", "b_thread", "onnx", "b"))
    models.ensemble("onnx_twice", chain("onnx", "onnx"))


@pytest.fixture(scope="module", params=["process", "slow in thread"])
def server(
    tmp_path_factory: pytest.TempPathFactory, request: pytest.FixtureRequest
) -> Iterator[EnsembleServer]:
    """A server whose slow models run in processes or in threads; the others, in processes."""
    with running(EnsembleServer(tmp_path_factory.mktemp("ensembles"), build, mode=request.param)) as server:
        yield server
        lines = [
            line
            for line in server.metrics().splitlines()
            if line.startswith("nv_inference_pending_request_count{")
        ]
        assert [line for line in lines if not line.endswith(" 0")] == []


@pytest.fixture
def background():
    with ThreadPoolExecutor(16) as pool:
        yield pool.submit


class Taken:
    """The slow member at work for somebody, until `let_go`."""

    def __init__(self, server: EnsembleServer, background, sign: str, ensemble: str = "to_slow") -> None:
        self.server = server
        self.sign = sign
        member = ensemble.removeprefix("to_")
        code = UNTIL_GO.format(sign=sign, go=f"{sign}-go")
        self.answer: Future[Reply] = background(server.ask, ensemble, {"X": [1]}, parameters={member: code})
        server.wait_signal(sign)

    def let_go(self) -> None:
        (self.server.signals / f"{self.sign}-go").touch()
        assert self.answer.result(5).values == [2]


def pending(server: EnsembleServer, model: str) -> int:
    return server.count("nv_inference_pending_request_count", model)


# Case 4: fewer outputs


@pytest.mark.parametrize(
    ("asked", "outputs"),
    [
        (["Y1"], {"Y1": [2]}),
        (["Y2"], {"Y2": [3]}),
        (["Y1", "Y2"], {"Y1": [2], "Y2": [3]}),
        (["Y2", "Y1"], {"Y1": [2], "Y2": [3]}),
        (["Y1", "Y1"], {"Y1": [2]}),
        ([], {"Y1": [2], "Y2": [3]}),
    ],
)
def test_case_4_fewer_outputs(server, asked, outputs):
    """Y2 is made of Y1; the real Triton answers "unexpected deadlock" to both the first and the second."""
    assert outputs_of(server.ask("two", {"X": [1]}, outputs=asked)) == outputs
    with grpc_client.InferenceServerClient(server.grpc_address) as client:
        wanted = [grpc_client.InferRequestedOutput(name) for name in asked]
        response = client.infer("two", grpc_inputs(1), outputs=wanted or None).get_response()
    assert sorted(output.name for output in response.outputs) == sorted(outputs)


def test_case_4_an_unknown_output(server):
    reply = server.ask("two", {"X": [1]}, outputs=["Y1", "NOPE"])

    assert reply.status == 400
    assert "unexpected inference output 'NOPE' for model 'two'" in reply.error


def test_case_4_a_step_that_nobody_needs_does_not_run(server):
    raises = {"b": "raise ValueError('b ran')"}

    assert outputs_of(server.ask("two", {"X": [1]}, outputs=["Y1"], parameters=raises)) == {"Y1": [2]}
    assert server.ask("two", {"X": [1]}, outputs=["Y2"], parameters=raises).status == 500


# Case 5: the queue of a member is full


def test_case_5_queue_of_a_member_is_full(server, background):
    code = {"short": "time.sleep(0.3); answer = reply(x + 1)"}
    start_s = time.monotonic()
    answers = [background(server.ask, "to_short", {"X": [1]}, parameters=code) for _ in range(6)]
    replies = [answer.result(5) for answer in answers]

    assert time.monotonic() - start_s < 1.5
    assert sorted(reply.status for reply in replies) == [200, 200, 503, 503, 503, 503]
    for reply in replies:
        if reply.status == 503:
            assert reply.error.startswith("in ensemble 'to_short', step 1 ('short'): ")
            assert "exceeds maximum queue size" in reply.error.lower()
        else:
            assert reply.values == [3]
    assert server.ask("to_short", {"X": [1]}).values == [3]
    assert server.numbers("short") == {"success": 3, "pending": 0, "REJECTED": 4}
    assert server.numbers("to_short") == {"success": 3, "pending": 0, "OTHER": 4}


# Queue timeouts and priorities of members


@pytest.mark.parametrize(("parameters", "seconds"), [({}, 0.1), ({"timeout": 50_000}, 0.05)])
def test_queue_timeout_of_a_member_is_on_time(server, background, parameters, seconds):
    taken = Taken(server, background, f"late-{seconds}", "to_late")
    start_s = time.monotonic()
    reply = server.ask("to_late", {"X": [1]}, parameters=parameters)

    assert seconds - 0.01 < time.monotonic() - start_s < seconds + 0.3
    assert reply.status == 503
    assert reply.error.startswith("in ensemble 'to_late', step 1 ('late'): ")
    taken.let_go()


def test_priority_counts_at_the_member(server, background):
    taken = Taken(server, background, "ranked", "to_ranked")

    def ask(name: str, priority: int) -> Future[Reply]:
        before = pending(server, "ranked")
        code = {"ranked": f"signal_file('order', '{name}'); answer = reply(x)", "priority": priority}
        answer = background(server.ask, "to_ranked", {"X": [1]}, parameters=code)
        wait_until(lambda: pending(server, "ranked") == before + 1)
        return answer

    answers = [ask("low", 2), ask("high", 1)]
    taken.let_go()
    for answer in answers:
        assert answer.result(5).values == [2]
    assert server.wait_signal("order").split() == ["high", "low"]


# Deaths


def test_process_of_a_member_dies(server):
    reply = server.ask("two", {"X": [1]}, parameters={"b": "os._exit(3)"})

    assert reply.status == 503
    assert reply.error.startswith(
        "in ensemble 'two', step 1 ('b'): model 'b' version 1: the process of instance"
    )
    wait_until(lambda: server.ask("two", {"X": [1]}).status == 200)


def test_process_dies_with_a_branch_beside_it(server, background):
    both = UNTIL_GO.format(sign="both", go="beside") + "; os._exit(3)"
    code = {"slow": UNTIL_GO.format(sign="beside", go="beside-go"), "a": both}
    answer = background(server.ask, "fork_slow", {"X": [1]}, parameters=code)
    server.wait_signal("beside")
    (server.signals / "beside-go").touch()

    assert answer.result(5).status == 503
    assert "step 0 ('a')" in answer.result(5).error
    wait_until(lambda: server.ask("fork_slow", {"X": [1]}).status == 200)


# Clients that leave


def leave_http(server: EnsembleServer, name: str, code: dict[str, str]) -> socket.socket:
    """Send a request and return its connection."""
    body = json.dumps(
        {"inputs": [{"name": "X", "datatype": "FP32", "shape": [1], "data": [1]}], "parameters": code}
    )
    head = f"POST /v2/models/{name}/infer HTTP/1.1\r\nHost: x\r\nContent-Length: {len(body)}\r\n\r\n"
    connection = socket.create_connection(("127.0.0.1", server.port), 10)
    connection.sendall((head + body).encode())
    return connection


@pytest.mark.parametrize("name", ["to_slow", "around_slow"])
@pytest.mark.parametrize("protocol", ["http", "grpc"])
def test_client_that_leaves_cancels_the_running_step(server, name, protocol):
    sign = f"{protocol}-{name}"
    code = {"slow": UNTIL_CANCELLED.format(sign=sign), "b": f"signal_file('{sign}-b'); answer = reply(x)"}
    if protocol == "http":
        connection = leave_http(server, name, code)
        server.wait_signal(sign)
        connection.close()
    else:
        with grpc_client.InferenceServerClient(server.grpc_address) as client:
            call = client.async_infer(name, grpc_inputs(1), lambda result, error: None, parameters=code)
            server.wait_signal(sign)
            call.cancel()
            server.wait_signal(f"{sign}-cancelled", 2)
    server.wait_signal(f"{sign}-cancelled", 2)
    wait_until(lambda: pending(server, name) == 0)
    wait_until(lambda: pending(server, "slow") == 0)
    assert not (server.signals / f"{sign}-b").exists()


@pytest.mark.parametrize("protocol", ["http", "grpc"])
def test_client_that_leaves_takes_the_waiting_step_back(server, background, protocol):
    taken = Taken(server, background, f"waits-{protocol}")
    before = server.count("nv_inference_request_failure", "slow", "CANCELED")
    code = {"slow": f"signal_file('ran-{protocol}'); answer = reply(x)"}
    if protocol == "http":
        connection = leave_http(server, "around_slow", code)
        wait_until(lambda: pending(server, "slow") == 1)
        connection.close()
        wait_until(lambda: pending(server, "slow") == 0)
    else:
        with grpc_client.InferenceServerClient(server.grpc_address) as client:
            call = client.async_infer(
                "around_slow", grpc_inputs(1), lambda result, error: None, parameters=code
            )
            wait_until(lambda: pending(server, "slow") == 1)
            call.cancel()
            wait_until(lambda: pending(server, "slow") == 0)
    wait_until(lambda: server.count("nv_inference_request_failure", "slow", "CANCELED") == before + 1)
    taken.let_go()
    assert server.ask("to_slow", {"X": [1]}).values == [3]
    assert not (server.signals / f"ran-{protocol}").exists()


def test_deadline_of_grpc_ends_the_steps(server):
    code = {"slow": UNTIL_CANCELLED.format(sign="deadline")}
    with (
        grpc_client.InferenceServerClient(server.grpc_address) as client,
        pytest.raises(grpc_client.InferenceServerException, match="Deadline Exceeded"),
    ):
        client.infer("around_slow", grpc_inputs(1), parameters=code, client_timeout=0.2)

    server.wait_signal("deadline-cancelled", 2)


# A fast producer and a slow consumer


def test_max_inflight_requests_hold_a_producer_back(server):
    code = {
        "sender": "for value in range(60):\n    send(value)\n    signal_file('sent')\n    time.sleep(0.001)",
        "slow": UNTIL_GO.format(sign="first", go="all-go"),
    }
    with GrpcStream(server) as stream:
        stream.ask("narrow", 1, parameters=code)
        server.wait_signal("first")
        time.sleep(0.3)  # many times what it takes to send them all
        num_sent = len(server.wait_signal("sent").splitlines())
        num_pending = pending(server, "slow")
        (server.signals / "all-go").touch()
        answers = [stream.take() for _ in range(60)]

    assert num_sent < 60
    assert num_pending == 0  # one runs, and nothing waits at the model
    assert answers == [[value] for value in range(60)]


def test_max_inflight_requests_of_a_model_that_follows_itself(server):
    """Its one instance can't wait for itself to take the next."""
    with GrpcStream(server) as stream:
        stream.ask("again", *range(20))

        assert sorted(stream.take()[0] for _ in range(20)) == [*range(20)]


@pytest.mark.slow
def test_ensembles_that_lead_through_the_same_producers_in_opposite_orders(server):
    """Each holds the one instance that the other one waits for."""
    with GrpcStream(server) as stream:
        for _ in range(5):
            stream.ask("there", *range(40))
            stream.ask("back", *range(40))

        answers = [stream.take()[0] for _ in range(400)]
    assert sorted(answers) == sorted([*range(40)] * 10)


# Steps under a condition


def test_condition_over_both_protocols(server):
    """The real Triton loads the config, and runs both steps."""
    for values, second in (([1], [7]), ([1, 200], [3, 202])):
        outputs = outputs_of(server.ask("conditional", {"X": values}))
        assert outputs == {"Y1": [value + 1 for value in values], "Y2": second}
        with grpc_client.InferenceServerClient(server.grpc_address) as client:
            assert client.infer("conditional", grpc_inputs(*values)).as_numpy("Y2").tolist() == second


# Hybrids


def test_ensembles_and_scripts_call_each_other(server):
    """``deep``: b, then a script that asks an ensemble of a and a script that asks an ensemble of a and b."""
    assert server.infer("calls_two_step", 1).values == [3]
    assert server.infer("of_bls", 1).values == [4]
    assert server.infer("deep", 1).values == [5]


def test_error_through_ensembles_and_scripts_names_the_way(server):
    reply = server.ask("of_bls", {"X": [1]}, parameters={"a": "raise ValueError('boom')"})

    assert reply.status == 500
    assert reply.error.startswith("in ensemble 'of_bls', step 0 ('a'): ")


def test_circle_is_refused(server):
    """The real Triton never answers."""
    start_s = time.monotonic()
    reply = server.infer("circle", 1, timeout_s=5)

    assert time.monotonic() - start_s < 2
    assert reply.status == 503
    assert "would never be answered" in reply.error
    assert server.infer("two", 1).status == 200


def test_python_processes_threads_and_onnx_together(server, background):
    answers = [
        background(server.infer, name, value) for value in range(20) for name in ("mixed", "onnx_twice")
    ]

    for value in range(20):
        assert answers[2 * value].result(10).values == [value + 5]
        assert answers[2 * value + 1].result(10).values == [value + 2]


# Members that change


def test_unloading_a_member_unloads_the_ensemble(server):
    server.unload("lone")
    server.wait_unloaded("lone", "of_lone")
    reply = server.infer("of_lone", 1)

    assert reply.status == 404
    assert "'of_lone' has no available versions" in reply.error
    assert not server.is_ready("of_lone")

    assert server.load("of_lone").status == 200
    assert server.infer("of_lone", 1).values == [3]


def test_member_is_loaded_again_without_a_failed_call(server):
    failed: list[Reply] = []
    values: set[float] = set()
    is_over = threading.Event()

    def ask_on() -> None:
        while not is_over.is_set():
            reply = server.infer("of_lone", 1)
            if reply.status == 200:
                values.update(reply.values)
            else:
                failed.append(reply)

    thread = threading.Thread(target=ask_on)
    thread.start()
    try:
        server.repository.model("lone", MEMBER.replace("x_of(request) + 1", "x_of(request) + 100"))
        assert server.load("lone").status == 200
        wait_until(lambda: 102 in values)
        server.repository.model("lone", "import surely_not_there")
        assert server.load("lone").status == 400
        assert server.infer("of_lone", 1).values == [102]
        server.repository.model("lone")
        assert server.load("lone").status == 200
        wait_until(lambda: server.infer("of_lone", 1).values == [3])
    finally:
        is_over.set()
        thread.join()

    assert not failed
    assert values <= {3, 102}


def test_member_that_changes_its_tensors_is_told_of(server):
    """The member loads; the ensemble, which does not fit any more, doesn't, until the member is what it was."""
    server.repository.model("lone", inputs=("X:INT32:-1",))
    assert server.load("lone").status == 200
    wait_until(lambda: not server.is_ready("of_lone"))
    assert "inconsistent data type" in server.index("of_lone")["reason"]

    server.repository.model("lone", inputs=(X,))
    assert server.load("lone").status == 200
    wait_until(lambda: server.infer("of_lone", 1).status == 200)


def test_keep_alive_connection_survives_errors_of_steps(server):
    client = http.client.HTTPConnection("127.0.0.1", server.port, timeout=5)
    body = json.dumps(
        {"inputs": [{"name": "X", "datatype": "FP32", "shape": [1], "data": [1]}], "parameters": {"b": "1/0"}}
    )
    try:
        for _ in range(3):
            client.request("POST", "/v2/models/two/infer", body)
            answer = client.getresponse()
            assert answer.status == 500
            assert b"ZeroDivisionError" in answer.read()
    finally:
        client.close()
