"""The environments of Python models: which is taken, what is made once, and what is said of one that does not work."""

import asyncio
import errno
import fcntl
import io
import json
import logging
import os
import shutil
import subprocess
import sys
import tarfile
import threading
import time
import zipfile
from pathlib import Path

import pytest

from bireme.backends.interface import ModelContext
from bireme.backends.python import environment_cache, interpreter
from bireme.backends.python.environment import prepare, warn_unused
from bireme.backends.python.environment_cache import EnvironmentCache
from bireme.backends.python.requirements import fingerprint
from bireme.config import ModelConfig
from bireme.config.model_config import ModelParameter
from bireme.ipc.arena import Arena
from bireme.ipc.worker_process import PATH_VARIABLE, WorkerProcess
from bireme.types import InvalidArgument

ACTIVATE = """
export CONDA_PREFIX="$(cd "$(dirname "${BASH_SOURCE[0]}")/.." && pwd)"
export PATH="$CONDA_PREFIX/bin:$PATH"
echo "a script may talk"
for script in "$CONDA_PREFIX"/etc/conda/activate.d/*.sh; do . "$script"; done
"""
PYTHON = f'#!/bin/sh\nexec {sys.executable} "$@"\n'
"""Stands for an environment's own interpreter."""


def foreign_python(version, missing=()):
    """Return an interpreter of another kind, as far as it is asked."""
    said = json.dumps(
        {"version": version, "kind": ["cpython-399", ""], "missing": list(missing), "env": dict(os.environ)}
    )
    return f"#!/bin/sh\ncat <<'END'\n{said}\nEND\n"


@pytest.fixture
def cache(tmp_path, monkeypatch):
    """Keep environments in a directory of the test's own; return it."""
    monkeypatch.setenv("BIREME_CACHE_DIR", str(tmp_path / "cache"))
    monkeypatch.setattr(environment_cache, "_in_use", {})
    yield tmp_path / "cache" / "environments"
    end_server()


def end_server():
    """Let go of all environments, as the end of a server does."""
    for lock in environment_cache._in_use.values():
        os.close(lock)
    environment_cache._in_use.clear()


@pytest.fixture
def model_dir(tmp_path, cache):
    (tmp_path / "model" / "1").mkdir(parents=True)
    return tmp_path / "model"


def context(model_dir, path=None, *, backend_dir=None, runtime=""):
    parameters = {} if path is None else {"EXECUTION_ENV_PATH": ModelParameter(str(path))}
    config = ModelConfig(name="m", runtime=runtime, parameters=parameters)
    return ModelContext("m", 1, model_dir, model_dir / "1", config, backend_dir=backend_dir)


def add_environment(prefix, python=PYTHON):
    """Write a conda environment whose activation sets a variable."""
    (prefix / "bin").mkdir(parents=True)
    (prefix / "bin" / "activate").write_text(ACTIVATE)
    (prefix / "bin" / "python").write_text(python)
    (prefix / "bin" / "python").chmod(0o755)
    (prefix / "etc" / "conda" / "activate.d").mkdir(parents=True)
    (prefix / "etc" / "conda" / "activate.d" / "x.sh").write_text("export FROM_ACTIVATE_D='a b'\n")
    return prefix


def pack(prefix, archive):
    with tarfile.open(archive, "w:gz") as tar:
        tar.add(prefix, arcname=".")
    return archive


def imported(environment, *modules):
    """Return where an environment's worker would find modules."""
    code = (
        "import importlib, json, os, sys;"
        f"sys.path += os.environ.get({PATH_VARIABLE!r}, '').split(':');"
        f"print(json.dumps([importlib.import_module(name).__file__ for name in {modules!r}]))"
    )
    done = subprocess.run(
        [environment.executable, "-c", code],
        env={**os.environ, **environment.env},
        capture_output=True,
        check=True,
        timeout=30,
    )
    return json.loads(done.stdout)


def test_without_anything_it_is_the_servers_own(model_dir):
    environment = prepare(context(model_dir))

    assert (environment.executable, environment.env) == (sys.executable, {})
    assert "the server's own Python 3." in environment.description


def test_tritons_stub_is_not_used(model_dir, caplog):
    (model_dir / "triton_python_backend_stub").touch()

    assert prepare(context(model_dir)).executable == sys.executable
    assert f"'{model_dir}/triton_python_backend_stub' is not used" in caplog.text


def test_an_environment_of_a_model_in_a_thread_is_not_used(model_dir, tmp_path, caplog):
    warn_unused(context(model_dir))
    assert not caplog.records
    (model_dir / "requirements.txt").touch()
    warn_unused(context(model_dir))
    assert f"with the server's packages: {model_dir}/requirements.txt is ignored" in caplog.text
    warn_unused(context(model_dir, tmp_path))
    assert f"EXECUTION_ENV_PATH '{tmp_path}' is ignored" in caplog.text


@pytest.mark.slow
def test_a_directory_is_activated_and_asked(model_dir):
    prefix = add_environment(model_dir / "env")

    environment = prepare(context(model_dir, "$$TRITON_MODEL_DIRECTORY/env"))
    assert environment.executable == str(prefix / "bin" / "python")
    assert environment.env["FROM_ACTIVATE_D"] == "a b"
    assert environment.env["CONDA_PREFIX"] == str(prefix)
    assert environment.env["PATH"].startswith(f"{prefix}/bin:")
    assert {"PWD", "SHLVL", "_"}.isdisjoint(environment.env)
    assert f"of the environment '{prefix}'" in environment.description


@pytest.mark.slow
def test_the_servers_packages_come_last_and_bireme_first(model_dir, tmp_path, monkeypatch):
    monkeypatch.setenv("PYTHONPATH", "/some/where")
    environment = prepare(context(model_dir, add_environment(tmp_path / "env")))

    first, *others = environment.env["PYTHONPATH"].split(":")
    assert [entry.name for entry in Path(first).iterdir()] == ["bireme"]
    assert others == ["/some/where"]
    assert environment.env[PATH_VARIABLE].split(":") == interpreter.fallback_directories()
    bireme_file, numpy_file = imported(environment, "bireme", "numpy")
    assert bireme_file.startswith(first)
    assert Path(numpy_file).parents[1] in map(Path, interpreter.fallback_directories())


@pytest.mark.slow
def test_a_venv_is_an_environment(model_dir, tmp_path):
    subprocess.run([sys.executable, "-m", "venv", "--without-pip", tmp_path / "env"], check=True, timeout=30)

    environment = prepare(context(model_dir, tmp_path / "env"))
    assert environment.env["VIRTUAL_ENV"] == str(tmp_path / "env")
    (numpy_file,) = imported(environment, "numpy")
    assert Path(numpy_file).parents[1] in map(Path, interpreter.fallback_directories())


@pytest.mark.slow
def test_a_worker_runs_in_an_environment_without_packages(model_dir, tmp_path):
    """It finds Bireme, numpy and msgspec all the same, or it would end with 1."""
    subprocess.run([sys.executable, "-m", "venv", "--without-pip", tmp_path / "env"], check=True, timeout=30)
    environment = prepare(context(model_dir, tmp_path / "env"))

    async def end_of_worker():
        loop = asyncio.get_running_loop()
        lost = loop.create_future()
        worker = WorkerProcess.start(
            "builtins:print", Arena(1), executable=environment.executable, env=environment.env
        )
        worker.attach(loop, lambda message: None, lost.set_result)
        return await asyncio.wait_for(lost, 20)

    assert asyncio.run(end_of_worker()) == "ended with exit code 0"


@pytest.mark.slow
def test_without_bash_the_usual_variables_are_set(model_dir, tmp_path, monkeypatch, caplog):
    prefix = add_environment(tmp_path / "env")
    monkeypatch.setattr(interpreter.shutil, "which", lambda name: None)
    monkeypatch.setenv("PYTHONHOME", "")

    environment = prepare(context(model_dir, prefix))
    assert environment.env["VIRTUAL_ENV"] == str(prefix)
    assert environment.env["PATH"].startswith(f"{prefix}/bin:")
    assert environment.env["PYTHONHOME"] == ""
    assert "bin/activate is not run" in caplog.text


@pytest.mark.parametrize(
    ("path", "text"),
    [
        ("env", "expected an absolute path, or one that begins with \\$\\$TRITON_MODEL_DIRECTORY, which stands for '/"),
        ("s3://bucket/env.tar.gz", "object stores are not supported; expected a path on this machine"),
        ("/nowhere/env.tar.gz", "'/nowhere/env.tar.gz' does not exist"),
        ("$$TRITON_MODEL_DIRECTORY/env", "'/.*/model/env' does not exist"),
        ("$$TRITON_MODEL_DIRECTORY", "'/.*/model' has no bin/activate; expected a conda environment"),
        ("$$TRITON_MODEL_DIRECTORY/1/weights", "'/.*/weights' cannot be unpacked: .*; expected a packed environment"),
    ],
)  # fmt: skip
def test_paths_that_hold_no_environment(model_dir, cache, path, text):
    (model_dir / "1" / "weights").write_bytes(b"no archive")

    with pytest.raises(InvalidArgument, match=f"^model 'm': EXECUTION_ENV_PATH '.*': {text}"):
        prepare(context(model_dir, path))
    assert not list(cache.glob("*/"))


def test_an_interpreter_must_be_there(model_dir, tmp_path):
    prefix = add_environment(tmp_path / "env")
    (prefix / "bin" / "python").unlink()

    with pytest.raises(InvalidArgument, match=f"'{prefix}' has no bin/python"):
        prepare(context(model_dir, prefix))


def test_an_interpreter_that_fails_is_quoted(model_dir, tmp_path):
    prefix = add_environment(tmp_path / "env", "#!/bin/sh\necho 'no libc' >&2; exit 3\n")

    with pytest.raises(InvalidArgument, match=r"cannot be run: exit status 3: .*\n?no libc"):
        prepare(context(model_dir, prefix))


def test_another_version_must_bring_what_a_worker_needs(model_dir, tmp_path):
    bare = add_environment(tmp_path / "bare", foreign_python([3, 99, 1], ["numpy", "msgspec"]))
    full = add_environment(tmp_path / "full", foreign_python([3, 99, 1]))

    with pytest.raises(
        InvalidArgument, match=r"has Python 3\.99\.1 and lacks numpy and msgspec; .*pip install numpy msg"
    ):
        prepare(context(model_dir, bare))
    environment = prepare(context(model_dir, full))
    assert environment.env[PATH_VARIABLE] == environment.env["PYTHONPATH"].split(":")[0]
    assert "Python 3.99.1" in environment.description


def test_a_version_that_is_too_old_is_refused(model_dir, tmp_path):
    prefix = add_environment(tmp_path / "env", foreign_python([3, 8, 2]))

    with pytest.raises(InvalidArgument, match=r"the environment has Python 3\.8\.2; expected 3\.11 or newer"):
        prepare(context(model_dir, prefix))


@pytest.mark.slow
def test_an_archive_is_unpacked_once_until_it_changes(model_dir, tmp_path, cache, caplog):
    caplog.set_level(logging.INFO)
    prefix = add_environment(tmp_path / "env")
    (prefix / "bin" / "conda-unpack").write_text(
        "import pathlib; pathlib.Path(__file__).with_name('fitted').touch()"
    )
    archive = pack(prefix, model_dir / "env.tar.gz")
    ctx = context(model_dir, "$$TRITON_MODEL_DIRECTORY/env.tar.gz")

    first = Path(prepare(ctx).executable).parents[1]
    assert first.parent == cache
    assert (first / "bin" / "fitted").exists(), "conda-unpack ran"
    assert prepare(ctx).env["CONDA_PREFIX"] == str(first)
    assert caplog.text.count("unpacking to") == 1
    os.utime(archive, ns=(0, 0))
    second = Path(prepare(ctx).executable).parents[1]
    assert second != first
    assert first.exists(), "processes of this server may still use it"


def test_conda_unpack_that_fails_is_quoted(model_dir, tmp_path, cache):
    prefix = add_environment(tmp_path / "env")
    (prefix / "bin" / "conda-unpack").write_text("raise SystemExit('no prefix')")

    with pytest.raises(InvalidArgument, match="conda-unpack failed with exit status 1: no prefix"):
        prepare(context(model_dir, pack(prefix, tmp_path / "env.tar.gz")))
    assert not list(cache.glob("*/"))


@pytest.mark.parametrize(
    ("name", "target"), [("../outside", ""), ("link", "/etc/passwd"), ("link", "../../outside")]
)
def test_an_archive_that_reaches_outside_is_refused(model_dir, tmp_path, cache, name, target):
    with tarfile.open(tmp_path / "bad.tar.gz", "w:gz") as tar:
        member = tarfile.TarInfo(name)
        member.type, member.linkname = (tarfile.SYMTYPE if target else tarfile.REGTYPE), target
        tar.addfile(member, io.BytesIO())

    with pytest.raises(InvalidArgument, match=r"bad\.tar\.gz' is not unpacked, as it would reach outside: "):
        prepare(context(model_dir, tmp_path / "bad.tar.gz"))
    assert not list(cache.glob("*/"))
    assert not (tmp_path / "outside").exists()


def test_the_environment_of_a_backend_directory(model_dir, tmp_path):
    backend_dir = tmp_path / "backends" / "mine"
    backend_dir.mkdir(parents=True)
    pack(add_environment(tmp_path / "env"), backend_dir / "pb_exec_env_model.py.tar.gz")

    environment = prepare(context(model_dir, backend_dir=backend_dir))
    assert f"'{backend_dir}/pb_exec_env_model.py.tar.gz'" in environment.description
    assert prepare(context(model_dir, backend_dir=backend_dir, runtime="x")).executable == sys.executable


def add_wheel(folder, name="tiny", version="1.0"):
    """Write a package that holds one module."""
    folder.mkdir(exist_ok=True)
    info = f"{name}-{version}.dist-info"
    with zipfile.ZipFile(folder / f"{name}-{version}-py3-none-any.whl", "w") as wheel:
        wheel.writestr(f"{name}.py", f"VERSION = '{version}'\n")
        wheel.writestr(f"{info}/METADATA", f"Metadata-Version: 2.1\nName: {name}\nVersion: {version}\n")
        wheel.writestr(f"{info}/WHEEL", "Wheel-Version: 1.0\nRoot-Is-Purelib: true\nTag: py3-none-any\n")
        wheel.writestr(f"{info}/RECORD", "")


REQUIREMENTS = "--no-index --find-links ./wheels\ntiny  # of our own\nnumpy\n"


@pytest.mark.slow
def test_requirements_are_built_once(model_dir, caplog):
    caplog.set_level(logging.INFO)
    add_wheel(model_dir / "wheels")
    (model_dir / "requirements.txt").write_text(REQUIREMENTS)

    environment = prepare(context(model_dir))
    tiny, numpy_file, bireme_file = imported(environment, "tiny", "numpy", "bireme")
    prefix = Path(environment.executable).parents[1]
    assert Path(tiny).is_relative_to(prefix)
    assert Path(numpy_file).parents[1] in map(Path, interpreter.fallback_directories()), (
        "the server's own does"
    )
    assert not Path(bireme_file).is_relative_to(prefix)
    assert environment.env["VIRTUAL_ENV"] == str(prefix)
    assert "Successfully installed tiny-1.0" in caplog.text

    started_s = time.perf_counter()
    assert prepare(context(model_dir)) == environment
    end_server()
    assert prepare(context(model_dir)) == environment
    assert time.perf_counter() - started_s < 0.25
    assert caplog.text.count("building an environment") == 1


@pytest.mark.slow
def test_pips_error_is_in_the_load_error_and_nothing_stays(model_dir, cache):
    (model_dir / "requirements.txt").write_text("--no-index\nno-such-package==1\n")

    with pytest.raises(
        InvalidArgument,
        match=r"(?s)^model 'm': '/.*/requirements.txt': the environment cannot be built: pip failed with exit status 1:"
        r"\n.*No matching distribution found for no-such-package==1",
    ):
        prepare(context(model_dir))
    assert not list(cache.glob("*/pyvenv.cfg"))


def test_an_environment_comes_before_requirements(model_dir, tmp_path, caplog):
    (model_dir / "requirements.txt").write_text("tiny")
    prefix = add_environment(tmp_path / "env")

    assert prepare(context(model_dir, prefix)).executable == str(prefix / "bin" / "python")
    assert f"so '{model_dir}/requirements.txt' is ignored" in caplog.text


def test_a_file_that_is_included_and_missing_is_named(model_dir):
    (model_dir / "requirements.txt").write_text("-r more.txt\n")

    with pytest.raises(
        InvalidArgument, match=r"requirements.txt': cannot be read: .*No such file.*more\.txt'"
    ):
        prepare(context(model_dir))


FILES = {
    "requirements.txt": "-r more/base.txt\n-cmore/bounds.txt\n--no-index --find-links=wheels\n./tool[x] ; python_version > '3'\n"
    "other @ file:more/other.whl\n",
    "more/base.txt": "numpy>=1\n-r inner.txt\n-r ../requirements.txt\n",
    "more/inner.txt": "a-package\n",
    "more/bounds.txt": "numpy<9\n",
    "more/other.whl": "wheel",
    "wheels/tiny.whl": "wheel",
    "tool/pyproject.toml": "[project]",
    "tool/src/tool.py": "pass",
    "weights.bin": "weights",
    "tool/__pycache__/tool.pyc": "compiled",
    "tool/src/tool.egg-info/SOURCES.txt": "built",
}


@pytest.fixture
def requirements(model_dir):
    for name, text in FILES.items():
        (model_dir / name).parent.mkdir(exist_ok=True, parents=True)
        (model_dir / name).write_text(text)
    return model_dir / "requirements.txt"


@pytest.mark.parametrize("name", FILES)
def test_an_environment_is_another_when_a_file_changes_that_it_is_made_of(requirements, name):
    before = fingerprint(requirements, where="")
    assert before == fingerprint(requirements, where="")
    (requirements.parent / name).write_text(FILES[name] + "\n#")

    is_part_of_it = not name.endswith((".bin", ".pyc", "SOURCES.txt"))
    assert (before != fingerprint(requirements, where="")) == is_part_of_it


def test_variables_in_requirements_name_places_too(requirements, monkeypatch):
    monkeypatch.setenv("PLACE", "wheels")
    requirements.write_text("--find-links ${PLACE}\n")
    before = fingerprint(requirements, where="")
    (requirements.parent / "wheels" / "new.whl").touch()

    assert before != fingerprint(requirements, where="")


def test_an_environment_moves_with_its_model_unless_it_is_editable(model_dir, requirements, tmp_path):
    moved = shutil.copytree(model_dir, tmp_path / "moved") / "requirements.txt"
    assert fingerprint(requirements, where="") == fingerprint(moved, where="")
    for file in (requirements, moved):
        file.write_text("-e ./tool\n")
    assert fingerprint(requirements, where="") != fingerprint(moved, where="")


class Maker:
    """Makes environments and counts them; waits for ``gate`` while it does so."""

    def __init__(self):
        self.num_made = 0
        self.started = threading.Event()
        self.gate = threading.Event()
        self.gate.set()

    def __call__(self, prefix):
        self.num_made += 1
        prefix.mkdir()
        self.started.set()
        assert self.gate.wait(10)


def get(cache, make, key="key", origin="origin"):
    return EnvironmentCache(cache).get(key, origin, make, where="w")


def test_loads_at_the_same_time_make_an_environment_once(cache, caplog):
    caplog.set_level(logging.INFO)
    make = Maker()
    make.gate.clear()
    waiting = threading.Event()
    caplog.handler.addFilter(lambda record: waiting.set() or True if "waiting for" in record.msg else True)
    found = []
    threads = [threading.Thread(target=lambda: found.append(get(cache, make))) for _ in range(3)]
    for thread in threads:
        thread.start()
    assert make.started.wait(10)
    assert waiting.wait(10)
    make.gate.set()
    for thread in threads:
        thread.join(10)

    assert len(found) == 3
    assert len(set(found)) == 1
    assert make.num_made == 1


def test_what_a_killed_build_left_is_made_again(cache):
    make = Maker()
    prefix = get(cache, make)
    end_server()
    (prefix / "bireme-complete").unlink()
    (prefix / "half").touch()

    assert get(cache, make) == prefix
    assert make.num_made == 2
    assert not (prefix / "half").exists()


def test_a_build_that_fails_leaves_nothing_and_may_be_tried_again(cache):
    def fail(prefix):
        prefix.mkdir()
        raise ZeroDivisionError

    with pytest.raises(ZeroDivisionError):
        get(cache, fail)
    assert not list(cache.glob("*/"))
    make = Maker()
    get(cache, make)
    assert make.num_made == 1


def test_an_older_environment_goes_when_nobody_uses_it(cache):
    make = Maker()
    unused, other = get(cache, make), get(cache, make, "other", "another origin")
    end_server()
    used = get(cache, make, "used")
    newest = get(cache, make, "newest")

    assert not unused.exists()
    assert other.exists()
    assert used.exists()
    assert newest.exists()


def test_an_environment_in_use_is_locked_for_other_servers(cache):
    prefix = get(cache, Maker())

    with open(f"{prefix}.use", "ab") as lock, pytest.raises(BlockingIOError):  # noqa: PTH123
        fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)


def test_a_cache_that_cannot_be_written_names_the_variable(tmp_path):
    (tmp_path / "file").touch()

    with pytest.raises(
        InvalidArgument, match=r"w: cannot keep an environment in '.*/file/x': .*; BIREME_CACHE_DIR names"
    ):
        get(tmp_path / "file" / "x", Maker())


def test_a_cache_that_cannot_be_written_is_told_for_directories_too(model_dir, tmp_path, monkeypatch):
    monkeypatch.setenv("BIREME_CACHE_DIR", f"{add_environment(tmp_path / 'env')}/bin/python")

    with pytest.raises(
        InvalidArgument, match=r"cannot keep an environment in '.*': Not a directory; BIREME_CACHE_DIR"
    ):
        prepare(context(model_dir, tmp_path / "env"))


def test_a_cache_in_a_read_only_image_is_used(cache, monkeypatch):
    prefix = get(cache, Maker())
    end_server()

    def refuse(*_arguments):
        raise OSError(errno.EROFS, "Read-only file system")

    monkeypatch.setattr(environment_cache, "_open", refuse)
    assert get(cache, Maker()) == prefix
    with pytest.raises(
        InvalidArgument, match=r"w: cannot keep an environment in '.*': Read-only file system; BIREME_"
    ):
        get(cache, Maker(), "another")


def test_the_cache_is_where_the_user_keeps_such(monkeypatch):
    monkeypatch.delenv("BIREME_CACHE_DIR", raising=False)
    monkeypatch.setenv("XDG_CACHE_HOME", "/xdg")
    assert EnvironmentCache.of_user().root == Path("/xdg/bireme/environments")
    monkeypatch.delenv("XDG_CACHE_HOME")
    monkeypatch.setenv("HOME", "/home/me")
    assert EnvironmentCache.of_user().root == Path("/home/me/.cache/bireme/environments")
    monkeypatch.setenv("BIREME_CACHE_DIR", "/mine")
    assert EnvironmentCache.of_user().root == Path("/mine/environments")
