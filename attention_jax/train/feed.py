"""Input of the training loop: batches of arrays on the devices (`Resident`), or prefetched while training (`Streamed`).

Both iterate over the chunks of an epoch, K steps each that are one compiled call, from a position on: (next position,
bucket, indices [K, b], weight [K, B]). A position is the number of a chunk; after the last one it is None.
"""

import contextlib
import ctypes
import queue
import sys
import threading
import time
from collections.abc import Iterator

import jax
import numpy as np

AHEAD = 2
"""The number of calls whose data are prefetched to the devices."""
M_MMAP_THRESHOLD = -3
"""From malloc.h."""


def is_streamed(task) -> bool:
    """Whether a task reads its data while it trains: then it has a `stream`."""
    return getattr(task, "stream", None) is not None


class Resident:
    """Buckets on the devices, and the chunks `chunks_of(epoch)` of the run's plan."""

    waited = 0.0

    def __init__(self, buckets, chunks_of):
        self.buckets, self.chunks_of = buckets, chunks_of

    def calls(self, epoch: int, position: int) -> Iterator[tuple]:
        chunks = self.chunks_of(epoch)
        for number in range(position, len(chunks)):
            bucket, indices, weight = chunks[number]
            next_position = number + 1 if number + 1 < len(chunks) else None
            yield next_position, self.buckets[bucket], indices, weight

    def close(self):
        self.buckets = None


def give_memory_back():
    """Make glibc, if present, return large blocks to the system when they are freed.

    Without this it retains them, and the resident memory of a streaming run grows by a fifth in 1,000 steps. The
    setting holds for the whole process: glibc offers no way to read the previous value.
    """
    with contextlib.suppress(OSError, AttributeError):
        ctypes.CDLL(None).mallopt(M_MMAP_THRESHOLD, 2**20)


class Streamed:
    """The calls of a stream (data/stream.py: an iterator over (number, call)), prefetched to the devices.

    `open_reading` is called in the reading thread; `put_call` copies the examples of a call to the devices. The loop
    has waited `waited` seconds for data.
    """

    def __init__(self, open_reading, put_call, in_epoch: int):
        self.put, self.in_epoch = put_call, in_epoch
        self.waited, self.damaged = 0.0, 0
        give_memory_back()
        self.ready, self.closing = queue.Queue(AHEAD), threading.Event()
        self.reader = threading.Thread(target=self._read, args=(open_reading,), daemon=True)
        self.reader.start()

    def calls(self, epoch: int, position: int) -> Iterator[tuple]:
        next_position = position
        while next_position is not None:
            began = time.perf_counter()
            item = self.ready.get()
            self.waited += time.perf_counter() - began
            if isinstance(item, BaseException):
                raise item
            next_position, bucket, indices, weight, damaged = item
            self._report(damaged)
            yield next_position, bucket, indices, weight

    def _report(self, damaged: tuple[str, ...]):
        self.damaged += len(damaged)
        if damaged and self.damaged == len(damaged):
            print(f"left out, the next one is read instead: {damaged[0]}", file=sys.stderr)

    def _read(self, open_reading):
        reading = None
        try:
            reading = open_reading()
            for number, call in reading:
                next_position = number + 1 if number + 1 < self.in_epoch else None
                if not self._enqueue(self._place_call(next_position, call)):
                    return
            self._enqueue(RuntimeError("the stream ended before the training"))
        except BaseException as error:
            self._enqueue(error)
        finally:
            if reading:
                reading.close()

    def _place_call(self, next_position, call) -> tuple:
        rows = next(iter(call.bucket.values())).shape[1]
        indices = np.arange(rows, dtype=np.int32).reshape(len(call.weight), -1)
        indices = np.tile(indices, (1, jax.device_count()))  # each device indexes its own examples
        return next_position, self.put(call.bucket), indices, call.weight, call.damaged

    def _enqueue(self, item) -> bool:
        """Queue an item for the loop; False if the loop has closed."""
        while not self.closing.is_set():
            try:
                self.ready.put(item, timeout=0.1)
                return True
            except queue.Full:
                continue
        return False

    def close(self):
        self.closing.set()
        self.reader.join()
        if self.damaged:
            print(f"{self.damaged} times a record could not be read and the next one stood for it", file=sys.stderr)
