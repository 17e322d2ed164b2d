"""Server: the in-process API, from an async program."""

import asyncio
import logging
import threading
from concurrent.futures import ThreadPoolExecutor

import numpy as np
import pytest

import bireme
from bireme import Server, ServerOptions
from bireme.config import to_json
from bireme.engine import ServerState
from bireme.types import (
    BackendFailed,
    Cancelled,
    InferenceRequest,
    Internal,
    InvalidArgument,
    NotFound,
    RequestTimedOut,
    Tensor,
    Unavailable,
    Unsupported,
)
from model_dirs import LoadingBackend, add_fake_model, touch, until


@pytest.fixture
def backend():
    return LoadingBackend(run=lambda inputs: {"Y": inputs["X"] + 1})


@pytest.fixture
def serve(tmp_path, backend):
    """Run a test's coroutine with a server over ``tmp_path``, which holds the model "plus"."""
    add_fake_model(tmp_path, "plus")

    def run(scenario, *, start=True, **settings):
        async def main():
            server = Server(tmp_path, backends={"fake": backend}, **settings)
            if not start:
                return await scenario(server)
            async with server:
                try:
                    return await scenario(server)
                finally:
                    backend.gate.set()
                    backend.load_gate.set()

        asyncio.run(main())

    return run


def make_request(name="plus", respond=None, **settings):
    tensor = Tensor.from_numpy("X", np.zeros(2, np.float32))
    return InferenceRequest(name, {"X": tensor}, respond or (lambda *_: None), **settings)


@pytest.fixture(autouse=True)
def _no_settling(monkeypatch):
    monkeypatch.setattr("bireme.engine.model_control._SETTLE_S", 0.0)


# Inference.


def test_a_call_takes_plain_values_and_gives_arrays_by_name(serve):
    async def scenario(server):
        result = await server.ainfer("plus", {"X": [1, 2]}, id="my id", version=1, outputs=["Y"])
        assert result["Y"].tolist() == [2.0, 3.0]
        assert (result.model_name, result.model_version, result.id) == ("plus", 1, "my id")

    serve(scenario)


def test_many_calls_run_at_once(serve):
    async def scenario(server):
        results = await asyncio.gather(*(server.ainfer("plus", {"X": [float(i)]}) for i in range(50)))
        assert [result["Y"][0] for result in results] == [i + 1 for i in range(50)]

    serve(scenario)


def test_a_calls_errors_are_raised(serve, backend):
    async def scenario(server):
        with pytest.raises(
            NotFound, match=r"Request for unknown model: 'pluss' is not found; did you mean 'plus'"
        ):
            await server.ainfer("pluss", {"X": [1]})
        with pytest.raises(InvalidArgument, match=r"^\[request id: 7\] .*unexpected inference input 'Z'"):
            await server.ainfer("plus", {"Z": [1]}, id="7")
        with pytest.raises(InvalidArgument, match=r"input 'X' of model 'plus': .*float64"):
            await server.ainfer("plus", {"X": np.ones(1)})
        with pytest.raises(InvalidArgument, match=r"outputs: expected a list of names, got the text 'Y'"):
            await server.ainfer("plus", {"X": [1]}, outputs="Y")
        with pytest.raises(InvalidArgument, match=r"timeout_us: expected an integer from 0 on, got 0.5"):
            await server.ainfer("plus", {"X": [1]}, timeout_us=0.5)
        backend.execute_error = ValueError("no")
        with pytest.raises(BackendFailed, match=r"no"):
            await server.ainfer("plus", {"X": [1]})

    serve(scenario)


def test_a_cancelled_task_takes_its_request_back(serve, backend):
    async def scenario(server):
        backend.gate.clear()
        running = asyncio.ensure_future(server.ainfer("plus", {"X": [1]}))
        await until(lambda: backend.num_executing == 1)
        waiting = asyncio.ensure_future(server.ainfer("plus", {"X": [2]}))
        await asyncio.sleep(0)
        waiting.cancel()
        await asyncio.wait([waiting])
        assert waiting.cancelled()
        assert server.model("plus").statistics.failures["CANCELED"] == 1
        running.cancel()
        await asyncio.wait([running])
        backend.gate.set()
        await until(lambda: server.model("plus").num_in_flight == 0)
        assert len(backend.batches) == 1

    serve(scenario)


def test_a_request_is_answered_once_and_can_be_taken_back(serve, backend):
    async def scenario(server):
        answers = []
        backend.gate.clear()
        requests = [
            make_request(respond=lambda request, response: answers.append((request.id, response)), id=i)
            for i in "ab"
        ]
        for request in requests:
            server.submit(request)
        await until(lambda: backend.num_executing == 1)
        server.cancel(requests[1])
        assert [(name, type(response.error)) for name, response in answers] == [("b", Cancelled)]
        server.cancel(requests[1])
        backend.gate.set()
        await until(lambda: len(answers) == 2)
        assert answers[1][1].error is None
        server.cancel(requests[0])

    serve(scenario)


def test_a_calls_queue_timeout_is_kept(serve, tmp_path, backend):
    policy = "default_timeout_microseconds: 60000000 allow_timeout_override: true"
    batching = f"max_batch_size: 4 dynamic_batching {{ default_queue_policy {{ {policy} }} }}"
    add_fake_model(tmp_path, "batched", extra=batching)

    async def scenario(server):
        backend.gate.clear()
        running = asyncio.ensure_future(server.ainfer("batched", {"X": [[1]]}))
        await until(lambda: backend.num_executing == 1)
        with pytest.raises(RequestTimedOut):
            await server.ainfer("batched", {"X": [[1]]}, timeout_us=1000)
        backend.gate.set()
        assert (await running)["Y"].tolist() == [[2.0]]

    serve(scenario)


def test_a_decoupled_model_has_no_one_response(tmp_path, backend):
    add_fake_model(tmp_path, "stream", extra="model_transaction_policy { decoupled: true }")

    async def main():
        async with Server(tmp_path, backends={"fake": backend}) as server:
            with pytest.raises(Unsupported, match=r"exactly one response, and model 'stream' is decoupled"):
                await server.ainfer("stream", {"X": [1]})

    asyncio.run(main())


def test_the_loops_thread_cannot_wait_for_itself(serve):
    async def scenario(server):
        with pytest.raises(RuntimeError, match=r"use 'await server.ainfer"):
            server.infer("plus", {"X": [1]})

    serve(scenario)


def test_other_threads_may_call_a_server_that_shares_the_programs_loop(serve):
    async def scenario(server):
        result = await asyncio.to_thread(server.infer, "plus", {"X": [1]}, id="t")
        assert result["Y"].tolist() == [2.0]
        with pytest.raises(NotFound):
            await asyncio.to_thread(server.infer, "nope", {"X": [1]})

        def call_from_another_loop():
            with pytest.raises(RuntimeError, match=r"ainfer.. belongs to the loop"):
                asyncio.run(server.ainfer("plus", {"X": [1]}))

        await asyncio.to_thread(call_from_another_loop)

    serve(scenario)


def test_an_interrupted_call_takes_its_request_back(serve, backend, monkeypatch):
    def interrupt(*_):
        assert backend.started.acquire(timeout=10)
        raise KeyboardInterrupt

    def call(server):
        with pytest.raises(KeyboardInterrupt):
            server.infer("plus", {"X": [1]})

    async def scenario(server):
        backend.gate.clear()
        running = asyncio.ensure_future(server.ainfer("plus", {"X": [1]}))
        await until(lambda: backend.num_executing == 1)
        monkeypatch.setattr("bireme.engine.inference.Waiter.wait", interrupt)
        await asyncio.to_thread(call, server)
        await until(lambda: server.model("plus").statistics.failures["CANCELED"] == 1)
        backend.gate.set()
        await running

    serve(scenario)


def test_a_server_whose_loop_has_ended_says_so(tmp_path, backend):
    add_fake_model(tmp_path, "plus")
    server = Server(tmp_path, backends={"fake": backend})
    asyncio.run(server.start())
    with ThreadPoolExecutor(1) as pool, pytest.raises(Unavailable, match=r"its event loop has ended"):
        pool.submit(server.infer, "plus", {"X": [1]}).result()


# Versions.


def test_a_version_is_chosen_by_number_and_the_latest_by_default(tmp_path, backend):
    add_fake_model(tmp_path, "m", (2, 10), extra="version_policy { all {} }")

    async def main():
        async with Server(tmp_path, backends={"fake": backend}) as server:
            for asked, answered in ((-1, 10), (2, 2), (10, 10)):
                assert server.model("m", asked).version == answered
                assert (await server.ainfer("m", {"X": [1]}, version=asked)).model_version == answered
            with pytest.raises(NotFound, match=r"'m' version 3 is not found"):
                server.submit(make_request("m", model_version=3))
            assert server.model_metadata("m")["versions"] == ["2", "10"]
            assert server.model_metadata("m", 2)["versions"] == ["2"]

    asyncio.run(main())


# Descriptions.


def test_the_server_describes_itself(serve):
    async def scenario(server):
        assert server.metadata() == {
            "name": "galley",
            "version": bireme.__version__,
            "extensions": [
                "classification",
                "sequence",
                "model_repository",
                "model_repository(unload_dependents)",
                "schedule_policy",
                "model_configuration",
                "system_shared_memory",
                "cuda_shared_memory",
                "binary_tensor_data",
                "parameters",
                "statistics",
                "trace",
                "logging",
            ],
        }
        assert repr(server) == "Server('galley', ready, 1 model versions ready)"

    serve(scenario, id="galley")


def test_a_model_is_described_as_clients_see_it(tmp_path, backend):
    add_fake_model(tmp_path, "m")
    (tmp_path / "m" / "config.pbtxt").write_text(
        'backend: "fake" max_batch_size: 8 '
        'input [{ name: "A" data_type: TYPE_STRING dims: [ 1 ] reshape { shape: [] } }]'
        'input [{ name: "B" data_type: TYPE_BF16 dims: [ -1, 2 ] }]'
        'output [{ name: "Y" data_type: TYPE_BOOL dims: [ 3 ] }]'
    )

    async def main():
        async with Server(tmp_path, backends={"fake": backend}) as server:
            assert server.model_metadata("m") == {
                "name": "m",
                "versions": ["1"],
                "platform": "fake",
                "inputs": [
                    {"name": "A", "datatype": "BYTES", "shape": [-1, 1]},
                    {"name": "B", "datatype": "BF16", "shape": [-1, -1, 2]},
                ],
                "outputs": [{"name": "Y", "datatype": "BOOL", "shape": [-1, 3]}],
            }
            assert server.model_config("m") == to_json(server.model("m").config)
            assert server.model_config("m")["max_batch_size"] == 8
            for describe in (server.model_metadata, server.model_config, server.is_model_ready):
                with pytest.raises(NotFound, match=r"Request for unknown model: 'x' is not found"):
                    describe("x")

    asyncio.run(main())


def test_statistics_are_of_all_models_of_one_or_of_one_version(tmp_path, backend):
    for name, versions in (("b", (1, 2)), ("a", (1,))):
        add_fake_model(tmp_path, name, versions, extra="version_policy { all {} }")

    async def main():
        async with Server(tmp_path, backends={"fake": backend}) as server:
            await server.ainfer("b", {"X": [1]})

            def counts(*args):
                found = server.model_statistics(*args)["model_stats"]
                return [(each["name"], each["version"], each["inference_count"]) for each in found]

            assert counts() == [("a", "1", 0), ("b", "1", 0), ("b", "2", 1)]
            assert counts("b") == [("b", "1", 0), ("b", "2", 1)]
            assert counts("b", 2) == [("b", "2", 1)]
            with pytest.raises(InvalidArgument, match=r"^requested model 'x' is not available$"):
                server.model_statistics("x")
            with pytest.raises(
                InvalidArgument, match=r"^requested model version is not available for model 'b'$"
            ):
                server.model_statistics("b", 3)

    asyncio.run(main())


# The repository.


def test_load_and_unload_need_explicit_mode(serve):
    async def scenario(server):
        for call in (server.load_model("plus"), server.unload_model("plus")):
            with pytest.raises(
                Unavailable, match=r"^explicit model load / unload is not allowed if polling is enabled"
            ):
                await call
        assert server.model("plus")

    serve(scenario)
    serve(scenario, model_control_mode="poll")


def test_models_are_loaded_and_unloaded_by_call(serve, tmp_path):
    async def scenario(server):
        assert server.repository_index() == [{"name": "plus"}]
        assert server.is_ready
        await server.load_model("plus")
        assert server.repository_index() == [{"name": "plus", "version": "1", "state": "READY"}]
        await server.ainfer("plus", {"X": [1]})
        (tmp_path / "later").mkdir()
        assert server.repository_index(ready=True) == [{"name": "plus", "version": "1", "state": "READY"}]
        assert {"name": "later"} in server.repository_index()
        await server.unload_model("plus", unload_dependents=True)
        with pytest.raises(NotFound, match=r"'plus' has no available versions"):
            await server.ainfer("plus", {"X": [1]})
        await until(
            lambda: (
                {"name": "plus", "version": "1", "state": "UNAVAILABLE", "reason": "unloaded"}
                in server.repository_index()
            )
        )
        assert server.repository_index(ready=True) == []
        assert server.is_ready

    serve(scenario, model_control_mode="explicit")


def test_a_model_may_come_from_a_call_alone(backend):
    async def main():
        async with Server(model_control_mode="explicit", backends={"fake": backend}) as server:
            config = '{"backend": "fake", "input": [{"name": "X", "data_type": "TYPE_FP32", "dims": [1]}], "output": [{"name": "Y", "data_type": "TYPE_FP32", "dims": [1]}]}'
            await server.load_model("sent", config, {"file:1/model.bin": b"weights"})
            assert (await server.ainfer("sent", {"X": [1]}))["Y"].tolist() == [2.0]
            assert server.repository_index() == [{"name": "sent", "version": "1", "state": "READY"}]

    asyncio.run(main())


def test_a_name_in_two_repositories_is_shown_as_unavailable(tmp_path, backend):
    for root in ("a", "b"):
        add_fake_model(tmp_path / root, "m")

    async def main():
        repositories = [tmp_path / "a", tmp_path / "b"]
        async with Server(repositories, backends={"fake": backend}, model_control_mode="explicit") as server:
            reason = "model appears in two or more repositories"
            assert server.repository_index() == [{"name": "m", "state": "UNAVAILABLE", "reason": reason}]
            with pytest.raises(
                Internal, match=r"failed to load 'm', failed to poll from model repository: .*not unique"
            ) as caught:
                await server.load_model("m")
            assert "did you mean" not in caught.value.message

    asyncio.run(main())


# Readiness.


@pytest.mark.parametrize("strict", [True, False])
def test_what_the_probes_say_in_every_state(serve, backend, tmp_path, strict):
    """Server live/ready and model ready, from before the start to after the stop."""
    add_fake_model(tmp_path, "other")

    async def scenario(server):
        def probes():
            try:
                model = server.is_model_ready("other")
            except bireme.BiremeError as error:
                model = error.code
            return server.is_live, server.is_ready, model

        assert probes() == (False, False, "UNAVAILABLE")
        backend.load_gate.clear()
        starting = asyncio.ensure_future(server.start())
        await until(lambda: backend.num_loading == 1)
        assert server.state is ServerState.INITIALIZING
        assert probes() == (False, False, "UNAVAILABLE")
        backend.load_gate.set()
        await starting
        assert probes() == (True, True, "NOT_FOUND")

        backend.load_gate.clear()
        loading = asyncio.ensure_future(server.load_model("other"))
        await until(lambda: backend.num_loading == 1)
        assert probes() == (True, True, "NOT_FOUND"), "a load takes nothing from the others"
        backend.load_gate.set()
        await loading
        assert probes() == (True, True, True)

        backend.broken["other", 1] = Internal("no")
        touch(tmp_path / "other" / "1" / "weights")
        with pytest.raises(InvalidArgument):
            await server.load_model("other")
        assert probes() == (True, True, True), "the old one serves"

        backend.gate.clear()
        call = asyncio.ensure_future(server.ainfer("other", {"X": [1]}))
        await until(lambda: backend.num_executing == 1)
        await server.unload_model("other")
        assert probes() == (True, True, "NOT_FOUND"), "unloaded on purpose"
        backend.gate.set()
        await call
        assert probes() == (True, True, "NOT_FOUND")

        with pytest.raises(InvalidArgument):
            await server.load_model("other")
        assert probes() == (True, not strict, "NOT_FOUND"), "failed"
        await server.unload_model("other")
        assert probes() == (True, True, "NOT_FOUND")

        assert await server.stop()
        assert server.state is ServerState.STOPPED
        assert probes() == (False, False, "UNAVAILABLE")

    serve(scenario, start=False, strict_readiness=strict, model_control_mode="explicit", load_model=("plus",))


# Start and stop.


def test_a_bad_model_fails_the_start_with_its_reason_and_leaves_nothing_open(
    serve, backend, tmp_path, caplog
):
    backend.broken["bad", 1] = Internal("weights are missing")

    async def scenario(server):
        with pytest.raises(
            Internal, match=r"^failed to load all models: load failed for model 'bad': .*weights are missing"
        ):
            await server.start()
        assert server.state is ServerState.FAILED
        assert backend.num_open_models == 0
        with pytest.raises(Unavailable, match=r"Server not ready"):
            server.submit(make_request())
        backend.broken.clear()
        await server.start()
        assert server.is_ready
        assert await server.stop()

    with caplog.at_level(logging.INFO):
        add_fake_model(tmp_path, "bad")
        serve(scenario, start=False)
    table = [record.getMessage() for record in caplog.records if record.getMessage().startswith("|")]
    assert table[1].split("|")[1:4] == [" bad   ", " 1       ", " UNAVAILABLE: weights are missing "]
    assert table[2].split("|")[1].strip() == "plus"


def test_a_bad_model_stops_nobody_when_that_is_allowed(serve, backend, tmp_path):
    add_fake_model(tmp_path, "bad")
    backend.broken["bad", 1] = Internal("weights are missing")

    async def scenario(server):
        assert (await server.ainfer("plus", {"X": [1]}))["Y"].tolist() == [2.0]
        assert not server.is_ready
        assert server.is_live
        assert server.repository_index()[0]["reason"] == "weights are missing"

    serve(scenario, exit_on_error=False)


def test_a_repository_that_is_not_there_fails_the_start(tmp_path):
    async def main():
        with pytest.raises(InvalidArgument, match=r"repository path is not a valid directory"):
            await Server(tmp_path / "nowhere").start()

    asyncio.run(main())


@pytest.mark.parametrize(
    ("call", "text"),
    [
        (lambda server: server.submit(make_request()), "Server not ready"),
        (lambda server: server.model("plus"), "Server not ready"),
        (lambda server: server.model_statistics(), "Server not ready"),
        (lambda server: server.repository_index(), "Server not ready"),
    ],
)
def test_before_the_start_everything_is_unavailable(serve, call, text):
    async def scenario(server):
        with pytest.raises(Unavailable, match=f"^{text}$"):
            call(server)
        for awaitable in (
            server.load_model("plus"),
            server.unload_model("plus"),
        ):
            with pytest.raises(Unavailable, match=r"^Server not ready$"):
                await awaitable
        with pytest.raises(Unavailable, match=r"^Server not ready: start it, by 'with Server"):
            await server.ainfer("plus", {"X": [1]})
        with pytest.raises(Unavailable, match=r"^Server not ready: start it, by 'with Server"):
            await asyncio.to_thread(server.infer, "plus", {"X": [1]})
        assert await server.stop()

    serve(scenario, start=False)


def test_an_announced_stop_is_not_ready_but_takes_requests_until_the_stop(serve):
    async def scenario(server):
        server.announce_stop()
        assert not server.is_ready
        assert server.state is ServerState.EXITING
        assert (await server.ainfer("plus", {"X": [1]}))["Y"].tolist() == [2.0]
        assert await server.stop()
        assert server.state is ServerState.STOPPED

    serve(scenario)


def test_a_stop_refuses_new_requests_at_once_and_finishes_the_others(serve, backend):
    async def scenario(server):
        backend.gate.clear()
        calls = [asyncio.ensure_future(server.ainfer("plus", {"X": [1]})) for _ in range(3)]
        await until(lambda: backend.num_executing == 1)
        stopping = asyncio.ensure_future(server.stop())
        await asyncio.sleep(0)
        assert server.state is ServerState.EXITING
        assert not server.is_ready
        text = "Server is stopping, scheduler for model has stopped accepting new inference requests"
        with pytest.raises(Unavailable, match=rf"^\[request id: 9\] {text}$"):
            server.submit(make_request(id="9"))
        with pytest.raises(Unavailable, match=text):
            server.model("plus")
        again = asyncio.ensure_future(server.stop())
        backend.gate.set()
        assert [(await call)["Y"].tolist() for call in calls] == [[2.0]] * 3
        assert await stopping
        assert await again
        assert backend.num_open_models == backend.num_open_instances == 0

    serve(scenario)


def test_a_stop_that_takes_too_long_says_so(serve, backend, monkeypatch):
    monkeypatch.setattr("bireme.engine.lifecycle._CLOSE_GRACE_S", 0.02)

    async def scenario(server):
        backend.gate.clear()
        running = asyncio.ensure_future(server.ainfer("plus", {"X": [1]}))
        await until(lambda: backend.num_executing == 1)
        waiting = asyncio.ensure_future(server.ainfer("plus", {"X": [1]}))
        await asyncio.sleep(0)
        assert not await server.stop(0)
        with pytest.raises(Unavailable, match=r"exit timeout expired"):
            await waiting
        backend.gate.set()
        await running

    serve(scenario)


def test_a_stop_during_the_start_ends_the_start(serve, backend):
    async def scenario(server):
        backend.load_gate.clear()
        starting = asyncio.ensure_future(server.start())
        await until(lambda: backend.num_loading == 1)
        stopping = asyncio.ensure_future(server.stop())
        with pytest.raises(Unavailable, match=r"the server was stopped while it was starting"):
            await starting
        backend.load_gate.set()
        assert await stopping
        assert server.state is ServerState.STOPPED
        assert backend.num_open_models == 0

    serve(scenario, start=False)


def test_a_cancelled_start_leaves_nothing_behind(serve, backend):
    async def scenario(server):
        backend.load_gate.clear()
        starting = asyncio.ensure_future(server.start())
        await until(lambda: backend.num_loading == 1)
        starting.cancel()
        threading.Timer(0.05, backend.load_gate.set).start()
        await asyncio.wait([starting])
        assert starting.cancelled()
        assert server.state is ServerState.FAILED
        await until(lambda: backend.num_open_models == 0)

    serve(scenario, start=False)


def test_a_running_server_cannot_start_but_a_stopped_one_can(serve):
    async def scenario(server):
        with pytest.raises(RuntimeError, match=r"the server cannot start: it is ready"):
            await server.start()
        await server.stop()
        await server.start()
        assert (await server.ainfer("plus", {"X": [1]}))["Y"].tolist() == [2.0]

    serve(scenario)


def test_settings_are_checked_when_the_server_is_made(tmp_path):
    with pytest.raises(InvalidArgument, match=r"model_control_mode is 'x'"):
        Server(tmp_path, model_control_mode="x")
    with pytest.raises(TypeError, match=r"unexpected keyword argument 'model_repositry'"):
        Server(model_repositry="x")
    with pytest.raises(TypeError, match=r"either 'options' or"):
        Server(tmp_path, options=ServerOptions())
    server = Server(options=ServerOptions(id="x"))
    assert server.options.id == "x"
    assert Server([tmp_path, "b"]).options.model_repository == (str(tmp_path), "b")


def test_polling_is_part_of_a_servers_life(serve, tmp_path):
    async def scenario(server):
        add_fake_model(tmp_path, "new")
        await until(
            lambda: any(
                entry.get("state") == "READY" and entry["name"] == "new"
                for entry in server.repository_index()
            )
        )

    serve(scenario, model_control_mode="poll", repository_poll_secs=0.01)


def test_the_package_exports_its_names_lazily():
    assert set(bireme.__all__) <= set(dir(bireme))
    for name in bireme.__all__:
        assert getattr(bireme, name) is not None
    with pytest.raises(AttributeError, match=r"no attribute 'Servr'"):
        _ = bireme.Servr
