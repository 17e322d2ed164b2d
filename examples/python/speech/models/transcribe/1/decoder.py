"""The loop over the decoder model: one call for each token, with the KV cache handed on from call to call.

The cache is 24 tensors. What a call returns is put into the next one under its other name. How a model is called is up
to whoever runs the loop: by BLS, as in calls.py, the arrays stay in memory that server and model share, and are not copied.
"""

import numpy as np

NUM_LAYERS = 6
NUM_HEADS, HEAD_SIZE = 8, 36
START, END = 1, 2
TOKENS_PER_SAMPLE = 6.5 / 16_000
"""More than people can say; the model may repeat itself without end."""

OWN_CACHE = [f"{layer}.decoder.{kind}" for layer in range(NUM_LAYERS) for kind in ("key", "value")]
"""Grows by one token with every call."""
ENCODER_CACHE = [f"{layer}.encoder.{kind}" for layer in range(NUM_LAYERS) for kind in ("key", "value")]
"""Made by the first call; later ones return nothing of use under these names."""


async def tokens_of(samples, call):
    """Yield the tokens of a recording, FP32[1, N], as they are decided on.

    ``await call(model, inputs, outputs)`` asks a model: arrays by name go in, those of the named outputs come back.
    """
    mask = np.ones(samples.shape, np.int64)
    encoded = await call(
        "speech_encoder", {"input_values": samples, "attention_mask": mask}, ["last_hidden_state"]
    )
    steady = {"encoder_hidden_states": encoded["last_hidden_state"], "encoder_attention_mask": mask}
    nothing = np.zeros((1, NUM_HEADS, 0, HEAD_SIZE), np.float32)
    cache = dict.fromkeys((*OWN_CACHE, *ENCODER_CACHE), nothing)
    token, fresh = START, (*OWN_CACHE, *ENCODER_CACHE)
    for _ in range(int(samples.size * TOKENS_PER_SAMPLE) + 2):
        inputs = {
            **steady,
            "input_ids": np.array([[token]], np.int64),
            "use_cache_branch": np.array([token != START]),
            **{f"past_key_values.{name}": array for name, array in cache.items()},
        }
        outputs = await call("speech_decoder", inputs, ["logits", *(f"present.{name}" for name in fresh)])
        cache.update({name: outputs[f"present.{name}"] for name in fresh})
        token, fresh = int(outputs["logits"][0, -1].argmax()), OWN_CACHE
        if token == END:
            return
        yield token
