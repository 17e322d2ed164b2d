"""Python models in threads of the server: their life, what they may return, and what is told when they fail."""

from __future__ import annotations

import asyncio
import sys
import threading
from pathlib import Path

import numpy as np
import pytest

from bireme import Server
from bireme.types import BackendFailed, BiremeError
from model_dirs import until
from thread_models import DECOUPLED, Ask, add_thread_model, execute, serve


def test_execute_answers(tmp_path: Path) -> None:
    add_thread_model(tmp_path, "m", execute("x * 2"))

    async def scenario(server: Server) -> None:
        assert [[2.0, 4.0]] == await Ask(server, "m", (1.0, 2.0)).values()
        statistics = server.model_statistics("m")["model_stats"][0]
        assert 1 == statistics["execution_count"]
        assert 1 == statistics["inference_stats"]["success"]["count"]

    serve(tmp_path, scenario)


def test_inputs_are_the_callers_own_arrays(tmp_path: Path) -> None:
    add_thread_model(tmp_path, "m", execute("np.array([x.ctypes.data], np.float64).view(np.float32)"))

    async def scenario(server: Server) -> None:
        ask = Ask(server, "m", np.zeros(1000, np.float32))
        await ask.all()
        address = np.array([ask.request.inputs["X"].to_numpy().ctypes.data], np.float64).view(np.float32)
        assert np.array_equal(
            address, (await ask.values())[0], equal_nan=True
        )  # half of an address may be a NaN

    serve(tmp_path, scenario)


def test_a_response_says_which_version_answered(tmp_path: Path) -> None:
    add_thread_model(tmp_path, "m", execute("x"))

    async def scenario(server: Server) -> None:
        (response,) = await Ask(server, "m", id="a").all()
        assert ("m", 1, "a") == (response.model_name, response.model_version, response.id)

    serve(tmp_path, scenario)


def test_arguments_and_lifecycle(tmp_path: Path) -> None:
    add_thread_model(
        tmp_path,
        "m",
        f"""
        def initialize(self, args):
            self.notes = open({str(tmp_path / "notes")!r}, "w")
            print(sorted(args), args["model_instance_name"], threading.current_thread().name, file=self.notes)
        def execute(self, requests):
            return [pb_utils.InferenceResponse([]) for _ in requests]
        def finalize(self):
            print("finalized", file=self.notes)
            self.notes.close()
        """,
    )

    async def scenario(server: Server) -> None:
        await Ask(server, "m").all()

    serve(tmp_path, scenario)
    started, ended = (tmp_path / "notes").read_text("utf-8").splitlines()
    assert "finalized" == ended
    assert started.endswith("'model_version'] m_0 m_0")


def test_a_model_whose_initialize_fails_does_not_load(tmp_path: Path) -> None:
    add_thread_model(
        tmp_path, "m", "def initialize(self, args): raise ValueError('no weights')\ndef execute(self, r): ..."
    )

    async def scenario(server: Server) -> None:
        (state,) = [row["reason"] for row in server.repository_index() if row["name"] == "m"]
        assert "ValueError: no weights\n\nAt:\n" in state
        assert "model.py(" in state

    with pytest.raises(BiremeError, match="ValueError: no weights"):
        serve(tmp_path, scenario)
    serve(tmp_path, scenario, exit_on_error=False)


@pytest.mark.parametrize(
    ("body", "text"),
    [
        ("raise KeyError('x')", "message: KeyError: 'x'\n\nAt:\n"),
        ("return 1", "Expected a list in the execute return, found type '<class 'int'>'."),
        (
            "return []",
            "Number of InferenceResponse objects do not match the number of InferenceRequest objects.",
        ),
        ("return [1]", "Expected an 'InferenceResponse' object in the execute function return list"),
        ("exit(3)", "message: SystemExit: 3"),
    ],
)
def test_a_batch_fails_as_in_a_process(tmp_path: Path, body: str, text: str) -> None:
    add_thread_model(tmp_path, "m", f"def execute(self, requests): {body}")

    async def scenario(server: Server) -> None:
        ask = Ask(server, "m")
        assert text in await ask.error()
        error = ask.responses[0].error
        assert isinstance(error, BackendFailed)
        assert error.message.startswith("Failed to process the request(s) for model 'm_0', message: ")

    serve(tmp_path, scenario)


def test_an_error_of_the_models_own_reaches_the_client_unchanged(tmp_path: Path) -> None:
    add_thread_model(
        tmp_path,
        "m",
        """
        def execute(self, requests):
            error = pb_utils.TritonError("no such voice", pb_utils.TritonError.NOT_FOUND)
            return [pb_utils.InferenceResponse(error=error) for _ in requests]
        """,
    )

    async def scenario(server: Server) -> None:
        ask = Ask(server, "m")
        assert "no such voice" == await ask.error()
        error = ask.responses[0].error
        assert error is not None
        assert "NOT_FOUND" == error.code

    serve(tmp_path, scenario)


def test_outputs_that_nobody_asked_for_are_dropped(tmp_path: Path) -> None:
    add_thread_model(
        tmp_path,
        "m",
        """
        def execute(self, requests):
            one = np.ones(1, np.float32)
            return [pb_utils.InferenceResponse([pb_utils.Tensor("Y", one), pb_utils.Tensor("Z", one)]) for _ in requests]
        """,
        extra='output [{ name: "Z" data_type: TYPE_FP32 dims: [ -1 ] }]\n',
    )

    async def scenario(server: Server) -> None:
        (response,) = await Ask(server, "m", outputs=["Z"]).all()
        assert ["Z"] == [tensor.name for tensor in response.outputs]

    serve(tmp_path, scenario)


def test_a_sender_answers_from_another_thread(tmp_path: Path) -> None:
    add_thread_model(
        tmp_path,
        "m",
        """
        def execute(self, requests):
            for request in requests:
                threading.Thread(target=self.answer, args=(request.get_response_sender(),)).start()
        def answer(self, sender):
            for value in range(3):
                sender.send(pb_utils.InferenceResponse([pb_utils.Tensor("Y", np.array([value], np.float32))]))
            sender.send(flags=pb_utils.TRITONSERVER_RESPONSE_COMPLETE_FINAL)
        """,
        extra=DECOUPLED,
    )

    async def scenario(server: Server) -> None:
        ask = Ask(server, "m")
        assert [[0.0], [1.0], [2.0]] == await ask.values()
        assert ask.responses[-1].flag_only

    serve(tmp_path, scenario)


def test_a_dropped_sender_ends_its_request(tmp_path: Path) -> None:
    add_thread_model(tmp_path, "m", "def execute(self, requests): pass", extra=DECOUPLED)

    async def scenario(server: Server) -> None:
        assert "without a final response" in await Ask(server, "m").error()

    serve(tmp_path, scenario)


def test_async_executes_overlap(tmp_path: Path) -> None:
    add_thread_model(
        tmp_path,
        "m",
        """
        def initialize(self, args):
            self.arrived = 0
            self.all_here = asyncio.Event()
        async def execute(self, requests):
            self.arrived += len(requests)
            if self.arrived == 5:
                self.all_here.set()
            await self.all_here.wait()
            return [pb_utils.InferenceResponse([r.inputs()[0].__class__("Y", r.inputs()[0].as_numpy())]) for r in requests]
        """,
    )

    async def scenario(server: Server) -> None:
        asks = [Ask(server, "m", (float(i),)) for i in range(5)]
        assert [[[float(i)]] for i in range(5)] == [await ask.values() for ask in asks]

    serve(tmp_path, scenario)


def test_max_concurrent_executions_is_kept(tmp_path: Path) -> None:
    add_thread_model(
        tmp_path,
        "m",
        """
        def initialize(self, args):
            self.now = self.most = 0
        async def execute(self, requests):
            self.now += 1
            self.most = max(self.most, self.now)
            await asyncio.sleep(0.005)
            self.now -= 1
            return [pb_utils.InferenceResponse([pb_utils.Tensor("Y", np.array([self.most], np.float32))]) for _ in requests]
        """,
        MAX_CONCURRENT_EXECUTIONS="2",
    )

    async def scenario(server: Server) -> None:
        asks = [Ask(server, "m") for i in range(6)]
        assert [[2.0]] == [await ask.values() for ask in asks][-1]

    serve(tmp_path, scenario)


def test_cancellation_is_seen(tmp_path: Path) -> None:
    add_thread_model(
        tmp_path,
        "m",
        """
        def execute(self, requests):
            while not requests[0].is_cancelled():
                time.sleep(0.001)
            error = pb_utils.TritonError("stopped", pb_utils.TritonError.CANCELLED)
            return [pb_utils.InferenceResponse(error=error) for _ in requests]
        """,
    )

    async def scenario(server: Server) -> None:
        ask = Ask(server, "m")
        await asyncio.sleep(0.01)
        server.cancel(ask.request)
        assert "stopped" == await ask.error()

    serve(tmp_path, scenario)


def test_readiness_is_the_models_own(tmp_path: Path) -> None:
    add_thread_model(
        tmp_path,
        "m",
        execute("x")
        + """
async def is_ready(self):
    self.count = getattr(self, "count", 0) + 1
    return self.count > 1
""",
    )

    async def scenario(server: Server) -> None:
        assert not await server.check_model_ready("m")
        assert await server.check_model_ready("m")

    serve(tmp_path, scenario)


def test_auto_complete_config_runs(tmp_path: Path) -> None:
    add_thread_model(
        tmp_path,
        "m",
        """
        @staticmethod
        def auto_complete_config(config):
            config.add_output({"name": "Z", "data_type": "TYPE_INT32", "dims": [1]})
            return config
        """
        + "\n        ".join(execute("x").splitlines()),
    )

    async def scenario(server: Server) -> None:
        assert ["Y", "Z"] == [output["name"] for output in server.model_metadata("m")["outputs"]]

    serve(tmp_path, scenario)


def test_instances_have_globals_of_their_own(tmp_path: Path) -> None:
    add_thread_model(
        tmp_path,
        "m",
        """
        def initialize(self, args):
            seen.append(args["model_instance_name"])
            self.num_seen = len(seen)
        """
        + "\n        ".join(execute("np.array([self.num_seen], np.float32)").splitlines()),
        extra="instance_group [{ kind: KIND_CPU count: 2 }]\n",
        header="import numpy as np\nimport triton_python_backend_utils as pb_utils\nseen = []\n",
    )

    async def scenario(server: Server) -> None:
        asks = [Ask(server, "m") for _ in range(2)]
        assert [[[1.0]], [[1.0]]] == [await ask.values() for ask in asks]

    serve(tmp_path, scenario)


def test_instances_share_one_object_when_the_model_says_so(tmp_path: Path) -> None:
    notes = tmp_path / "notes"
    add_thread_model(
        tmp_path,
        "m",
        f"""
        def note(self, text):
            with open({str(notes)!r}, "a") as file:
                print(text, file=file)
        def initialize(self, args):
            self.note("initialize")
            self.barrier = threading.Barrier(3, timeout=5)
        def execute(self, requests):
            self.barrier.wait()  # three calls at one time
            same = np.array([id(self) % 65536], np.float32)
            return [pb_utils.InferenceResponse([pb_utils.Tensor("Y", same)]) for _ in requests]
        def finalize(self):
            self.note("finalize")
        """,
        extra="instance_group [{ kind: KIND_CPU count: 3 }]\n",
        SHARE_MODEL="yes",
    )

    async def scenario(server: Server) -> None:
        asks = [Ask(server, "m") for _ in range(3)]
        assert 1 == len({str(await ask.values()) for ask in asks})

    serve(tmp_path, scenario)
    assert ["initialize", "finalize"] == notes.read_text("utf-8").split()


def test_a_wrong_parameter_is_named(tmp_path: Path) -> None:
    add_thread_model(tmp_path, "m", execute("x"), SHARE_MODEL="maybe")

    async def scenario(_: Server) -> None: ...

    with pytest.raises(BiremeError, match="parameter SHARE_MODEL is 'maybe'; expected 'yes' or 'no'"):
        serve(tmp_path, scenario)


def test_nothing_is_left_after_an_unload(tmp_path: Path) -> None:
    add_thread_model(tmp_path, "gone", execute("x"))

    modules = set(sys.modules)

    async def scenario(server: Server) -> None:
        for _ in range(3):
            await server.load_model("gone")
            await Ask(server, "gone").all()
            await server.unload_model("gone")
        await until(lambda: not [thread for thread in threading.enumerate() if thread.name == "gone_0"])

    serve(tmp_path, scenario, model_control_mode="explicit")
    assert not [name for name in set(sys.modules) - modules if name.startswith("bireme_model_")]


@pytest.mark.slow
def test_a_stuck_thread_does_not_hold_up_the_stop(tmp_path: Path) -> None:
    add_thread_model(
        tmp_path,
        "m",
        """
        def execute(self, requests):
            time.sleep(30)
        """,
    )

    async def main() -> None:
        server = Server(tmp_path)
        await server.start()
        ask = Ask(server, "m")
        await asyncio.sleep(0.01)
        await server.stop(0.1)
        assert "is stuck in the model's code" in await ask.error()

    asyncio.run(main())
