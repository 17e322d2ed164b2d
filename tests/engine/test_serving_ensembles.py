"""A whole server with ensembles of Python models: what callers see while models come, change and go."""

import asyncio
import textwrap

import pytest

from bireme import Server
from bireme.types import BiremeError, NotFound
from model_dirs import add_fake_ensemble, touch, until
from thread_models import HEADER, add_thread_model, calling, execute, serve

EXPLICIT = {"model_control_mode": "explicit"}


def add_chain(root):
    add_thread_model(root, "plus", execute("x + 1"))
    add_thread_model(root, "double", execute("x * 2"))
    add_fake_ensemble(root, "chain", "plus", "double")


async def ask(server, name="chain"):
    return (await server.ainfer(name, {"X": [1, 2]}))["Y"].tolist()


def test_a_server_told_only_of_the_ensemble_loads_all_that_it_needs(tmp_path):
    add_chain(tmp_path)
    add_thread_model(tmp_path, "other", execute("x"))

    async def scenario(server):
        assert await ask(server) == [4, 6]
        states = {entry["name"]: entry.get("state") for entry in server.repository_index()}
        assert states == {"chain": "READY", "plus": "READY", "double": "READY", "other": None}
        assert server.is_ready
        await server.unload_model("chain", unload_dependents=True)
        assert server.repository_index(ready=True) == []
        assert server.is_ready

    serve(tmp_path, scenario, load_model=("chain",), **EXPLICIT)


def test_without_model_control_everything_serves(tmp_path):
    add_chain(tmp_path)

    async def scenario(server):
        assert await ask(server) == [4, 6]

    serve(tmp_path, scenario)


def test_a_start_fails_with_the_composing_model_that_is_missing(tmp_path):
    add_fake_ensemble(tmp_path, "e", "nowhere")

    async def main():
        with pytest.raises(BiremeError, match="ensemble 'e' depends on 'nowhere', which failed to load"):
            await Server(tmp_path).start()

    asyncio.run(main())


@pytest.mark.slow
def test_not_one_call_fails_while_composing_models_are_reloaded(tmp_path):
    add_chain(tmp_path)
    add_fake_ensemble(tmp_path, "outer", "chain", "plus")

    async def scenario(server):
        await server.load_model("outer")
        results = []

        async def call():
            while len(results) < 200:
                results.append(await ask(server, "outer"))

        calls = [asyncio.ensure_future(call()) for _ in range(4)]
        for number in range(5):
            await until(lambda number=number: len(results) >= 30 * number)
            touch(tmp_path / "plus" / "1" / "model.py")
            with (tmp_path / "double" / "config.pbtxt").open("a", encoding="utf-8") as config:
                config.write(f'parameters {{ key: "k{number}" value {{ string_value: "v" }} }}\n')
            await asyncio.gather(server.load_model("plus"), server.load_model("double"))
        await asyncio.gather(*calls)
        assert results == [[5, 7]] * len(results)
        (statistics,) = server.model_statistics("outer")["model_stats"]
        assert statistics["inference_stats"]["success"]["count"] == len(results)

    serve(tmp_path, scenario, **EXPLICIT)


def test_an_ensemble_leaves_and_returns_with_the_data_type_of_a_model(tmp_path):
    add_chain(tmp_path)
    path = tmp_path / "double" / "config.pbtxt"
    good = path.read_text("utf-8")

    async def scenario(server):
        await server.load_model("chain")
        path.write_text(good.replace('"X" data_type: TYPE_FP32', '"X" data_type: TYPE_INT32'), "utf-8")
        await server.load_model("double")
        assert not server.is_ready
        with pytest.raises(NotFound, match="inconsistent data type"):
            await ask(server)
        path.write_text(good, "utf-8")
        await server.load_model("double")
        assert server.is_ready
        assert await ask(server) == [4, 6]

    serve(tmp_path, scenario, **EXPLICIT)


def test_unload_and_load_of_a_model_again_and_again(tmp_path):
    add_chain(tmp_path)

    async def scenario(server):
        await server.load_model("chain")
        for _ in range(5):
            late = asyncio.ensure_future(ask(server))
            await asyncio.sleep(0)
            await server.unload_model("plus")
            assert await late == [4, 6]
            with pytest.raises(NotFound, match="depends on 'plus', which was unloaded"):
                await ask(server)
            assert server.is_ready
            await server.load_model("plus")
            assert await ask(server) == [4, 6]

    serve(tmp_path, scenario, **EXPLICIT)


def test_an_ensemble_takes_notice_of_how_its_models_run(tmp_path):
    add_chain(tmp_path)
    add_thread_model(tmp_path, "script", calling('call("chain").output_tensors()[0].as_numpy()'))
    body = execute("x + 10").replace("def execute", "async def execute")
    code = f"{HEADER}class TritonPythonModel:\n{textwrap.indent(body, '    ')}"

    async def scenario(server):
        await server.load_model("chain")
        await server.load_model("script")
        assert await ask(server, "script") == [4, 6]
        (tmp_path / "plus" / "1" / "model.py").write_text(code, "utf-8")
        await server.load_model("plus")
        assert await ask(server, "script") == await ask(server) == [22, 24]

    serve(tmp_path, scenario, **EXPLICIT)
