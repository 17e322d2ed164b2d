"""The agent ``checksum``: which files it lets through, and what it says of the others."""

import hashlib

import pytest

from bireme.config import ModelConfig
from bireme.repository.agents import AgentModel
from bireme.repository.agents.checksum import ChecksumAgent
from bireme.types import InvalidArgument, Unsupported

MD5 = hashlib.md5(b"weights", usedforsecurity=False).hexdigest()
SHA256 = hashlib.sha256(b"weights").hexdigest()


def look(tmp_path, parameters):
    (tmp_path / "1").mkdir(exist_ok=True)
    (tmp_path / "1" / "model.onnx").write_bytes(b"weights")
    ChecksumAgent(AgentModel("m", tmp_path, ModelConfig(), parameters)).load()


@pytest.mark.parametrize(
    "parameters",
    [
        {},
        {"MD5:1/model.onnx": MD5},
        {"md5:1/model.onnx": MD5.upper()},
        {"SHA256:1/model.onnx": SHA256},
        {"sha-256:1/model.onnx": SHA256, "MD5:1/model.onnx": MD5},
    ],
)
def test_files_as_the_config_has_them_are_let_through(tmp_path, parameters):
    look(tmp_path, parameters)


def test_a_file_that_is_another_stops_the_load(tmp_path):
    with pytest.raises(InvalidArgument) as caught:
        look(tmp_path, {"MD5:1/model.onnx": "0" * 32})

    assert caught.value.message == (
        f"Mismatched MD5 hash for file 1/model.onnx, expect: {'0' * 32}, got: {MD5}"
    )


@pytest.mark.parametrize(
    ("key", "error", "message"),
    [
        ("MD5", InvalidArgument, "failed to parse key: MD5"),
        ("MD5:", InvalidArgument, "failed to parse key: MD5:"),
        ("MD5:2/model.onnx", InvalidArgument, "failed to open text file for read 2/model.onnx: No such file"),
        ("MD5:1", InvalidArgument, "failed to open text file for read 1: Is a directory"),
        ("MD5:../x", InvalidArgument, "file ../x is not within the model's directory"),
        ("MD5:/etc/hosts", InvalidArgument, "file /etc/hosts is not within the model's directory"),
        ("CRC32:1/model.onnx", Unsupported, "Unsupported checksum algorithm: CRC32"),
    ],
)
def test_a_key_that_asks_for_the_impossible_stops_the_load(tmp_path, key, error, message):
    with pytest.raises(error, match=message):
        look(tmp_path, {key: "0"})
