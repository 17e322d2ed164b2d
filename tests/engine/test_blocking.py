"""BlockingServer: a plain script's view of a server."""

import threading
from concurrent.futures import ThreadPoolExecutor

import numpy as np
import pytest

from bireme import Internal, NotFound, Server, Unavailable
from model_dirs import LoadingBackend, add_fake_model


@pytest.fixture
def backend():
    return LoadingBackend(run=lambda inputs: {"Y": inputs["X"] + 1})


@pytest.fixture
def server(tmp_path, backend):
    add_fake_model(tmp_path, "plus")
    return Server(tmp_path, backends={"fake": backend}, model_control_mode="explicit", load_model=("plus",))


def test_a_plain_script_needs_two_lines(server, backend):
    with server as s:
        assert s.infer("plus", {"X": np.array([1, 2], np.float32)})["Y"].tolist() == [2.0, 3.0]
    assert backend.num_open_models == 0
    assert not [thread for thread in threading.enumerate() if thread.name == "bireme-server"]


def test_every_method_waits_until_it_is_done(server, tmp_path):
    add_fake_model(tmp_path, "other")
    with server as s:
        assert s.is_live
        assert s.is_ready
        assert s.is_model_ready("plus")
        assert s.metadata()["name"] == "triton"
        assert s.model_metadata("plus")["versions"] == ["1"]
        assert s.model_config("plus")["backend"] == "fake"
        assert s.model("plus").max_batch_size == 0
        s.load_model("other")
        assert s.repository_index(ready=True) == [
            {"name": name, "version": "1", "state": "READY"} for name in ("other", "plus")
        ]
        s.infer("other", {"X": [1]})
        assert s.model_statistics("other")["model_stats"][0]["inference_count"] == 1
        assert b'nv_inference_request_success{model="other",version="1"} 1' in s.expose_metrics()
        s.unload_model("other")
        with pytest.raises(NotFound):
            s.infer("other", {"X": [1]})
        with pytest.raises(Internal, match=r"failed to load 'nope'"):
            s.load_model("nope")
        assert "ready" in repr(s)


def test_many_threads_may_call_at_once(server):
    with server as s, ThreadPoolExecutor(8) as pool:
        results = list(pool.map(lambda i: s.infer("plus", {"X": [i]})["Y"][0], range(200)))
    assert results == [i + 1 for i in range(200)]


def test_a_failed_start_is_raised_and_ends_the_thread(server, backend):
    backend.broken["plus", 1] = Internal("no weights")
    with pytest.raises(Internal, match=r"failed to load all models: .*no weights"), server:
        pass
    assert not [thread for thread in threading.enumerate() if thread.name == "bireme-server"]


def test_after_the_end_every_call_says_so(server):
    with server as s:
        pass
    assert not s.is_live
    assert not s.is_ready
    for call in (
        lambda: s.infer("plus", {"X": [1]}),
        lambda: s.load_model("plus"),
        lambda: s.model_metadata("plus"),
    ):
        with pytest.raises(Unavailable, match=r"Server"):
            call()
    assert s.close()


def test_a_call_that_runs_at_the_end_is_answered(server, backend):
    with server as s, ThreadPoolExecutor(1) as pool:
        backend.gate.clear()
        call = pool.submit(s.infer, "plus", {"X": [1]})
        assert backend.started.acquire(timeout=10)
        threading.Timer(0.05, backend.gate.set).start()
        s.close()
        assert call.result(timeout=10)["Y"].tolist() == [2.0]


def test_a_call_that_the_end_cannot_wait_for_is_answered_all_the_same(server, backend, monkeypatch):
    monkeypatch.setattr("bireme.engine.lifecycle._CLOSE_GRACE_S", 0.02)
    monkeypatch.setattr("bireme.engine.inference._LOOP_CHECK_S", 0.02)
    with server as s, ThreadPoolExecutor(2) as pool:
        backend.gate.clear()
        running = pool.submit(s.infer, "plus", {"X": [1]})
        assert backend.started.acquire(timeout=10)
        assert not s.close(timeout_s=0)
        with pytest.raises(Unavailable, match=r"its event loop has ended"):
            running.result(timeout=10)
        backend.gate.set()


def test_it_can_be_used_again_after_it_was_closed(server):
    for _ in range(2):
        with server as s:
            assert s.infer("plus", {"X": 1})["Y"].tolist() == [2.0]
