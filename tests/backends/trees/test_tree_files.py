"""Files of tree models that are cut short or are no such files are found out before a library's parser dies of them."""

import json
import struct

import pytest

from bireme.backends.trees.lightgbm_text import find_damage as find_text_damage, read_head
from bireme.backends.trees.ubjson import find_damage


def number(value: int) -> bytes:
    return b"L" + struct.pack(">q", value)


def text(value: str) -> bytes:
    return number(len(value)) + value.encode()


def field(name: str, value: bytes) -> bytes:
    return text(name) + value


def array(kind: str, count: int, content: bytes) -> bytes:
    return b"[$" + kind.encode() + b"#" + number(count) + content


WHOLE = (
    b"{"
    + field("version", b"[i\x03i\x02i\x00]")
    + field("weights", array("d", 3, bytes(12)))
    + field("nodes", array("L", 2, bytes(16)))
    + field("name", b"S" + text("gbtree"))
    + field("flags", b"{" + field("a", b"T") + field("b", b"Z") + b"}")
    + field("trees", b"[#" + number(2) + b"{}" + b"{" + field("c", b"D" + bytes(8)) + b"}")
    + field("sized", b"{#" + number(1) + field("d", b"U\x05"))
    + field("typed", b"{$i#" + number(2) + text("e") + b"\x01" + text("f") + b"\x02")
    + b"}"
)


def test_a_whole_file_is_fine():
    assert not find_damage(WHOLE)
    assert not find_damage(WHOLE + b"anything behind it")
    assert not find_damage(b"{}")


@pytest.mark.parametrize("end", range(1, len(WHOLE)))
def test_every_end_that_is_too_early_is_found(end):
    assert find_damage(WHOLE[:end])


@pytest.mark.parametrize(
    ("content", "damage"),
    [
        (b"", "it ends after 0 bytes, in the midst of a value"),
        (b"[]", "it does not begin with an object"),
        (b"{" + field("a", b"?"), "byte 11 is b'?', which begins no value"),
        (b"{X", "byte 1 is b'X', where a length should begin"),
        (b"{" + number(-1), "a length before byte 10 is negative"),
        (b"{" + field("a", b"[$d]"), "byte 14 should give the size of a container"),
        (b"{" + field("a", b"[") * 70, "its values are nested more than 64 deep"),
        (b"{" + field("a", array("d", 1 << 60, b"")), "it ends after 24 bytes, in the midst of a value"),
    ],
)
def test_damage_is_told_with_its_place(content, damage):
    if "nested" in damage:
        content = b"{" + field("a", b"[" * 70)

    assert damage == find_damage(content)


SPLITS = b"split_feature=0 3\nthreshold=1.5 -2e-35\ndecision_type=2 2\nleft_child=1 -1\nright_child=-2 -3\n"
TREES = [
    b"Tree=0\nnum_leaves=1\nnum_cat=0\nleaf_value=0.5\n\n\n",
    b"Tree=1\nnum_leaves=3\nnum_cat=0\n" + SPLITS + b"leaf_value=1 2 nan\n\n\n",
]
HEAD = {
    "version": "v4",
    "num_class": "3",
    "num_tree_per_iteration": "3",
    "max_feature_idx": "3",
    "objective": "multiclass num_class:3",
    "feature_names": "a b",
    "feature_infos": "none none",
}


def model(**changes: str | None) -> bytes:
    sizes = " ".join(str(len(tree)) for tree in TREES)
    head = HEAD | {"tree_sizes": sizes} | changes
    lines = [f"{key}={value}" for key, value in head.items() if value is not None]
    end = b"end of trees\n\nparameters:\n[boosting: gbdt]\nend of parameters\n\npandas_categorical:null\n"
    return "\n".join(["tree", *lines]).encode() + b"\n\n" + b"".join(TREES) + end


def test_a_whole_text_is_fine():
    assert not find_text_damage(model())
    assert not find_text_damage(model(tree_sizes=None))
    assert "multiclass num_class:3" == read_head(model())["objective"]


def test_every_end_of_a_text_before_that_of_its_parameters_is_found():
    whole = model()

    assert all(find_text_damage(whole[:end]) for end in range(whole.index(b"end of trees")))
    parameters = range(whole.index(b"parameters:") + 11, whole.index(b"end of parameters"))
    assert all("in the midst of its parameters" in find_text_damage(whole[:end]) for end in parameters)


@pytest.mark.parametrize(
    ("whole", "broken", "damage"),
    [
        (b"left_child=1 -1", b"left_chil\xff=1 -1", r"b'left_chil\xff=1 -1' is no field"),
        (b"left_child=1 -1", b"left_child=0 -1", "b'left_child' leads to 0"),
        (b"left_child=1 -1", b"left_child=1 -9", "b'left_child' leads to -9"),
        (b"split_feature=0 3", b"split_feature=0 4", "it asks for a feature that there is not"),
        (b"threshold=1.5 -2e-35", b"threshold=1.5 -2e-3x", "b'threshold' has something else than numbers"),
        (b"threshold=1.5 -2e-35", b"threshold=1.5--2e-35", "b'threshold' does not have as many numbers"),
        (b"leaf_value=1 2 nan", b"leaf_value=1 2\x00nan", "b'leaf_value' has something else than numbers"),
        (b"num_leaves=3", b"num_leaves=0", "it has 0 leaves"),
        (b"num_cat=0\nsplit", b"num_cat=1\nsplit", "'cat_boundaries'"),
    ],
)
def test_a_damaged_tree_is_told_before_the_parser_dies_of_it(whole, broken, damage):
    content = model()
    assert len(whole) == len(broken)

    found = find_text_damage(content.replace(whole, broken))

    assert found.startswith("tree 1 is damaged")
    assert damage in found


@pytest.mark.parametrize(
    ("content", "damage"),
    [
        (b"", "it is no model in LightGBM's text format: it begins with b'', expected b'tree'"),
        (json.dumps(HEAD).encode(), "it is no model in LightGBM's text format"),
        (model(num_class=None, feature_infos=None), "its head has no num_class, feature_infos"),
        (model(tree_sizes="20 40"), "tree 1 of 2 is not at byte"),
        (model(tree_sizes="x y"), "tree 0 of 2 is not at byte"),
        (model(tree_sizes="22"), "its 1 trees end before or after byte"),
    ],
)
def test_damage_of_a_text_is_told(content, damage):
    assert damage in find_text_damage(content)
