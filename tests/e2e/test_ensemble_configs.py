"""Configs of ensembles load, or don't, as with Triton: what the real one said of them. Texts are those of Triton 2.51."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from ensemble_models import EnsembleServer, X, Y, build_forms, chain, ensemble_text, tensors_text
from serve_process import running

pytestmark = pytest.mark.slow


@pytest.fixture(scope="module")
def server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[EnsembleServer]:
    with running(EnsembleServer(tmp_path_factory.mktemp("configs"), build_forms, mode="thread")) as server:
        yield server


LOADS = {
    "one tensor to two inputs": ensemble_text([("sum", {"A": "X", "B": "X"}, {"Y": "Y"})]),
    "optional input unmapped": ensemble_text([("maybe_sum", {"A": "X"}, {"Y": "Y"})]),
    "any size of a known one": ensemble_text([("nb", {"X": "X"}, {"Y": "Y"})]),
    "a known size of any": ensemble_text([("a", {"X": "X"}, {"Y": "Y"})], inputs=("X:FP32:4",), outputs=("Y:FP32:4",)),
    "batches for one that does not batch": ensemble_text(
        [("nb", {"X": "X"}, {"Y": "Y"})], inputs=("X:FP32:2",), outputs=("Y:FP32:2",), max_batch_size=8
    ),
    "batches as a dimension": ensemble_text(
        [("b4", {"X": "X"}, {"Y": "t"}), ("nb_any", {"X": "t"}, {"Y": "Y"})], inputs=("X:FP32:2",), outputs=("Y:FP32:-1,2",)
    ),
    "a version": chain("a").replace("model_version: -1", "model_version: 1"),
    "a stream and what comes of it": ensemble_text(
        [("sender", {"X": "X"}, {"Y": "t"}), ("a", {"X": "t"}, {"Y": "u"}), ("sum", {"A": "t", "B": "u"}, {"Y": "Y"})]
    ),
    "a cache": chain("a", more="response_cache { enable: true }"),
}  # fmt: skip


@pytest.mark.parametrize("name", LOADS)
def test_configs_that_load(server, name):
    loaded = server.load_ensemble("extra", LOADS[name])

    assert loaded.status == 200, loaded
    server.unload("extra")


@pytest.mark.parametrize("decoupled", ["true", "false"])
def test_decoupled_is_what_the_members_are(server, decoupled):
    more = f"model_transaction_policy {{ decoupled: {decoupled} }}"
    for members, is_decoupled in ((("sender", "a"), True), (("a", "b"), False)):
        assert server.load_ensemble("extra", chain(*members, more=more)).status == 200
        config = server.request("GET", "/v2/models/extra/config").body
        assert config.get("model_transaction_policy", {"decoupled": False}) == {"decoupled": is_decoupled}
        server.unload("extra")


FAULTS = {
    "instance group should not be specified for ensemble 'extra'": chain("a", more="instance_group { kind: KIND_CPU }"),
    "optimization should not be specified for ensemble 'extra'": chain("a", more="optimization { priority: PRIORITY_MAX }"),
    "model_warmup can not be specified for ensemble 'extra'": chain("a", more="model_warmup { name: 'w' batch_size: 1 inputs { key: 'X' value { data_type: TYPE_FP32 dims: 1 zero_data: true } } }"),
    "must specify 'step' for ensemble 'extra'": ensemble_text([]),
    "must specify 'model_name' in step 0 of ensemble 'extra'": chain(""),
    "must specify 'input_map' in step 0 of ensemble 'extra'": ensemble_text([("a", {}, {})]),
    "ensemble input 'X2' for ensemble 'extra' is not used": ensemble_text([("a", {"X": "X"}, {"Y": "Y"})], inputs=(X, "X2:FP32:-1")),
    "ensemble output 'Y2' for ensemble 'extra' is not used": ensemble_text([("a", {"X": "X"}, {"Y": "Y"})], outputs=(Y, "Y2:FP32:-1")),
    "ensemble tensor 't' is unused in ensemble 'extra'": ensemble_text([("a", {"X": "X"}, {"Y": "Y"}), ("b", {"X": "X"}, {"Y": "t"})]),
    "output 'Y' for ensemble 'extra' is not written: at least one of its depending tensors, 'no', is not connected": ensemble_text([("sum", {"A": "X", "B": "no"}, {"Y": "Y"})]),
    "output 'Y' for ensemble 'extra' is not written: at least one of its depending tensors, 'u', is not connected": ensemble_text([("sum", {"A": "X", "B": "u"}, {"Y": "t"}), ("b", {"X": "t"}, {"Y": "u"}), ("c", {"X": "t"}, {"Y": "Y"})]),
    "ensemble tensor 'Y' can appear in an output map only once for ensemble 'extra' step 0": ensemble_text([("pair", {"X": "X"}, {"Y1": "Y", "Y2": "Y"})]),
    "ensemble tensor 'Y' can appear in an output map only once for ensemble 'extra' step 1": ensemble_text([("a", {"X": "X"}, {"Y": "Y"}), ("b", {"X": "X"}, {"Y": "Y"})]),
    "ensemble output 'Y' for ensemble 'extra' is not used": ensemble_text([("a", {"X": "X"}, {"Y": "X"})]),
    "ensemble tensor 'X' is mapping to non-existing input 'Z' in model 'a'": ensemble_text([("a", {"Z": "X"}, {"Y": "Y"})]),
    "ensemble tensor 'Y' is mapped from non-existing output 'Z' in model 'a'": ensemble_text([("a", {"X": "X"}, {"Z": "Y"})]),
    "input 'B' in model 'sum' is not mapped to any ensemble tensors": ensemble_text([("sum", {"A": "X"}, {"Y": "Y"})]),
    "'X': inconsistent data type: TYPE_INT32 is inferred from ensemble 'extra' while TYPE_FP32 is inferred from model 'a'": chain("a", inputs=("X:INT32:-1",)),
    "'Y': inconsistent data type: TYPE_INT32 is inferred from ensemble 'extra' while TYPE_FP32 is inferred from model 'a'": chain("a", outputs=("Y:INT32:-1",)),
    "'t1': inconsistent data type: TYPE_STRING is inferred from model 'teller' while TYPE_FP32 is inferred from model 'b'": chain("teller", "b"),
    "'X': inconsistent shape: [3] is inferred from ensemble 'extra' while [2] is inferred from model 'nb'": chain("nb", inputs=("X:FP32:3",), outputs=("Y:FP32:2",)),
    "'X': inconsistent shape: [-1,-1] is inferred from ensemble 'extra' while [-1] is inferred from model 'a'": chain("a", inputs=("X:FP32:-1,-1",)),
    "'Y': inconsistent shape: [3] is inferred from ensemble 'extra' while [2] is inferred from model 'nb'": chain("nb", inputs=("X:FP32:2",), outputs=("Y:FP32:3",)),
    "but it contains model 'b4' (step 0) which only allows maximum batch size to be 4": chain("b4", inputs=("X:FP32:2",), outputs=("Y:FP32:2",), max_batch_size=8),
    "ensemble 'extra' depends on 'nope'": chain("nope"),
    "ensemble 'extra' depends on 'a' version 7, which is not loaded": chain("a").replace("model_version: -1", "model_version: 7"),
    "circular dependency between ensembles: 'extra' -> 'extra'": chain("extra"),
    "receives inputs originated from different decoupled models": ensemble_text([("sender", {"X": "X"}, {"Y": "t"}), ("resender", {"X": "X"}, {"Y": "u"}), ("sum", {"A": "t", "B": "u"}, {"Y": "Y"})]),
    "tensors that come from different decoupled models": ensemble_text([("sender", {"X": "X"}, {"Y": "Y1"}), ("resender", {"X": "X"}, {"Y": "Y2"})], outputs=("Y1:FP32:-1", "Y2:FP32:-1")),
    "must have platform type 'ensemble' and empty backend type": chain("a", more='backend: "python"'),
    "Could not determine backend for model 'extra' with no backend in model configuration.": chain("a").replace('platform: "ensemble"', ""),
    "ensemble scheduling must be set for ensemble extra whose platform is ensemble": f'platform: "ensemble" {tensors_text((X,), (Y,))}',
}  # fmt: skip


@pytest.mark.parametrize("text", FAULTS)
def test_configs_that_do_not_load(server, text):
    loaded = server.load_ensemble("extra", FAULTS[text])

    assert loaded.status == 400
    assert text in loaded.error
    assert server.index("extra")["state"] == "UNAVAILABLE"
