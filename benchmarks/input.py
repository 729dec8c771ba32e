"""`python launch.py bench input`: throughput of an input pipeline, and the number of cores that training needs for it.

    python launch.py bench input --path DIR --pixels 224 --batch-size 1024 --step-ms 250
    python launch.py bench input --source-file a.en --target-file a.de --vocabulary-file my.model --batch-tokens 25000

Training with steps of `--step-ms` milliseconds is input-bound unless the cores read a batch in that time.
"""

import contextlib
import math
import time

from attention_jax.config import Corpus, Images
from attention_jax.data import images
from attention_jax.data.pairs import load_pairs
from attention_jax.data.streams import Reading, Share, Stream
from attention_jax.errors import InputError


def measure_rate(stream: Stream, processes: int, seconds: float) -> tuple[float, float]:
    """Return (examples per second, examples per step) of `processes` that read for `seconds` after all have started."""
    examples, steps, begin = 0, 0, 0.0
    with contextlib.closing(Reading(stream, Share(), 0, 0, 10**6)) as reading:
        for number, (*_, calls) in enumerate(reading):
            now = time.perf_counter()
            if number < 2 * processes:  # they start, and import what they need
                begin = now
                continue
            for call in calls:
                examples, steps = examples + int((call.weight > 0).sum()), steps + len(call.weight)
            if now - begin > seconds:
                return examples / (now - begin), examples / steps
    raise AssertionError("a stream of a million epochs ended")


def main(
    path: str = "",
    pixels: int = 224,
    source_file: str = "",
    target_file: str = "",
    vocabulary_file: str = "",
    tokenizer: str = "sentencepiece",
    batch_size: int = 256,
    batch_tokens: int = 0,
    processes: int = 1,
    seconds: float = 10.0,
    step_ms: float = 0.0,
) -> dict[str, float]:
    """Measure how fast images in class directories, or sentence pairs, are read.

    Args:
        path: Directory of class/image.png, instead of sentence pairs.
        pixels: Size of an image, in pixels per side.
        source_file: Source sentences, one per line.
        target_file: Target sentences, line by line those of the source.
        vocabulary_file: An existing vocabulary of the tokenizer.
        tokenizer: Tokenizer of the sentences, as --data.tokenizer of translate_files.
        batch_size: Images per training step.
        batch_tokens: Tokens per training step; 0 makes batches of batch_size pairs.
        processes: Number of worker processes.
        seconds: Seconds to measure.
        step_ms: Milliseconds of a training step, to compare with; 0 compares with none.
    """
    if bool(path) == bool(source_file) or processes < 1:
        raise InputError("bench input needs --path DIR or --source-file F --target-file F, and --processes 1 or more")
    if path:
        config = Images("folder", path=path, pixels=pixels, stream="always", workers=processes)
        stream, unit = images.stream(config, images.load(config).train, 0, min(batch_size, 64), 1), "images"
    else:
        files = {"source_file": source_file, "target_file": target_file, "vocabulary_file": vocabulary_file}
        options = {"tokenizer": tokenizer, "overlong": "drop", "batch_tokens": batch_tokens, "joint_vocabulary": True}
        config = Corpus(**files, **options, stream="always", workers=processes)
        stream, unit = load_pairs(config, batch_size).stream, "pairs"
    rate, in_step = measure_rate(stream, processes, seconds)
    in_step = batch_size if path else in_step
    print(f"{rate:.0f} {unit} a second with {processes} processes: {rate / processes:.0f} a second and core")
    rates = {"per_second": rate, "per_second_and_core": rate / processes}
    if step_ms:
        needed = 1000 * in_step / step_ms
        rates["cores"] = math.ceil(needed / (rate / processes))
        print(
            f"a step of {in_step:.0f} {unit} in {step_ms:g} ms needs {needed:.0f} a second: "
            f"{rates['cores']} cores beside those that train (--data.workers {rates['cores']})"
        )
    return rates
