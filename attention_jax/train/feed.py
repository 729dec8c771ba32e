"""What the loop trains on next: rows of arrays on the devices, or calls that are read ahead while it trains.

Both give (position after the call, bucket, indices [M, K, b], weight [M, K, B]) for each call of an epoch from a
position on; a position is (window, call), the beginning of an epoch (0, 0), its end None.
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

START = (0, 0)
AHEAD = 2
"""Calls on the devices besides the one that trains."""
M_MMAP_THRESHOLD = -3
"""Of malloc.h."""


def streamed(task) -> bool:
    """Whether the data of a task are read while it trains: then it has a `stream`."""
    return getattr(task, "stream", None) is not None


class Resident:
    """Buckets that are on the devices; a window is one chunk of the runs' plans."""

    waited = 0.0

    def __init__(self, buckets, plans):
        self.buckets, self.plans = buckets, plans

    def calls(self, epoch: int, position: tuple[int, int]) -> Iterator[tuple]:
        plans = self.plans(epoch)
        for number in range(position[0], len(plans[0])):
            bucket, indices, weight = side_by_side([chunks[number] for chunks in plans])
            after = (number + 1, 0) if number + 1 < len(plans[0]) else None
            yield after, self.buckets[bucket], indices, weight

    def close(self):
        self.buckets = None


def side_by_side(chunks: list) -> tuple[int, np.ndarray, np.ndarray]:
    """The same chunk of M plans as (bucket, indices [M, K, B], weight [M, K, B])."""
    buckets, indices, weight = zip(*chunks)
    assert len(set(buckets)) == 1, "runs beside each other need buckets in the same order"
    return buckets[0], np.stack(indices), np.stack(weight)


def give_memory_back():
    """Make glibc return large blocks to the system when they are freed, where there is glibc.

    By itself it comes to keep them, and the resident memory of a run that streams grows by a fifth in 1,000 steps. The
    setting is of the whole process and stays: glibc cannot be asked for the value before.
    """
    with contextlib.suppress(OSError, AttributeError):
        ctypes.CDLL(None).mallopt(M_MMAP_THRESHOLD, 2**20)


class Streamed:
    """Calls of `reading` (data/streams.py: an iterator over (epoch, window, calls)), put on the devices ahead of time.

    `open_reading` is called in the thread that reads, `put` puts the rows of a call on the devices. `waited` counts the
    seconds in which the loop had nothing to do.
    """

    def __init__(self, open_reading, put, windows: int, position: tuple[int, int]):
        self.put, self.windows, self.skip = put, windows, position[1]
        self.waited, self.damaged = 0.0, 0
        give_memory_back()
        self.ready, self.closing = queue.Queue(AHEAD), threading.Event()
        self.reader = threading.Thread(target=self._read, args=(open_reading,), daemon=True)
        self.reader.start()

    def calls(self, epoch: int, position: tuple[int, int]) -> Iterator[tuple]:
        after = position
        while after:
            began = time.perf_counter()
            found = self.ready.get()
            self.waited += time.perf_counter() - began
            if isinstance(found, BaseException):
                raise found
            after, bucket, indices, weight, damaged = found
            self._tell(damaged)
            yield after, bucket, indices, weight

    def _tell(self, damaged: tuple[str, ...]):
        self.damaged += len(damaged)
        if damaged and self.damaged == len(damaged):
            print(f"left out, the next one is read instead: {damaged[0]}", file=sys.stderr)

    def _read(self, open_reading):
        reading = None
        try:
            reading = open_reading()
            for _, window, calls in reading:
                for number in range(self.skip, len(calls)):
                    last = number + 1 == len(calls)
                    after = (window, number + 1) if not last else (window + 1, 0) if window + 1 < self.windows else None
                    if not self._put(self._placed(after, calls[number])):
                        return
                self.skip = 0
            self._put(RuntimeError("the stream came to its end before the training did"))
        except BaseException as error:
            self._put(error)
        finally:
            if reading:
                reading.close()

    def _placed(self, after, call) -> tuple:
        rows = next(iter(call.bucket.values())).shape[1]
        indices = np.arange(rows, dtype=np.int32).reshape(1, len(call.weight), -1)
        indices = np.tile(indices, (1, 1, jax.device_count()))  # every device counts through its own
        return after, self.put(call.bucket), indices, call.weight[None], call.damaged

    def _put(self, found) -> bool:
        """Hand over; False where nobody wants any more."""
        while not self.closing.is_set():
            try:
                self.ready.put(found, timeout=0.1)
                return True
            except queue.Full:
                continue
        return False

    def close(self):
        self.closing.set()
        self.reader.join()
        if self.damaged:
            print(f"{self.damaged} times a record could not be read and the next one stood for it", file=sys.stderr)
