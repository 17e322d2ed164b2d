"""TLS with a certificate of one's own, Google's protocol as far as it is S3's, and what a large file costs."""

import os
import subprocess
import sys
from contextlib import closing

import pytest

from bireme.repository.object_store.storage import open_object_store
from object_stores import tree
from s3_server import BUCKET, S3Server

pytestmark = pytest.mark.slow


def test_a_store_with_a_certificate_of_its_own_is_trusted_by_name(tmp_path):
    bundle = tmp_path / "ca.pem"
    with closing(S3Server(bundle)) as server:
        _check_tls(server, bundle, tmp_path)


def _check_tls(tls_server, bundle, tmp_path):
    tls_server.put("models/m/1/x", b"1")
    location = f"s3://https://localhost:{tls_server.port}/{BUCKET}/models"
    environ = tls_server.environment | {"AWS_CA_BUNDLE": str(bundle)}
    assert open_object_store(location, cache_directory=str(tmp_path), environ=environ).list_names() == ["m"]
    distrusting = open_object_store(location, cache_directory=str(tmp_path), environ=tls_server.environment)
    with pytest.raises(OSError, match="its certificate is not trusted"):
        distrusting.list_names()
    missing = environ | {"AWS_CA_BUNDLE": "/no/such/bundle"}
    with pytest.raises(OSError, match=r"cannot use the settings for .*/no/such/bundle"):
        open_object_store(location, cache_directory=str(tmp_path), environ=missing).list_names()


def test_google_cloud_storage_is_read_by_the_protocol_that_it_shares_with_s3(
    s3_server, tmp_path, monkeypatch
):
    files = {"m/config.pbtxt": b"config", "m/1/x": b"one", "m/1/a b.txt": b"odd", "n/1/x": b"n"}
    for path, content in files.items():
        s3_server.put(f"models/{path}", content, ACL="public-read")
    monkeypatch.setenv("GOOGLE_BASE_URL", s3_server.url)
    monkeypatch.setenv("GOOGLE_SKIP_SIGNATURE", "true")
    storage = open_object_store(f"gs://{BUCKET}/models", cache_directory=str(tmp_path))
    assert sorted(storage.list_names()) == ["m", "n"]
    directory = storage.check_out("m")
    directory.complete([1])
    assert tree(directory.path) == {"config.pbtxt": b"config", "1/x": b"one", "1/a b.txt": b"odd"}


_FETCH = """
import resource, sys
from pathlib import Path
from bireme.repository.object_store.storage import open_object_store

def peak_mb():
    return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 1024

storage = open_object_store(sys.argv[1], cache_directory=sys.argv[2])
storage.check_out("m")
before = peak_mb()
directory = storage.check_out("m")
directory.complete()
print(peak_mb() - before, (directory.path / "1" / "large").stat().st_size)
"""


def test_a_large_file_does_not_pass_through_memory(s3_server, tmp_path):
    size = 160 << 20
    s3_server.put("big/m/1/large", bytes(size))
    command = [sys.executable, "-c", _FETCH, s3_server.location("big"), str(tmp_path)]
    environment = os.environ | s3_server.environment
    output = subprocess.run(command, check=True, capture_output=True, text=True, env=environment).stdout
    grown_mb, fetched = output.split()
    assert int(fetched) == size
    assert float(grown_mb) < 100
    assert len([each for each in s3_server.ranges if each]) == 5
