"""Joey NMT's toy task: a row of numbers below 50, to be written backwards. Train rows have 1 to 25
numbers, valid and test rows 1 to 30.

The samples are those of Joey's scripts/generate_reverse_task.py with its seed (NumPy's legacy generator, 42), in its
order: train, dev, test; so the default is its data.
"""

from dataclasses import dataclass
from typing import ClassVar

import numpy as np
import tensorflow_datasets as tfds

from attention_jax import config as settings
from attention_jax.data import pair_files, store
from attention_jax.data.pairs import PairData, Texts
from attention_jax.errors import InputError

NUMBERS, TRAIN_LENGTH, EXTRA_LENGTH, HELD_OUT = 50, 25, 5, 1_000
SPLITS = ("train", "valid", "test")


def generate(examples: int, seed: int = 42) -> dict[str, Texts]:
    """The three splits; a function of its arguments."""
    draws = np.random.RandomState(seed)
    splits = {}
    for split, count, longest in zip(
        SPLITS, (examples, HELD_OUT, HELD_OUT), (TRAIN_LENGTH, *[TRAIN_LENGTH + EXTRA_LENGTH] * 2)
    ):
        rows = [list(map(str, draws.randint(0, NUMBERS, draws.randint(1, longest + 1)))) for _ in range(count)]
        splits[split] = Texts([" ".join(row) for row in rows], [" ".join(row[::-1]) for row in rows])
    return splits


@dataclass(kw_only=True)
class ReverseConfig(tfds.core.BuilderConfig):
    """The number of training pairs."""

    examples: int = 50_000


class ReverseTask(tfds.core.GeneratorBasedBuilder):
    """Rows of numbers and their reversals."""

    VERSION = tfds.core.Version("1.0.0")
    BUILDER_CONFIGS: ClassVar = [ReverseConfig(name="generated_50000")]

    def _info(self):
        return store.text_features(
            self, "Rows of numbers and the same backwards.", homepage="https://github.com/joeynmt/joeynmt"
        )

    def _split_generators(self, dl_manager):
        return {
            split: self._generate_examples(texts) for split, texts in generate(self.builder_config.examples).items()
        }

    def _generate_examples(self, texts):
        for number, (source, target) in enumerate(zip(*texts)):
            yield number, {"source": source, "target": target}


def load(config: settings.Reverse, batch_size: int = 128) -> PairData:
    """Return the dataset of `config`, from its cache if there is one."""
    if not 1 <= config.examples <= 10_000_000:
        raise InputError(f"--data.examples must be between 1 and 10,000,000, got {config.examples}")
    name = f"generated_{config.examples}"
    task = name if name in ReverseTask.builder_configs else ReverseConfig(name=name, examples=config.examples)
    splits = {
        name: Texts(**columns)
        for name, columns in store.read_rows(store.prepare_builder(ReverseTask, task), SPLITS).items()
    }
    return pair_files.assemble(splits, config, batch_size, bleu_tokenize="none")
