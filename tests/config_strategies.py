"""Hypothesis strategies for whole model configs, made from the schema: every field of every message can occur."""

from hypothesis import strategies as st

from bireme.config.faults import shortest_float
from bireme.config.schema import INTEGER_RANGES, Field, MessageType, model_config_type


def _scalars(field: Field):
    if field.kind in INTEGER_RANGES:
        return st.integers(*INTEGER_RANGES[field.kind])
    return {
        "bool": st.booleans(),
        "string": st.text(max_size=6),
        "double": st.floats(allow_nan=False),
        "float": st.floats(allow_nan=False, width=32).map(shortest_float),
        "enum": st.sampled_from([*field.enum]),
    }[field.kind]


def _values(field: Field):
    one = messages(field.message) if field.message is not None else _scalars(field)
    if field.key is not None:
        return st.dictionaries(_scalars(field.key), one, max_size=2)
    return st.lists(one, max_size=3).map(tuple) if field.is_repeated else one


@st.composite
def messages(draw, message: MessageType):
    """Draw the dataclass of a message, with a few of its fields set and at most one member of a oneof."""
    names = (
        draw(st.lists(st.sampled_from([*message.fields]), max_size=4, unique=True)) if message.fields else []
    )
    values, chosen = {}, set()
    for name in names:
        field = message.fields[name]
        if field.oneof not in chosen:
            values[field.attribute] = draw(_values(field))
        if field.oneof is not None:
            chosen.add(field.oneof)
    return message.make(**values)


def configs():
    """Draw model configs that are well formed, though rarely valid."""
    return messages(model_config_type())
