"""Streaming input pipeline: worker processes read windows of data ahead of the training loop.

A window is a part of an epoch that one worker reads. Its content is a function of (seed, epoch, window) only, so the
order and all random numbers are the same with any number of workers and hosts, and a run resumes from (epoch, window,
call) without any state of the readers.
"""

import collections
import contextlib
import multiprocessing.util
import os
import pickle
import signal
from collections.abc import Callable, Iterable, Iterator
from concurrent.futures import ThreadPoolExecutor
from multiprocessing import resource_tracker
from multiprocessing.connection import Connection
from typing import Literal, NamedTuple

import numpy as np

from attention_jax.cli.signals import ENDING
from attention_jax.errors import InputError
from attention_jax.provenance import cores

LARGEST_RESIDENT = 2**30
"""The largest training arrays, in bytes, that `--data.stream auto` keeps on the device."""
CALL_BYTES = 2**24
"""The maximum number of bytes of a streamed call of several steps."""
TEXT_IN_MEMORY = 16
"""Bytes of Python objects for each byte of a text file, approximately."""


class Share(NamedTuple):
    """The part of a global batch that one host computes: the blocks `first` to `first + here` of `of` equal ones."""

    first: int = 0
    here: int = 1
    of: int = 1

    def cut(self, rows: np.ndarray) -> np.ndarray:
        """Divide batches over devices: [K, B] -> [here, K, b] with b = B / of, zero padded if `of` does not divide B.

        >>> Share(first=1, here=1, of=2).cut(np.array([[1, 2, 3]])).tolist()
        [[[3, 0]]]
        """
        rows = np.pad(rows, ((0, 0), (0, -rows.shape[1] % self.of)))
        blocks = rows.reshape(len(rows), self.of, -1).swapaxes(0, 1)
        return blocks[self.first : self.first + self.here]


class Call(NamedTuple):
    """The examples of one compiled call."""

    bucket: dict[str, np.ndarray]
    """{name: [here, K * b, ...]}: the examples of this host's devices, in the order of the steps."""
    weight: np.ndarray
    """[K, B] float32, of all hosts; 0 for padding."""
    damaged: tuple[str, ...] = ()
    """An error message for each example that was unreadable and replaced."""


class Stream:
    """Base class of streamed datasets; pickled to the workers, so it should be small."""

    windows: int
    """Windows per epoch."""
    workers: int
    """The number of worker processes; 0 reads in threads of this process."""
    epoch_steps: int | None
    """The number of training steps of an epoch; None if it is unknown before the first epoch ends."""

    def calls(self, epoch: int, window: int, share: Share) -> list[Call]:
        """The calls of a window, at least one."""
        raise NotImplementedError

    def largest(self) -> Call:
        """Return a call of the largest size, for all hosts; by default the largest of the first window."""
        size = lambda call: sum(array.nbytes for array in call.bucket.values())
        return max(self.calls(0, 0, Share()), key=size)

    def read(self, share: tuple[int, int, int], epoch: int, window: int, epochs: int) -> "Reading":
        """Iterate over (epoch, window, calls) from a position to the end of `epochs`."""
        return Reading(self, Share(*share), epoch, window, epochs)


def is_streamed(stream: Literal["auto", "always", "never"], size: int) -> bool:
    """Whether training arrays of `size` bytes are streamed.

    >>> is_streamed("auto", 2**30), is_streamed("auto", 2**30 + 1), is_streamed("always", 1)
    (False, True, True)
    """
    return stream == "always" or (stream == "auto" and size > LARGEST_RESIDENT)


def are_texts_streamed(stream: Literal["auto", "always", "never"], paths: Iterable[str]) -> bool:
    """Whether the texts in these files are streamed."""
    return is_streamed(stream, TEXT_IN_MEMORY * sum(os.path.getsize(path) for path in paths if os.path.isfile(path)))


def steps_in_call(row_bytes: int, batch_size: int, max_steps: int) -> int:
    """Return the number of steps of a streamed call: at most `max_steps`, with at most `CALL_BYTES` of examples.

    >>> steps_in_call(3 * 224 * 224, 1024, 32), steps_in_call(3 * 32 * 32, 128, 32)
    (1, 32)
    """
    return int(np.clip(CALL_BYTES // (row_bytes * batch_size), 1, max_steps))


class Reading:
    """Iterator over (epoch, window, calls) from a position to the end of `epochs`, prefetched in order.

    Workers ignore SIGINT, SIGTERM, SIGHUP and SIGUSR1, which the training process handles, and end when their pipe
    closes: with `close`, or whenever the training process ends. Data are sent through the pipe, so that a dead worker
    leaves nothing behind and is detected immediately, even in the middle of a message.

    Raises:
      InputError: a record cannot be read, or a worker died.
    """

    def __init__(self, stream: Stream, share: Share, epoch: int, window: int, epochs: int):
        self.windows = stream.windows
        self.readers = [Reader(stream, share) for _ in range(stream.workers)] or [Threads(stream, share)]
        numbers = range(epoch * self.windows + window, epochs * self.windows)
        self.answers = self._read_ahead(numbers, sum(reader.ahead for reader in self.readers))

    def _read_ahead(self, numbers: Iterable[int], ahead: int) -> Iterator[tuple[int, list[Call]]]:
        waiting = collections.deque()
        for number in numbers:
            reader = self.readers[number % len(self.readers)]
            waiting.append((number, reader.ask(*divmod(number, self.windows))))
            if len(waiting) > ahead:
                first, answer = waiting.popleft()
                yield first, answer()
        while waiting:
            first, answer = waiting.popleft()
            yield first, answer()

    def __iter__(self) -> Iterator[tuple[int, int, list[Call]]]:
        for number, calls in self.answers:
            yield *divmod(number, self.windows), calls

    def close(self):
        for reader in self.readers:
            reader.close()


class Threads:
    """Reader in threads of this process; PIL and NumPy release the GIL."""

    def __init__(self, stream: Stream, share: Share):
        self.calls, self.share = stream.calls, share
        self.ahead = min(cores(), 8)
        self.pool = ThreadPoolExecutor(self.ahead)

    def ask(self, epoch: int, window: int) -> Callable[[], list[Call]]:
        """Return a function that waits for the calls of a window."""
        return self.pool.submit(self.calls, epoch, window, self.share).result

    def close(self):
        self.pool.shutdown(wait=False, cancel_futures=True)


class Reader:
    """Reader in a worker process."""

    ahead = 2  # the window that it reads, and the next request

    def __init__(self, stream: Stream, share: Share):
        context = multiprocessing.get_context("spawn")
        self.pipe, worker_pipe = context.Pipe()
        self.process = context.Process(target=serve, args=(worker_pipe, stream, share), daemon=True)
        with without_signals():
            self.process.start()
        worker_pipe.close()
        # if not called before, ahead of multiprocessing, which waits for its children
        self.close = multiprocessing.util.Finalize(self, kill_worker, (self.pipe, self.process), exitpriority=1)

    def ask(self, epoch: int, window: int) -> Callable[[], list[Call]]:
        """Return a function that waits for the calls of a window, in the order of the requests."""
        with self._alive():
            send_value(self.pipe, (epoch, window))
        return self._answer

    def _answer(self) -> list[Call]:
        with self._alive():
            answer = receive_value(self.pipe)
        if isinstance(answer, Exception):
            raise answer
        return answer

    @contextlib.contextmanager
    def _alive(self):
        try:
            yield
        except (EOFError, OSError) as error:
            self.process.join()
            raise InputError(
                f"a process that reads the data died (exit code {self.process.exitcode}; -9 is what a lack of memory "
                "gives): resume with --resume, with fewer --data.workers if memory is short"
            ) from error


def kill_worker(pipe: Connection, process):
    """Kill a worker process, which has no state to lose."""
    pipe.close()
    process.kill()
    process.join()


@contextlib.contextmanager
def without_signals():
    """Processes that are started within it never hear the signals that end the training process."""
    resource_tracker.ensure_running()  # multiprocessing's own process, whose start would unblock them
    previous_mask = signal.pthread_sigmask(signal.SIG_BLOCK, {signal.SIGINT, *ENDING})
    try:
        yield
    finally:
        signal.pthread_sigmask(signal.SIG_SETMASK, previous_mask)


def serve(pipe: Connection, stream: Stream, share: Share):
    """Send the calls of requested windows, or an error, until the pipe closes."""
    with contextlib.suppress(EOFError, OSError):
        while True:
            epoch, window = receive_value(pipe)
            try:
                answer = stream.calls(epoch, window, share)
            except Exception as error:
                answer = error
            send_value(pipe, answer)


def send_value(pipe: Connection, value):
    """Send a value with out-of-band buffers for its arrays.

    Sent as bytes: the buffer of `Connection.send` on a broken pipe causes a warning in Python 3.13 when it is freed.
    """
    arrays = []
    payload = pickle.dumps(value, 5, buffer_callback=arrays.append)
    pipe.send_bytes(len(arrays).to_bytes(8))
    pipe.send_bytes(payload)
    for array in arrays:
        pipe.send_bytes(array.raw())


def receive_value(pipe: Connection):
    """The inverse of `send_value`."""
    count, payload = int.from_bytes(pipe.recv_bytes()), pipe.recv_bytes()
    return pickle.loads(payload, buffers=[pipe.recv_bytes() for _ in range(count)])
