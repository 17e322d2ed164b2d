"""The loop over the decoder model: one call for each token, with the KV cache handed on from call to call.

The cache is 24 tensors. What a call returns is put into the next one under its other name: the arrays stay where they
are, in memory that server and model share, and are not copied.
"""

import numpy as np
import triton_python_backend_utils as pb_utils

NUM_LAYERS = 6
NUM_HEADS, HEAD_SIZE = 8, 36
START, END = 1, 2
TOKENS_PER_SAMPLE = 6.5 / 16_000
"""More than people can say; the model may repeat itself without end."""

OWN_CACHE = [f"{layer}.decoder.{kind}" for layer in range(NUM_LAYERS) for kind in ("key", "value")]
"""Grows by one token with every call."""
ENCODER_CACHE = [f"{layer}.encoder.{kind}" for layer in range(NUM_LAYERS) for kind in ("key", "value")]
"""Made by the first call; later ones return nothing of use under these names."""


class Failed(Exception):
    """A model that was called answered with an error."""


class Decoder:
    """Decodes one recording, FP32[1, N]."""

    def __init__(self, samples):
        self.samples = pb_utils.Tensor("input_values", samples)
        self.num_max_tokens = int(samples.size * TOKENS_PER_SAMPLE) + 2
        self.mask = np.ones(samples.shape, np.int64)

    async def tokens(self):
        """Yield the tokens of the recording as they are decided on."""
        encoded = await call(
            "speech_encoder",
            [self.samples, pb_utils.Tensor("attention_mask", self.mask)],
            ["last_hidden_state"],
        )
        steady = [
            pb_utils.Tensor("encoder_hidden_states", encoded["last_hidden_state"]),
            pb_utils.Tensor("encoder_attention_mask", self.mask),
        ]
        nothing = np.zeros((1, NUM_HEADS, 0, HEAD_SIZE), np.float32)
        cache = dict.fromkeys((*OWN_CACHE, *ENCODER_CACHE), nothing)
        token, fresh = START, (*OWN_CACHE, *ENCODER_CACHE)
        for _ in range(self.num_max_tokens):
            is_first = token == START
            inputs = [
                *steady,
                pb_utils.Tensor("input_ids", np.array([[token]], np.int64)),
                pb_utils.Tensor("use_cache_branch", np.array([not is_first])),
                *(pb_utils.Tensor(f"past_key_values.{name}", array) for name, array in cache.items()),
            ]
            outputs = await call("speech_decoder", inputs, ["logits", *(f"present.{name}" for name in fresh)])
            cache.update({name: outputs[f"present.{name}"] for name in fresh})
            token, fresh = int(outputs["logits"][0, -1].argmax()), OWN_CACHE
            if token == END:
                return
            yield token


async def call(model, inputs, outputs):
    """Ask a model of this server; return the arrays of its outputs by name."""
    request = pb_utils.InferenceRequest(model_name=model, inputs=inputs, requested_output_names=outputs)
    answer = await request.async_exec()
    if answer.has_error():
        raise Failed(answer.error().message())
    return {tensor.name(): tensor.as_numpy() for tensor in answer.output_tensors()}
