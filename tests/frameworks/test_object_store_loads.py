"""Models out of a real S3 server: loads, reloads, polling, and what is fetched for them."""

import logging
import time

import numpy as np
import pytest
from onnx import TensorProto, helper

from bireme.engine import Server
from bireme.engine.options import ServerOptions
from bireme.types import Internal, InvalidArgument, Unavailable
from onnx_models import save_graph, tensor_info
from s3_server import SECRET, cut, refuse

ALL = b"version_policy { all { } }"


@pytest.fixture
def s3(s3_server, monkeypatch):
    for name, value in s3_server.environment.items():
        monkeypatch.setenv(name, value)
    return s3_server


@pytest.fixture
def plus(tmp_path):
    """Return the file of a model with Y = X + ``number``."""

    def make(number):
        constant = helper.make_tensor("c", TensorProto.FLOAT, [], [float(number)])
        node = helper.make_node("Add", ["X", "c"], ["Y"])
        path = save_graph(
            tmp_path / "plus.onnx",
            [node],
            [tensor_info("X", "FP32", (1,))],
            [tensor_info("Y", "FP32", (1,))],
            [constant],
        )
        return path.read_bytes()

    return make


@pytest.fixture
def serve(s3, tmp_path):
    servers = []

    def open_it(mode="explicit", **options):
        settings = {
            "model_repository": (s3.location("models"),),
            "object_cache_directory": str(tmp_path / "cache"),
            "exit_timeout_secs": 1,
        }
        server = Server(options=ServerOptions(model_control_mode=mode, **settings | options))
        servers.append(server.__enter__())
        return servers[-1]

    yield open_it
    for server in servers:
        server.close()


def ask(server, version=-1, name="m"):
    (outcome,) = server.infer(name, {"X": np.zeros(1, np.float32)}, version=version).values()
    return outcome.item()


def wait_until(condition, timeout_s=20.0):
    deadline = time.monotonic() + timeout_s
    while not condition():
        assert time.monotonic() < deadline
        time.sleep(0.02)


@pytest.mark.slow
def test_a_model_without_a_config_serves(s3, plus, serve):
    s3.put("models/m/1/model.onnx", plus(1))
    server = serve("none")
    assert ask(server) == 1
    assert s3.counts == {"LIST": 3, "GET": 1}  # as a test, of all models, and for the table of models


@pytest.mark.slow
def test_only_the_versions_of_the_policy_are_fetched_with_what_all_share(s3, plus, serve):
    s3.put("models/m/config.pbtxt", b'parameters { key: "x" value { string_value: "y" } }')
    s3.put("models/m/labels.txt", b"a\nb")
    s3.put("models/m/warmup/data", b"1234")
    for version in (1, 2, 10):
        s3.put(f"models/m/{version}/model.onnx", plus(version))
    s3.put("models/other/1/model.onnx", plus(0))
    server = serve()
    s3.forget()
    server.load_model("m")
    assert ask(server) == 10
    assert sorted(s3.fetched) == [
        "models/m/10/model.onnx",
        "models/m/config.pbtxt",
        "models/m/labels.txt",
        "models/m/warmup/data",
    ]
    assert s3.counts == {"LIST": 1, "GET": 4}


@pytest.mark.slow
def test_a_second_start_fetches_nothing_again(s3, plus, serve):
    s3.put("models/m/1/model.onnx", plus(1))
    s3.put("models/m/config.pbtxt", ALL)
    assert ask(serve("none")) == 1
    s3.forget()
    assert ask(serve("none")) == 1
    assert s3.counts["GET"] == 0


@pytest.mark.slow
def test_a_reload_swaps_what_has_changed_and_leaves_other_versions_as_they_are(s3, plus, serve):
    s3.put("models/m/config.pbtxt", ALL)
    s3.put("models/m/1/model.onnx", plus(1))
    server = serve(load_model=("m",))
    first = server.model("m", 1)
    s3.put("models/m/2/model.onnx", plus(2))
    server.load_model("m")
    assert (ask(server, 1), ask(server, 2)) == (1, 2)
    assert server.model("m", 1) is first
    assert s3.fetched == ["models/m/2/model.onnx"]
    s3.put("models/m/2/model.onnx", plus(22))
    server.load_model("m")
    assert (ask(server, 1), ask(server)) == (1, 22)
    assert server.model("m", 1) is first
    s3.forget()
    server.load_model("m")
    assert s3.counts == {"LIST": 1}


@pytest.mark.slow
def test_polling_finds_new_versions_and_models_and_what_is_gone_with_one_list_a_poll(s3, plus, serve):
    s3.put("models/m/1/model.onnx", plus(1))
    for index in range(20):
        s3.put(f"models/extra{index}/1/model.onnx", plus(index))
    server = serve("poll", repository_poll_secs=0.1)
    assert ask(server) == 1
    s3.forget()
    wait_until(lambda: len(s3.requests) >= 3)
    assert s3.counts.keys() == {"LIST"}
    s3.put("models/m/2/model.onnx", plus(2))
    wait_until(lambda: ask(server) == 2)
    assert s3.fetched == ["models/m/2/model.onnx"]
    s3.delete("models/extra3/1/model.onnx")
    wait_until(lambda: server.repository_index(ready=True)[-1] and "extra3" not in names(server))
    assert ask(server, name="extra4") == 4


def names(server):
    return {entry["name"] for entry in server.repository_index(ready=True)}


@pytest.mark.slow
def test_a_store_that_cannot_be_reached_keeps_what_serves_and_is_said_once(s3, plus, serve, caplog):
    caplog.set_level(logging.INFO, "bireme.repository")
    s3.put("models/m/1/model.onnx", plus(1))
    server = serve("poll", repository_poll_secs=0.05)
    with s3.failing(refuse("403 Forbidden", "AccessDenied", "Access Denied")):
        s3.forget()
        wait_until(lambda: len(s3.requests) >= 6)
        assert ask(server) == 1
    wait_until(lambda: "can be read again" in caplog.text)
    assert caplog.text.count("failed to poll model repository") == 1
    assert "403 Forbidden (AccessDenied: Access Denied)" in caplog.text
    assert SECRET not in caplog.text


@pytest.mark.slow
def test_an_object_that_cannot_be_read_is_named_and_the_next_load_goes_on(s3, plus, serve):
    s3.put("models/m/1/model.onnx", plus(1))
    s3.put("models/m/1/more/weights.bin", b"12345")
    server = serve()
    with (
        s3.failing(refuse("403 Forbidden", "AccessDenied", "Access Denied", only="weights")),
        pytest.raises(InvalidArgument, match=r"models/m/1/more/weights.bin: 403 Forbidden \(AccessDenied"),
    ):
        server.load_model("m")
    assert "weights.bin" in server.repository_index()[0]["reason"]
    server.load_model("m")
    assert ask(server) == 1


@pytest.mark.slow
def test_a_download_that_breaks_off_goes_on_where_it_broke(s3, plus, serve):
    content = plus(1)
    s3.put("models/m/1/model.onnx", content)
    s3.put("models/m/1/weights.bin", bytes(range(256)) * 8192)
    server = serve()
    with s3.failing(cut("weights.bin", after=1_000_000, times=2)):
        server.load_model("m")
    assert ask(server) == 1
    ranges = [each for each in s3.ranges if each]
    assert ranges
    assert all(not each.startswith("bytes=0-") for each in ranges)


@pytest.mark.slow
def test_a_model_that_is_replaced_while_it_is_fetched_is_looked_at_again(s3, plus, serve):
    s3.put("models/m/1/model.onnx", plus(1))
    server = serve()
    replaced = []

    def replace(environ, _):
        if "model.onnx" in environ["PATH_INFO"] and environ["REQUEST_METHOD"] == "GET" and not replaced:
            replaced.append(True)
            s3.put("models/m/1/model.onnx", plus(7))

    with s3.failing(replace):
        server.load_model("m")
    assert ask(server) == 7


@pytest.mark.slow
@pytest.mark.parametrize(
    ("fault", "text"),
    [
        (
            refuse("404 Not Found", "NoSuchBucket", "no"),
            "404 Not Found (NoSuchBucket: the bucket does not exist)",
        ),
        (
            refuse("403 Forbidden", "InvalidAccessKeyId", "no"),
            "403 Forbidden (InvalidAccessKeyId: the store does not know this access key)",
        ),
        (refuse("301 Moved Permanently", "PermanentRedirect", "no"), "set AWS_DEFAULT_REGION"),
    ],
)
def test_a_repository_that_cannot_be_listed_is_an_error_at_start(s3, serve, fault, text):
    with (
        s3.failing(fault),
        pytest.raises(InvalidArgument, match="cannot read the model repository") as caught,
    ):
        serve("none")
    assert text in caught.value.message
    assert "AKIA" not in caught.value.message


@pytest.mark.slow
def test_a_load_from_a_store_that_refuses_says_so(s3, plus, serve):
    s3.put("models/m/1/model.onnx", plus(1))
    server = serve()
    with (
        s3.failing(refuse("403 Forbidden", "AccessDenied", "Access Denied")),
        pytest.raises(
            Internal, match=r"failed to load 'm', failed to poll from model repository: .*403 Forbidden"
        ),
    ):
        server.load_model("m")


@pytest.mark.slow
def test_rotated_credentials_are_looked_up_again(s3, plus, serve, monkeypatch, tmp_path):
    s3.put("models/m/1/model.onnx", plus(1))
    server = serve()

    def only_the_new_key(environ, start_response):
        if "Credential=NEWKEY/" in environ.get("HTTP_AUTHORIZATION", ""):
            return None
        return refuse("403 Forbidden", "ExpiredToken", "expired")(environ, start_response)

    with s3.failing(only_the_new_key):
        monkeypatch.setenv("AWS_ACCESS_KEY_ID", "NEWKEY")
        server.load_model("m")
    assert ask(server) == 1


@pytest.mark.slow
def test_a_config_override_keeps_the_versions_of_the_store(s3, plus, serve):
    for version in (1, 2):
        s3.put(f"models/m/{version}/model.onnx", plus(version))
    server = serve(load_model=("m",))
    server.load_model("m", '{"backend": "onnxruntime", "version_policy": {"specific": {"versions": [1]}}}')
    assert ask(server) == 1
    server.load_model("m")
    assert ask(server) == 2


@pytest.mark.slow
def test_on_demand_a_first_request_fetches_the_model(s3, plus, serve):
    s3.put("models/m/1/model.onnx", plus(1))
    server = serve("ondemand")
    assert server.is_model_ready("m")
    assert not s3.fetched
    assert ask(server) == 1


@pytest.mark.slow
def test_two_repositories_with_the_same_model_have_namespaces(s3, plus, serve):
    s3.put("a/m/1/model.onnx", plus(1))
    s3.put("b/n/1/model.onnx", plus(2))
    s3.put("b/m/1/model.onnx", plus(3))
    locations = (s3.location("a"), s3.location("b/"))
    server = serve("none", model_repository=locations, model_namespacing=True)
    found = {(entry["namespace"], entry["name"]) for entry in server.repository_index()}
    assert found == {(locations[0], "m"), (locations[1], "n"), (locations[1], "m")}
    assert ask(server, name="n") == 2


@pytest.mark.slow
def test_repositories_come_and_go_while_it_serves(s3, plus, serve):
    s3.put("later/m/1/model.onnx", plus(5))
    server = serve()
    server.register_repository(s3.location("later"), {"other": "m"})
    with pytest.raises(Exception, match="already been registered"):
        server.register_repository(s3.location("later//"))
    server.load_model("other")
    assert ask(server, name="other") == 5
    server.unregister_repository(s3.location("later/"))
    assert ask(server, name="other") == 5
    with pytest.raises(Internal, match="not found in any"):
        server.load_model("other")


@pytest.mark.slow
def test_a_key_that_is_no_path_spoils_its_own_model_alone(s3, plus, serve, caplog):
    s3.put("models/m/1/model.onnx", plus(1))
    s3.put("models/odd/1/model.onnx", plus(2))
    s3.put("models/odd/../../etc/passwd", b"root")
    server = serve("none", exit_on_error=False)
    assert ask(server) == 1
    (entry,) = [each for each in server.repository_index() if each["name"] == "odd"]
    assert "reason" not in entry
    assert "the key 'models/odd/../../etc/passwd' cannot be a file's path" in caplog.text


@pytest.mark.slow
def test_names_of_files_may_have_any_characters(s3, plus, serve):
    s3.put("models/m/1/model.onnx", plus(1))
    odd = ["a b.txt", "ü%2F+.txt", "&?#=.txt", "back\\slash", "sub/quote'\".txt", ".hidden"]
    for name in odd:
        s3.put(f"models/m/1/{name}", name.encode())
    s3.put("models/m/1/sub/", b"")
    s3.put("models/m/1/__pycache__/x.pyc", b"")
    s3.put("models/README.md", b"no model")
    server = serve("none")
    assert ask(server) == 1
    folder = server._server._lifecycle.table.records["m"].source.directory.path / "1"
    found = {str(path.relative_to(folder)) for path in folder.rglob("*") if path.is_file()}
    assert found == {"model.onnx", *odd}
    assert all((folder / name).read_bytes() == name.encode() for name in odd)


@pytest.mark.slow
def test_nothing_is_left_of_a_model_but_what_the_next_load_uses(s3, plus, serve, tmp_path):
    s3.put("models/m/1/model.onnx", plus(1))
    server = serve("none")
    assert ask(server) == 1
    assert [*(tmp_path / "cache" / "live").rglob("model.onnx")]
    server.close()
    wait_until(lambda: not [*(tmp_path / "cache" / "live").rglob("model.onnx")])
    assert len([path for path in (tmp_path / "cache" / "blobs").rglob("*") if path.is_file()]) == 1


PYTHON = b"""
from pathlib import Path
import triton_python_backend_utils as pb_utils

class TritonPythonModel:
    def initialize(self, args):
        here = Path(args["model_repository"])
        self.add = float((here / args["model_version"] / "number.txt").read_text())
        (here / "written.txt").write_text("the folder is its own")

    def execute(self, requests):
        return [
            pb_utils.InferenceResponse(
                [pb_utils.Tensor("Y", pb_utils.get_input_tensor_by_name(request, "X").as_numpy() + self.add)]
            )
            for request in requests
        ]
"""
X_TO_Y = b'input { name: "X" data_type: TYPE_FP32 dims: 1 } output { name: "Y" data_type: TYPE_FP32 dims: 1 }'
ENSEMBLE = (
    b'platform: "ensemble"'
    + X_TO_Y
    + b"""ensemble_scheduling { step [
    { model_name: "py" model_version: -1 input_map { key: "X" value: "X" } output_map { key: "Y" value: "t" } },
    { model_name: "m" model_version: -1 input_map { key: "X" value: "t" } output_map { key: "Y" value: "Y" } } ] }"""
)


@pytest.mark.slow
def test_an_ensemble_and_its_models_come_out_of_the_store(s3, plus, serve):
    s3.put("models/m/1/model.onnx", plus(1))
    s3.put("models/py/config.pbtxt", b'backend: "python"' + X_TO_Y)
    s3.put("models/py/1/model.py", PYTHON)
    s3.put("models/py/1/number.txt", b"10")
    s3.put("models/both/config.pbtxt", ENSEMBLE)
    server = serve()
    s3.forget()
    server.load_model("both")
    assert s3.counts["LIST"] == 3
    assert ask(server, name="both") == 11
    s3.put("models/py/1/number.txt", b"20")
    server.load_model("py")
    assert ask(server, name="both") == 21


@pytest.mark.slow
def test_a_first_request_while_the_store_is_away_is_answered_so(s3, plus, serve):
    s3.put("models/m/1/model.onnx", plus(1))
    server = serve("ondemand")
    with (
        s3.failing(refuse("403 Forbidden", "AccessDenied", "Access Denied")),
        pytest.raises(Unavailable, match=r"'m' cannot be looked for in .*403 Forbidden"),
    ):
        ask(server)
    with pytest.raises(Unavailable, match="the next try is in"):
        ask(server)


@pytest.mark.slow
def test_a_failed_poll_of_one_model_is_tried_again(s3, plus, serve):
    s3.put("models/m/1/model.onnx", plus(1))
    server = serve("poll", repository_poll_secs=0.05)
    s3.put("models/m/2/model.onnx", plus(2))
    with s3.failing(refuse("403 Forbidden", "AccessDenied", "Access Denied", only="2/model.onnx")):
        wait_until(lambda: any("403" in entry.get("reason", "") for entry in server.repository_index()))
        assert ask(server) == 1
    wait_until(lambda: ask(server) == 2)
