"""Names, versions and the version policy."""

import pytest
from hypothesis import given, strategies as st

from bireme.config.model_config import AllPolicy, LatestPolicy, ModelVersionPolicy, SpecificPolicy
from bireme.repository.layout import (
    check_model_name,
    config_path,
    describe_policy,
    is_leftover,
    is_model_candidate,
    list_versions,
    misnamed_config,
    misplaced_files,
    no_versions,
    parse_version,
    select_versions,
)
from bireme.types import InvalidArgument


@pytest.mark.parametrize(
    ("name", "version"),
    [("1", 1), ("10", 10), ("9223372036854775807", 2**63 - 1)]
    + [
        (name, None)
        for name in ("0", "01", "-1", "+1", "1.0", "1a", "", " 1", "²", "٣", "9223372036854775808", "9" * 30)
    ],
)
def test_a_version_is_a_positive_integer_without_leading_zero(name, version):
    assert parse_version(name) == version


@given(st.text(max_size=25))
def test_a_parsed_version_is_written_as_it_was_read(name):
    version = parse_version(name)
    assert version is None or (str(version) == name and 0 < version < 2**63)


def test_versions_are_sorted_as_numbers_and_odd_folders_are_told_apart(tmp_path):
    for name in (
        "10",
        "9",
        "1",
        "-1",
        "latest",
        "01",
        "warmup",
        "initial_state",
        "configs",
        ".git",
        "__pycache__",
    ):
        (tmp_path / name).mkdir()
    (tmp_path / "2").write_text("a file is no version")
    (tmp_path / "11").symlink_to(tmp_path / "9")
    found = list_versions(tmp_path)
    assert found.versions == (1, 9, 10, 11)
    assert found.odd == ("-1", "01", "latest")


@pytest.mark.parametrize(
    ("policy", "selected"),
    [
        (None, [10]),
        (ModelVersionPolicy(), [10]),
        (ModelVersionPolicy(latest=LatestPolicy(2)), [9, 10]),
        (ModelVersionPolicy(latest=LatestPolicy(9)), [2, 9, 10]),
        (ModelVersionPolicy(latest=LatestPolicy(0)), []),
        (ModelVersionPolicy(all=AllPolicy()), [2, 9, 10]),
        (ModelVersionPolicy(specific=SpecificPolicy((9, 2, 77))), [2, 9]),
        (ModelVersionPolicy(specific=SpecificPolicy((3,))), []),
    ],
)
def test_the_policy_picks_among_the_versions_there_are(policy, selected):
    assert select_versions(policy, (10, 2, 9)) == selected


@pytest.mark.parametrize(
    ("policy", "text"),
    [
        (None, "latest 1"),
        (ModelVersionPolicy(latest=LatestPolicy(3)), "latest 3"),
        (ModelVersionPolicy(all=AllPolicy()), "all"),
        (ModelVersionPolicy(specific=SpecificPolicy((3, 5))), "specific 3, 5"),
    ],
)
def test_a_policy_is_described_as_a_person_would(policy, text):
    assert describe_policy(policy) == text


@pytest.mark.parametrize("name", ["", " ", "\t\n"])
def test_a_blank_model_name_is_refused(name):
    with pytest.raises(InvalidArgument, match="Model name cannot be empty"):
        check_model_name(name)


@pytest.mark.parametrize("name", ["..", " .. ", ".", "a/b", "/etc", "../m", "a\\b", "a\0b"])
def test_a_model_name_cannot_lead_out_of_the_repository(name):
    with pytest.raises(InvalidArgument, match="must not contain path traversal characters"):
        check_model_name(name)


@pytest.mark.parametrize("name", ["m", "resnet50.v2", "a b", "ünïcode", "..data", "-"])
def test_other_model_names_are_allowed(name):
    check_model_name(name)


@pytest.mark.parametrize("name", [" ", ".git", "..data", "lost+found", "__pycache__", "a\nb", "\udcff", "m~"])
def test_leftovers_and_unprintable_names_are_no_models(name):
    assert not is_model_candidate(name)


def test_leftovers_are_recognised_by_name():
    assert [name for name in (".a.swp", "a~", "__pycache__", "model.py", "1") if is_leftover(name)] == [
        ".a.swp",
        "a~",
        "__pycache__",
    ]


def test_a_named_config_is_used_where_there_is_one(tmp_path):
    (tmp_path / "configs").mkdir()
    (tmp_path / "configs" / "fast.pbtxt").touch()
    assert config_path(tmp_path, "fast") == tmp_path / "configs" / "fast.pbtxt"
    assert config_path(tmp_path, "slow") == tmp_path / "config.pbtxt"
    assert config_path(tmp_path) == tmp_path / "config.pbtxt"


@pytest.mark.parametrize(
    ("files", "found"),
    [
        (["config.pbtx", "labels.txt"], "config.pbtx"),
        (["Config.PBTXT"], "Config.PBTXT"),
        (["config.pbtxt", "config.pbtxt.txt"], None),
        (["config.pbtxt~", ".config.pbtxt", "config.json", "labels.txt"], None),
        ([], None),
    ],
)
def test_a_misspelt_config_file_is_found(tmp_path, files, found):
    for name in files:
        (tmp_path / name).touch()

    assert misnamed_config(tmp_path) == found


def test_a_model_file_on_the_wrong_level_is_found(tmp_path):
    for place in ("m/1", "n"):
        (tmp_path / place).mkdir(parents=True)
        (tmp_path / place / "model.onnx").touch()

    assert misplaced_files(tmp_path / "m") == ""
    assert misplaced_files(tmp_path / "n") == (
        "; 'model.onnx' lies in the model's own directory: move it into 'n/1'"
    )
    assert misplaced_files(tmp_path / "m" / "1") == (
        f"; '{tmp_path / 'm'}' seems to be a model, not a repository: the repository is '{tmp_path}'"
    )
    assert no_versions("n", None, tmp_path / "n", ()).endswith(
        "has no version directories" + misplaced_files(tmp_path / "n")
    )
