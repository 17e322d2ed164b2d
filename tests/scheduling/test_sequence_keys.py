"""Sequences whose states have different shapes run in batches of their own."""

import pytest

from bireme.config.model_config import StrategyDirect, StrategyOldest
from bireme.scheduling.sequence_slots import DirectLane, LiveSequence, OldestLane
from bireme.types import InferenceRequest, SequenceSlot


def offered(lane, number: int, batch_key: object) -> InferenceRequest:
    request = InferenceRequest("m", {}, lambda _request, _response: None)
    request.batch_key = "same inputs"
    sequence = LiveSequence(number + 1)
    sequence.requests.append(request)
    sequence.number, sequence.place = number, SequenceSlot(number + 1, 0, number)
    sequence.place.batch_key = batch_key
    lane.offer(sequence, 0)
    return request


@pytest.mark.parametrize(
    "lane",
    [DirectLane(0, 4, StrategyDirect()), OldestLane(0, 4, StrategyOldest(preferred_batch_size=(4,)), "m", 4)],
    ids=["direct", "oldest"],
)
def test_a_batch_has_sequences_of_one_key(lane):
    short, other_short, long = (
        offered(lane, number, key) for number, key in enumerate([None, None, ((9,),)])
    )

    batches = [lane.choose(0).batch]
    lane.end()
    batches.append(lane.choose(0).batch)

    assert [[short, other_short], [long]] == [
        [request for request in batch if request is not None] for batch in batches
    ]
