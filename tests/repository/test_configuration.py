"""read_config: from a model directory to the config that a load starts with."""

import pytest

from bireme.config import parse_text
from bireme.repository import ConfigRules, cpu_fallback, read_config
from bireme.types import InvalidArgument
from model_dirs import CONFIG, add_fake_model

RULES = ConfigRules()


def read(model_dir, rules=RULES, override=None):
    return read_config("m", model_dir, model_dir / "1", rules, override)


def test_the_file_is_read_and_defaults_are_filled_in(tmp_path):
    config = read(add_fake_model(tmp_path, "m"))
    assert config.name == "m"
    assert config.backend == "fake"
    assert config.version_policy.latest.num_versions == 1
    assert [(group.name, group.kind, group.count) for group in config.instance_group] == [
        ("m_0", "KIND_CPU", 1)
    ]


def test_without_a_file_the_model_file_says_which_backend(tmp_path):
    (tmp_path / "1").mkdir()
    (tmp_path / "1" / "model.onnx").touch()
    config = read(tmp_path)
    assert (config.backend, config.default_model_filename) == ("onnxruntime", "model.onnx")
    assert config.instance_group[0].count == 2


def test_a_file_is_mandatory_and_complete_without_auto_completion(tmp_path):
    rules = ConfigRules(auto_complete=False)
    (tmp_path / "1").mkdir()
    (tmp_path / "1" / "model.onnx").touch()
    with pytest.raises(InvalidArgument, match=r"model 'm' has no config file: .*config.pbtxt' is mandatory"):
        read(tmp_path, rules)
    (tmp_path / "config.pbtxt").write_text('backend: "fake" input [{ name: "X" data_type: TYPE_FP32 }]')
    with pytest.raises(InvalidArgument, match="'X' must specify 'dims'"):
        read(tmp_path, rules)
    assert read(tmp_path).backend == "fake"


def test_a_named_config_comes_first(tmp_path):
    model_dir = add_fake_model(tmp_path, "m")
    (model_dir / "configs").mkdir()
    (model_dir / "configs" / "big.pbtxt").write_text(CONFIG + "max_batch_size: 64")
    assert read(model_dir, ConfigRules("big")).max_batch_size == 64
    assert read(model_dir, ConfigRules("small")).max_batch_size == 0


def test_an_override_replaces_the_file_whole(tmp_path):
    model_dir = add_fake_model(tmp_path, "m", extra="max_batch_size: 8")
    config = read(model_dir, override='{"backend": "fake", "max_batch_size": 3}')
    assert config.max_batch_size == 3
    assert config.input == ()


@pytest.mark.parametrize(
    ("override", "message"),
    [
        ('{"max_batchsize": 3}', "Invalid config override: .*max_batchsize"),
        ("{", "Invalid config override: "),
        ('{"backend": "fake", "name": "other"}', "directory name must equal model name"),
        ('{"backend": "fake", "max_batch_size": -1}', "'max_batch_size' must be non-negative"),
    ],
)
def test_a_wrong_override_is_refused_with_its_fault(tmp_path, override, message):
    with pytest.raises(InvalidArgument, match=message):
        read(add_fake_model(tmp_path, "m"), override=override)


@pytest.mark.parametrize(
    ("content", "message"),
    [
        (
            b"max_batchsize: 3",
            "config.pbtxt:1:1: unknown field 'max_batchsize'.*did you mean 'max_batch_size'",
        ),
        (b'name: "\xff"', "config.pbtxt: the config file is not UTF-8 text"),
        (b'name: "other" backend: "fake"', "unexpected directory name 'm' for model 'other'"),
    ],
)
def test_a_wrong_file_is_refused_with_file_and_fault(tmp_path, content, message):
    model_dir = add_fake_model(tmp_path, "m")
    (model_dir / "config.pbtxt").write_bytes(content)
    with pytest.raises(InvalidArgument, match=message):
        read(model_dir)


def test_a_config_that_is_no_file_is_refused(tmp_path):
    (tmp_path / "config.pbtxt").mkdir()
    with pytest.raises(InvalidArgument, match="cannot read the config of model 'm'"):
        read(tmp_path)


def test_every_broken_rule_is_told_with_its_line(tmp_path):
    path = tmp_path / "config.pbtxt"
    path.write_text(
        'backend: "fake"\nmax_batch_size: -2\ninput [{ name: "X" data_type: TYPE_FP32 dims: [ 0 ] }]\n'
    )

    with pytest.raises(InvalidArgument) as caught:
        read(tmp_path)

    batch, dims = caught.value.message.split("; ", 1)
    assert batch == f"{path}:2:1: 'max_batch_size' must be non-negative value for m: found -2"
    assert dims.startswith(f"{path}:3:")
    assert "'X'" in dims


def test_a_wrong_instance_group_is_told_with_its_line(tmp_path):
    path = tmp_path / "config.pbtxt"
    path.write_text('backend: "fake"\ninstance_group [ { kind: KIND_GPU } ]\n')

    with pytest.raises(InvalidArgument, match=rf"^{path}:2:18: instance group"):
        read(tmp_path)


def test_a_broken_rule_of_an_override_has_no_line(tmp_path):
    with pytest.raises(InvalidArgument, match=r"^'max_batch_size' must be non-negative"):
        read(add_fake_model(tmp_path, "m"), override='{"backend": "fake", "max_batch_size": -2}')


AUTO = [
    # the config's groups, GPUs of the machine, kinds and GPUs of the groups, why one runs on the CPU
    ("", 0, [("KIND_CPU", ())], "no GPUs are available"),
    ("", 2, [("KIND_GPU", (0, 1))], ""),
    ("instance_group { gpus: 1 }", 2, [("KIND_GPU", (1,))], ""),
    ("instance_group { gpus: [ 1, 2 ] }", 2, [("KIND_CPU", ())], "not all of gpus [1, 2] are there"),
    ("instance_group { kind: KIND_CPU }", 0, [("KIND_CPU", ())], ""),
    (
        "instance_group [ { kind: KIND_CPU }, { count: 2 } ]",
        0,
        [("KIND_CPU", ())] * 2,
        "no GPUs are available",
    ),
]


@pytest.mark.parametrize(("groups", "num_gpus", "made", "reason"), AUTO)
def test_kind_auto_is_a_gpu_where_there_is_one_and_else_the_cpu_with_a_reason(
    tmp_path, groups, num_gpus, made, reason
):
    text = f'backend: "fake" {groups}'
    (tmp_path / "config.pbtxt").write_text(text)
    rules = ConfigRules(num_gpus=num_gpus)

    config = read(tmp_path, rules)

    assert [(group.kind, group.gpus) for group in config.instance_group] == made
    assert cpu_fallback(parse_text(text, "config.pbtxt"), config, rules) == reason
