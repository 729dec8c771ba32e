"""`python launch.py bench input`: throughput of reading images, and the number of cores that training needs for it.

    python launch.py bench input --path DIR --pixels 224 --batch-size 1024 --step-ms 250

Training with steps of `--step-ms` milliseconds is input-bound unless the cores read a batch in that time.
"""

import contextlib
import math
import time

from attention_jax.config import Images
from attention_jax.data import images
from attention_jax.data.stream import Stream
from attention_jax.errors import InputError


def measure_rate(stream: Stream, seconds: float) -> float:
    """Return the examples per second of the threads of a stream that read for `seconds` after all have started."""
    examples, begin = 0, 0.0
    with contextlib.closing(stream.read((0, 1, 1), 0, 0, 10**6)) as reading:
        for number, (_, call) in enumerate(reading):
            now = time.perf_counter()
            if number < 2 * stream.workers:
                begin = now
                continue
            examples += int((call.weight > 0).sum())
            if now - begin > seconds:
                return examples / (now - begin)
    raise AssertionError("a stream of a million epochs ended")


def main(
    path: str = "",
    pixels: int = 224,
    batch_size: int = 256,
    threads: int = 1,
    seconds: float = 10.0,
    step_ms: float = 0.0,
) -> dict[str, float]:
    """Measure how fast images in class directories are read.

    Args:
        path: Directory of class/image.png.
        pixels: Size of an image, in pixels per side.
        batch_size: Images per training step.
        threads: Number of threads that read.
        seconds: Seconds to measure.
        step_ms: Milliseconds of a training step, to compare with; 0 compares with none.
    """
    if not path or threads < 1:
        raise InputError("bench input needs --path DIR, and --threads 1 or more")
    config = Images("folder", path=path, pixels=pixels, stream="always", workers=threads)
    rate = measure_rate(images.stream(config, images.load(config).train, 0, min(batch_size, 64), 1), seconds)
    print(f"{rate:.0f} images a second with {threads} threads: {rate / threads:.0f} a second and core")
    rates = {"per_second": rate, "per_second_and_core": rate / threads}
    if step_ms:
        needed = 1000 * batch_size / step_ms
        rates["cores"] = math.ceil(needed / (rate / threads))
        print(
            f"a step of {batch_size} images in {step_ms:g} ms needs {needed:.0f} a second: {rates['cores']} cores "
            f"beside those that train (--data.workers {rates['cores']})"
        )
    return rates
