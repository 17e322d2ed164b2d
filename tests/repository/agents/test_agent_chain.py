"""AgentChain and AgentRegistry: the order of what agents hear, and where agents come from."""

import pytest

from bireme.config import parse_text
from bireme.repository import ModelDirectory
from bireme.repository.agents import AgentChain, AgentRegistry, RepositoryAgent
from bireme.types import InvalidArgument


class World:
    """Agents that write down what they hear; each may answer LOAD with a directory, or fail."""

    def __init__(self):
        self.heard = []
        self.answers = {}
        self.registry = AgentRegistry()
        self.registry.find = lambda _name: self.make

    def make(self, model):
        world = self

        class Recorder(RepositoryAgent):
            def note(self, action):
                world.heard.append((action, self.model.parameters["id"]))
                answer = world.answers.get((action, self.model.parameters["id"]))
                if isinstance(answer, BaseException):
                    raise answer
                return answer(self.model) if callable(answer) else answer

            def load(self):
                return self.note("load")

            def load_complete(self):
                self.note("load_complete")

            def load_fail(self):
                self.note("load_fail")

            def unload(self):
                self.note("unload")

            def unload_complete(self):
                self.note("unload_complete")

        return Recorder(model)

    def load(self, path, *ids):
        entries = ", ".join(f'{{ name: "x" parameters {{ key: "id" value: "{each}" }} }}' for each in ids)
        config = parse_text(f"model_repository_agents {{ agents [ {entries} ] }}", "config.pbtxt")
        return AgentChain.load("m", ModelDirectory(path), config, self.registry)

    def take(self):
        heard, self.heard = self.heard, []
        return [f"{action} {each}" for action, each in heard]


def test_loads_go_forwards_and_ends_go_backwards(tmp_path):
    world = World()

    chain, directory = world.load(tmp_path, "a", "b")
    assert world.take() == ["load a", "load b"]
    assert directory.path == tmp_path

    chain.complete()
    assert world.take() == ["load_complete b", "load_complete a"]

    chain.unload()
    assert world.take() == ["unload a", "unload b"]

    chain.end()
    assert world.take() == ["unload_complete b", "unload_complete a"]


def test_an_agent_that_fails_stops_the_others_and_those_before_hear_of_it(tmp_path):
    world = World()
    world.answers["load", "b"] = ValueError("no key")

    with pytest.raises(InvalidArgument, match="repository agent 'x' failed: ValueError: no key"):
        world.load(tmp_path, "a", "b", "c")

    assert world.take() == ["load a", "load b", "load_fail b", "load_fail a"]


def test_what_an_agent_raises_as_an_error_of_ours_is_the_error(tmp_path):
    world = World()
    world.answers["load", "a"] = InvalidArgument("the licence has expired")

    with pytest.raises(InvalidArgument) as caught:
        world.load(tmp_path, "a")

    assert caught.value.message == "the licence has expired"


def test_even_an_agent_that_exits_only_fails(tmp_path):
    world = World()
    world.answers["load", "a"] = SystemExit(3)

    with pytest.raises(InvalidArgument, match="SystemExit: 3"):
        world.load(tmp_path, "a")


def test_a_directory_is_the_next_agents_input_and_goes_with_the_model(tmp_path):
    world = World()
    seen = []
    world.answers["load", "a"] = lambda model: model.make_directory()
    world.answers["load", "b"] = lambda model: seen.append(model.directory)

    chain, directory = world.load(tmp_path, "a", "b")

    assert seen == [directory.path]
    assert directory.path != tmp_path
    chain.complete()
    assert directory.path.is_dir()
    chain.end()
    assert not directory.path.exists()
    assert tmp_path.is_dir()
    assert world.take()[2:] == [
        "load_complete b",
        "load_complete a",
        "unload a",
        "unload b",
        "unload_complete b",
        "unload_complete a",
    ]


@pytest.mark.parametrize(
    ("answer", "message"), [(3, "returned int, expected"), ("/not/there", "which is no directory")]
)
def test_an_answer_that_is_no_directory_stops_the_load(tmp_path, answer, message):
    world = World()
    world.answers["load", "a"] = answer

    with pytest.raises(InvalidArgument, match=message):
        world.load(tmp_path, "a")


def test_what_is_made_for_a_load_that_fails_is_removed(tmp_path):
    world = World()
    made = []
    world.answers["load", "a"] = lambda model: made.append(model.make_directory())
    world.answers["load", "b"] = ValueError()

    with pytest.raises(InvalidArgument):
        world.load(tmp_path, "a", "b")

    assert not made[0].exists()


def test_a_step_is_taken_once_and_none_is_taken_twice(tmp_path):
    world = World()
    chain, _ = world.load(tmp_path, "a")
    world.take()

    chain.unload()
    assert world.take() == []
    chain.fail()
    chain.fail()
    chain.complete()  # an ensemble whose models have come after all
    chain.fail()
    chain.end()
    chain.end()

    assert world.take() == ["load_fail a", "load_complete a", "unload a", "unload_complete a"]


def test_what_fails_after_load_is_only_logged(tmp_path, caplog):
    world = World()
    world.answers["load_complete", "b"] = ValueError("nobody answers")
    chain, _ = world.load(tmp_path, "a", "b")

    chain.complete()

    assert world.take() == ["load a", "load b", "load_complete b", "load_complete a"]
    assert "nobody answers" in caplog.text
    assert "LOADED" in repr(chain)


# Where agents come from.


def add_agent(root, name, text):
    (root / name).mkdir()
    (root / name / "agent.py").write_text(text)


def test_an_agent_is_a_file_in_the_agents_directory_and_imported_once(tmp_path):
    add_agent(
        tmp_path,
        "mark",
        "from bireme.repository.agents import RepositoryAgent\nclass Agent(RepositoryAgent): pass\n",
    )
    registry = AgentRegistry(str(tmp_path))

    found = registry.find("mark")

    assert issubclass(found, RepositoryAgent)
    assert registry.find("mark") is found


def test_an_agent_may_be_an_installed_package(tmp_path, monkeypatch):
    info = tmp_path / "agents-1.dist-info"
    info.mkdir()
    (info / "METADATA").write_text("Metadata-Version: 2.1\nName: agents\nVersion: 1\n")
    (info / "entry_points.txt").write_text("[bireme.repository_agents]\nodd = agents_of_mine:make\n")
    (tmp_path / "agents_of_mine.py").write_text("def make(model): return 'it'\n")
    monkeypatch.syspath_prepend(str(tmp_path))

    assert AgentRegistry().find("odd")(None) == "it"


@pytest.mark.parametrize("name", ["nobody", "../up", "..", ""])
def test_an_agent_that_nobody_has_is_named_with_the_places(tmp_path, name):
    (tmp_path / "agent.py").write_text("raise AssertionError")
    with pytest.raises(InvalidArgument) as caught:
        AgentRegistry(str(tmp_path)).find(name)

    assert (
        f"unable to find '{name}/agent.py' for repo agent '{name}', searched: {tmp_path}"
        in caught.value.message
    )
    assert "installed are checksum" in caught.value.message


def test_a_library_in_its_place_is_no_agent(tmp_path):
    (tmp_path / "c").mkdir()
    (tmp_path / "c" / "libtritonrepoagent_c.so").touch()

    with pytest.raises(InvalidArgument, match="agents are written in Python here: put agent"):
        AgentRegistry(str(tmp_path)).find("c")


@pytest.mark.parametrize(
    ("text", "message"), [("x = 1\n", "has no class 'Agent'"), ("1/0\n", "ZeroDivisionError")]
)
def test_a_file_that_is_no_agent_says_why(tmp_path, text, message):
    add_agent(tmp_path, "bad", text)

    with pytest.raises(InvalidArgument, match=message):
        AgentRegistry(str(tmp_path)).find("bad")
