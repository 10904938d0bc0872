"""A character-level transformer that learns to write Python, from Python's own standard library.

The network reads the last `context` characters and predicts the next one, at every place at once.

Data: the first `num_characters` characters of the standard library's modules in alphabetical order.
Accuracy is the share of characters that it guesses right; always guessing the space gives about
0.2.

Settings:
    context: characters that the network sees.
    width: size of the vector that stands for a character; divisible by `num_heads`.
    num_heads: attention heads in each block.
    num_blocks: transformer blocks.
    dropout: share of each block's output that is dropped in training.
    learning_rate: AdamW's highest step size; it rises over the first tenth of `decay_steps`, then a
        cosine brings it down.
    decay_steps: steps over which it comes down.
    num_characters: length of the text; the last tenth is held back for validation.
"""

import sysconfig
from pathlib import Path

import keras
import numpy as np

DEFAULTS = {
    "context": 48,
    "width": 48,
    "num_heads": 4,
    "num_blocks": 2,
    "dropout": 0.1,
    "learning_rate": 0.003,
    "decay_steps": 1050,
    "num_characters": 300_000,
}

NUM_CLASSES = 128  # ASCII; whatever else stands in the text becomes "?"


def build(settings):
    """Return (compiled model, training data, validation data)."""
    settings = {**DEFAULTS, **settings}
    codes = library_text(settings["num_characters"])
    split = len(codes) * 9 // 10
    train = Windows(codes[:split], settings["context"])
    validation = Windows(codes[split:], settings["context"])

    characters = keras.Input(shape=(settings["context"],), dtype="int32")
    features = CharactersInPlace(settings["width"])(characters)
    for _ in range(settings["num_blocks"]):
        features = transformer_block(features, settings)
    features = keras.layers.LayerNormalization()(features)
    model = keras.Model(characters, keras.layers.Dense(NUM_CLASSES)(features))

    warmup_steps = settings["decay_steps"] // 10
    learning_rate = keras.optimizers.schedules.CosineDecay(
        initial_learning_rate=0.0,
        decay_steps=settings["decay_steps"] - warmup_steps,
        alpha=0.05,
        warmup_target=settings["learning_rate"],
        warmup_steps=warmup_steps,
    )
    model.compile(
        optimizer=keras.optimizers.AdamW(learning_rate, weight_decay=0.01, global_clipnorm=1.0),
        loss=keras.losses.SparseCategoricalCrossentropy(from_logits=True),
        metrics=["accuracy"],
    )
    return model, train, validation


def transformer_block(features, settings):
    """Attend to earlier characters, then apply a dense network at each place; with shortcuts."""
    width, num_heads = settings["width"], settings["num_heads"]
    attended = keras.layers.LayerNormalization()(features)
    attended = keras.layers.MultiHeadAttention(num_heads, width // num_heads)(
        attended, attended, use_causal_mask=True
    )
    features = features + keras.layers.Dropout(settings["dropout"])(attended)

    thought = keras.layers.LayerNormalization()(features)
    thought = keras.layers.Dense(4 * width, activation="gelu")(thought)
    thought = keras.layers.Dense(width)(thought)
    return features + keras.layers.Dropout(settings["dropout"])(thought)


@keras.saving.register_keras_serializable(package="char_transformer")
class CharactersInPlace(keras.layers.Layer):
    """Turn character codes (n, context) into vectors that know the character and its place."""

    def __init__(self, width, **kwargs):
        super().__init__(**kwargs)
        self.width = width
        self.characters = keras.layers.Embedding(NUM_CLASSES, width)

    def build(self, input_shape):
        self.characters.build(input_shape)
        self.places = self.add_weight(
            shape=(input_shape[-1], self.width), initializer="uniform", name="places"
        )

    def call(self, codes):
        return self.characters(codes) + self.places

    def get_config(self):
        return {**super().get_config(), "width": self.width}


class Windows:
    """Examples (characters, the same moved on by one); item i starts at character i * context."""

    def __init__(self, codes, context):
        self.codes = codes
        self.context = context

    def __len__(self):
        return (len(self.codes) - 1) // self.context

    def __getitem__(self, index):
        start = index * self.context
        window = self.codes[start : start + self.context + 1]
        return window[:-1], window[1:]


def library_text(num_characters):
    """Return the first ASCII codes of the standard library's modules, in alphabetical order.

    Sorted, because folders are listed in no fixed order and all trainers must see the same text.
    """
    folder = Path(sysconfig.get_paths()["stdlib"])
    pieces, missing = [], num_characters
    for path in sorted(folder.glob("*.py")):
        codes = np.frombuffer(path.read_bytes(), dtype=np.uint8)[:missing]
        pieces.append(np.where(codes < NUM_CLASSES, codes, ord("?")))
        missing -= len(codes)
        if missing == 0:
            break
    return np.concatenate(pieces).astype("int32")
