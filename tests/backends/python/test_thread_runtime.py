"""What models in threads ask of the server: other models, metrics, logs, model control, and whose code is running."""

from __future__ import annotations

import logging
import threading
from pathlib import Path

import numpy as np
import pytest

from bireme import Server
from bireme.backends.python import thread_runtime
from model_dirs import until
from thread_models import DECOUPLED, Ask, add_thread_model, calling, execute, serve

STREAMING = """
def execute(self, requests):
    for request in requests:
        sender = request.get_response_sender()
        for value in request.inputs()[0].as_numpy():
            sender.send(pb_utils.InferenceResponse([pb_utils.Tensor("Y", np.array([value], np.float32))]))
        sender.send(flags=pb_utils.TRITONSERVER_RESPONSE_COMPLETE_FINAL)
"""
FIRST = "call('double').output_tensors()[0].as_numpy()"


def test_a_model_calls_another_one(tmp_path: Path) -> None:
    add_thread_model(tmp_path, "double", execute("x * 2"))
    add_thread_model(tmp_path, "m", calling(f"{FIRST} + 1"))

    async def scenario(server: Server) -> None:
        assert [[3.0, 5.0]] == await Ask(server, "m", (1.0, 2.0)).values()
        model = server.model("double").statistics
        await until(lambda: 1 == model.to_json()["inference_stats"]["success"]["count"])

    serve(tmp_path, scenario)


def test_tensors_of_calls_are_not_copied(tmp_path: Path) -> None:
    add_thread_model(tmp_path, "same", execute("x"))
    add_thread_model(
        tmp_path,
        "m",
        calling(
            "np.array([np.shares_memory(x.as_numpy(), call('same').output_tensors()[0].as_numpy())], np.float32)"
        ),
    )

    async def scenario(server: Server) -> None:
        assert [[1.0]] == await Ask(server, "m").values()

    serve(tmp_path, scenario)


def test_a_called_model_cannot_write_to_the_callers_arrays(tmp_path: Path) -> None:
    add_thread_model(tmp_path, "m", calling("np.array([call('writes').error() is not None], np.float32)"))
    add_thread_model(tmp_path, "writes", execute("x.__iadd__(1)"))

    async def scenario(server: Server) -> None:
        ask = Ask(server, "m", np.array([1.0], np.float32))
        assert [[1.0]] == await ask.values()
        assert [1.0] == ask.request.inputs["X"].to_numpy().tolist()

    serve(tmp_path, scenario)


def test_failures_of_calls_are_responses(tmp_path: Path) -> None:
    body = calling(
        "np.array([call(n).error().message() for n in ('broken', 'nobody', 'stream')], np.object_)"
    )
    add_thread_model(tmp_path, "m", body)
    add_thread_model(tmp_path, "broken", "def execute(self, requests): raise ValueError('no')")
    add_thread_model(tmp_path, "stream", STREAMING, extra=DECOUPLED)

    async def scenario(server: Server) -> None:
        ((broken, nobody, stream),) = await Ask(server, "m").values()
        assert b"ValueError: no" in broken
        assert nobody.startswith(b"Model nobody - Error when running inference: ")
        assert b"Please use 'decoupled=True' argument" in stream

    serve(tmp_path, scenario)


def test_a_decoupled_call_streams(tmp_path: Path) -> None:
    add_thread_model(tmp_path, "stream", STREAMING, extra=DECOUPLED)
    sums = (
        "np.array([r.output_tensors()[0].as_numpy()[0] for r in call('stream', True) if r.output_tensors()])"
    )
    add_thread_model(tmp_path, "m", calling(sums))

    async def scenario(server: Server) -> None:
        assert [[1.0, 2.0, 3.0]] == await Ask(server, "m", (1.0, 2.0, 3.0)).values()

    serve(tmp_path, scenario)


def test_async_calls_overlap(tmp_path: Path) -> None:
    add_thread_model(
        tmp_path,
        "slow",
        """
        barrier = threading.Barrier(3, timeout=5)
        def execute(self, requests):
            self.barrier.wait()
            return [pb_utils.InferenceResponse([pb_utils.Tensor("Y", np.ones(1, np.float32))]) for _ in requests]
        """,
        extra="instance_group [{ kind: KIND_CPU count: 3 }]\n",
        SHARE_MODEL="yes",
    )
    add_thread_model(
        tmp_path,
        "m",
        """
        async def execute(self, requests):
            asked = [
                pb_utils.InferenceRequest(
                    model_name="slow", inputs=requests[0].inputs(), requested_output_names=["Y"]
                ).async_exec() for _ in range(3)
            ]
            responses = await asyncio.gather(*asked)
            total = sum(r.output_tensors()[0].as_numpy() for r in responses)
            return [pb_utils.InferenceResponse([pb_utils.Tensor("Y", total)])]
        """,
    )

    async def scenario(server: Server) -> None:
        assert [[3.0]] == await Ask(server, "m").values()

    serve(tmp_path, scenario)


def test_a_cancelled_await_takes_the_call_back(tmp_path: Path) -> None:
    add_thread_model(
        tmp_path,
        "slow",
        """
        def execute(self, requests):
            while not requests[0].is_cancelled():
                time.sleep(0.001)
            return [pb_utils.InferenceResponse([]) for _ in requests]
        """,
    )
    add_thread_model(
        tmp_path,
        "m",
        """
        async def execute(self, requests):
            asked = pb_utils.InferenceRequest(
                model_name="slow", inputs=requests[0].inputs(), requested_output_names=["Y"]
            ).async_exec()
            try:
                await asyncio.wait_for(asked, 0.02)
            except TimeoutError:
                return [pb_utils.InferenceResponse([pb_utils.Tensor("Y", np.zeros(1, np.float32))])]
        """,
    )

    async def scenario(server: Server) -> None:
        assert [[0.0]] == await Ask(server, "m").values()

    serve(tmp_path, scenario)


def test_a_model_that_calls_itself_is_told(tmp_path: Path) -> None:
    add_thread_model(tmp_path, "m", calling("np.array([len(call('m').error().message())], np.float32)"))

    async def scenario(server: Server) -> None:
        ((length,),) = await Ask(server, "m").values()
        assert length > 0

    serve(tmp_path, scenario)


def test_calls_in_initialize_are_refused(tmp_path: Path) -> None:
    add_thread_model(
        tmp_path,
        "m",
        """
        def initialize(self, args):
            tensor = pb_utils.Tensor("X", np.ones(1, np.float32))
            asked = pb_utils.InferenceRequest(model_name="n", inputs=[tensor], requested_output_names=["Y"])
            try:
                asked.exec()
            except pb_utils.TritonModelException as error:
                self.message = str(error)
        """
        + "\n        ".join(execute("np.array([len(self.message)], np.float32)").splitlines()),
    )

    async def scenario(server: Server) -> None:
        expected = len("BLS is only supported during the 'execute' function.")
        assert [[float(expected)]] == await Ask(server, "m").values()

    serve(tmp_path, scenario)


def test_metrics_and_log_lines_reach_the_server(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    add_thread_model(
        tmp_path,
        "m",
        """
        def initialize(self, args):
            self.family = pb_utils.MetricFamily("spoken_words", "Words", pb_utils.MetricFamily.COUNTER)
            self.metric = self.family.Metric(labels={"voice": "low"})
        def execute(self, requests):
            self.metric.increment(3)
            pb_utils.Logger.log_warn("said it")
            value = np.array([self.metric.value()], np.float32)
            return [pb_utils.InferenceResponse([pb_utils.Tensor("Y", value)]) for _ in requests]
        """,
    )

    async def scenario(server: Server) -> None:
        assert [[3.0]] == await Ask(server, "m").values()
        assert b'spoken_words{voice="low"} 3' in server.metrics.expose()

    with caplog.at_level(logging.WARNING):
        serve(tmp_path, scenario)
    (record,) = [record for record in caplog.records if record.getMessage() == "said it"]
    assert "model.py" == record.filename


def test_models_load_and_unload_others(tmp_path: Path) -> None:
    add_thread_model(tmp_path, "double", execute("x * 2"))
    add_thread_model(
        tmp_path,
        "m",
        """
        def execute(self, requests):
            states = [pb_utils.is_model_ready("double")]
            pb_utils.load_model("double")
            states.append(pb_utils.is_model_ready("double", "1"))
            pb_utils.unload_model("double")
            states.append(pb_utils.is_model_ready("double"))
            states = np.array(states, np.float32)
            return [pb_utils.InferenceResponse([pb_utils.Tensor("Y", states)]) for _ in requests]
        """,
    )

    async def scenario(server: Server) -> None:
        await server.load_model("m")
        assert [[0.0, 1.0, 0.0]] == await Ask(server, "m").values()

    serve(tmp_path, scenario, model_control_mode="explicit")


def test_threads_that_a_model_starts_belong_to_it(tmp_path: Path) -> None:
    body = """
    def execute(self, requests):
        found = []
        thread = threading.Thread(target=self.look, args=(found,))
        thread.start()
        thread.join()
        return [pb_utils.InferenceResponse([pb_utils.Tensor("Y", np.array(found, np.float32))]) for _ in requests]
    def look(self, found):
        found.append(float(pb_utils.get_model_dir().split("/")[-2][1:]))
    """
    add_thread_model(tmp_path, "m1", body)
    add_thread_model(tmp_path, "m2", body)

    async def scenario(server: Server) -> None:
        for name, number in (("m1", 1.0), ("m2", 2.0)):
            assert [[number]] == await Ask(server, name).values()

    serve(tmp_path, scenario)


def test_no_model_runs_in_a_thread_of_the_program() -> None:
    with pytest.raises(RuntimeError, match="no model's code is running"):
        thread_runtime.find()
    assert threading.current_thread().name == "MainThread"


def test_streams_end_for_tasks_too(tmp_path: Path) -> None:
    add_thread_model(tmp_path, "stream", STREAMING, extra=DECOUPLED)
    add_thread_model(
        tmp_path,
        "m",
        """
        async def execute(self, requests):
            asked = pb_utils.InferenceRequest(
                model_name="stream", inputs=requests[0].inputs(), requested_output_names=["Y"]
            )
            found = []
            responses = await asked.async_exec(decoupled=True)
            for response in responses:
                found += [tensor.as_numpy()[0] for tensor in response.output_tensors()]
            return [pb_utils.InferenceResponse([pb_utils.Tensor("Y", np.array(found, np.float32))])]
        """,
    )

    async def scenario(server: Server) -> None:
        assert [[5.0, 7.0]] == await Ask(server, "m", (5.0, 7.0)).values()

    serve(tmp_path, scenario)


WHERE = "np.array([threading.get_ident() % 65536], np.float32)"


def test_a_free_model_runs_on_the_callers_thread(tmp_path: Path) -> None:
    add_thread_model(tmp_path, "where", execute(WHERE))
    add_thread_model(tmp_path, "m", calling(f"call('where').output_tensors()[0].as_numpy() - {WHERE}"))

    async def scenario(server: Server) -> None:
        for _ in range(3):
            assert [[0.0]] == await Ask(server, "m").values()

    serve(tmp_path, scenario)


def test_a_model_called_directly_may_answer_by_its_sender_and_later(tmp_path: Path) -> None:
    add_thread_model(
        tmp_path,
        "sends",
        """
        def execute(self, requests):
            threading.Thread(target=self.answer, args=(requests[0].get_response_sender(),)).start()
        def answer(self, sender):
            time.sleep(0.01)
            response = pb_utils.InferenceResponse([pb_utils.Tensor("Y", np.full(1, 7, np.float32))])
            sender.send(response, flags=pb_utils.TRITONSERVER_RESPONSE_COMPLETE_FINAL)
        """,
    )
    add_thread_model(tmp_path, "drops", "def execute(self, requests): pass")
    error = "np.array([call('drops').error() is not None], np.float32)"
    sent = "call('sends').output_tensors()[0].as_numpy()"
    add_thread_model(tmp_path, "m", calling(f"np.concatenate([{sent}, {error}])"))

    async def scenario(server: Server) -> None:
        assert [[7.0, 1.0]] == await Ask(server, "m").values()

    serve(tmp_path, scenario)


def test_direct_calls_nest_and_know_whose_code_runs(tmp_path: Path) -> None:
    name = "float(pb_utils.get_model_dir().split('/')[-2][1:])"
    inner = f"np.array([{name}], np.float32)"
    add_thread_model(tmp_path, "m3", execute(inner))
    for number in (1, 2):
        before, after = f"np.array([{name}], np.float32)", f"np.array([{name}], np.float32)"
        called = f"call('m{number + 1}').output_tensors()[0].as_numpy()"
        add_thread_model(tmp_path, f"m{number}", calling(f"np.concatenate([{before}, {called}, {after}])"))

    async def scenario(server: Server) -> None:
        assert [[1.0, 2.0, 3.0, 2.0, 1.0]] == await Ask(server, "m1").values()

    serve(tmp_path, scenario)


def test_models_that_call_each_other_are_told(tmp_path: Path) -> None:
    answer = "float(call('{}').error() is not None)"
    add_thread_model(tmp_path, "m", calling(f"np.array([{answer.format('n')}], np.float32)"))
    add_thread_model(tmp_path, "n", calling(f"np.array([{answer.format('m')}], np.float32)"))

    async def scenario(server: Server) -> None:
        assert [[0.0]] == await Ask(server, "m").values()  # the error is n's, which answers with what it got

    serve(tmp_path, scenario)
