"""The book's own addition models, beside `addition_seq2seq`: chapter 7's NumPy code, eight seeds.

    git clone https://github.com/oreilly-japan/deep-learning-from-scratch-2 DIR
    python experiments/peers/from_scratch_addition.py DIR reversed

`Seq2seq`, `PeekySeq2seq`, `Trainer` and `Adam` of that repository with the settings of its ch07/train_seq2seq.py;
only the held-out sums are answered in one batch (five of them, every epoch, also by the book's own `generate`, to the
same digits). Written to experiments/results/addition_seq2seq_peer_eight_seeds.json: exact match after each epoch. 2 to
7 minutes a model and seed on one core; names of models after DIR, plain, reversed or reversed-peeky, train only these.
addition_seq2seq_peer.json has the three seeds of all models that the script trained until 2026-11-26.
"""

import contextlib
import importlib
import io
import json
import platform
import sys
from pathlib import Path

import numpy as np

RESULTS = Path(__file__).resolve().parents[1] / "results"
SEEDS, EPOCHS = 8, 25
WORDVEC, HIDDEN, BATCH, CLIP = 16, 128, 128, 5.0


def book(directory: str) -> tuple:
    """Its modules: the data, the plain model and the peeky one."""
    sys.path[:0] = [directory, str(Path(directory, "ch07"))]
    return tuple(map(importlib.import_module, ("dataset.sequence", "seq2seq", "peeky_seq2seq")))


def answers(model, questions, start: int, length: int) -> np.ndarray:
    """As `generate` of the book's decoders, for many questions at once: tokens [B, length]."""
    state, decoder, peeks = model.encoder.forward(questions), model.decoder, type(model).__name__ == "PeekySeq2seq"
    peeked, token, written = state[:, None, :], np.full((len(questions), 1), start), []
    decoder.lstm.set_state(state)
    for _ in range(length):
        x = decoder.embed.forward(token)
        x = decoder.lstm.forward(np.concatenate((peeked, x), axis=2) if peeks else x)
        x = decoder.affine.forward(np.concatenate((peeked, x), axis=2) if peeks else x)
        token = x.argmax(2)
        written.append(token[:, 0])
    return np.stack(written, axis=1)


def train_and_test(model, train, test, seed: int) -> list[float]:
    """Exact match on `test` after each epoch."""
    from common.optimizer import Adam
    from common.trainer import Trainer

    trainer, (questions, expected), history = Trainer(model, Adam()), test, []
    start, length = expected[0, 0], expected.shape[1] - 1
    for epoch in range(EPOCHS):
        with contextlib.redirect_stdout(io.StringIO()):
            trainer.fit(*train, max_epoch=1, batch_size=BATCH, max_grad=CLIP)
        actual = answers(model, questions, start, length)
        for i in range(5):
            assert model.generate(questions[[i]], start, length) == actual[i].tolist()
        history.append(float((actual == expected[:, 1:]).all(axis=1).mean()))
        print(type(model).__name__, f"seed {seed} epoch {epoch + 1}: {history[-1]:.4f}", flush=True)
    return history


def main(directory: str, *names: str):
    sequence, plain, peeky = book(directory)
    (x, t), (x_test, t_test) = sequence.load_data("addition.txt")
    models = {
        "plain": (plain.Seq2seq, 1),
        "reversed": (plain.Seq2seq, -1),
        "reversed-peeky": (peeky.PeekySeq2seq, -1),
    }
    histories = {name: [] for name in names or models}
    for name, history in histories.items():
        kind, order = models[name]
        for seed in range(SEEDS):
            np.random.seed(seed)
            model = kind(len(sequence.get_vocab()[0]), WORDVEC, HIDDEN)
            history.append(train_and_test(model, (x[:, ::order], t), (x_test[:, ::order], t_test), seed))
    report = {
        "command": " ".join(["python experiments/peers/from_scratch_addition.py DIR", *names]),
        "environment": {"python": platform.python_version(), "numpy": np.__version__},
        "histories": histories,
    }
    place = RESULTS / "addition_seq2seq_peer_eight_seeds.json"
    place.write_text(json.dumps(report, indent=1) + "\n", encoding="utf-8")


if __name__ == "__main__":
    main(*sys.argv[1:])
