"""The book's own peeky model on dates, beside `date_peeky`: chapter 7's NumPy code, several seeds.

    git clone https://github.com/oreilly-japan/deep-learning-from-scratch-2 DIR
    python experiments/peers/from_scratch_date.py DIR

`PeekySeq2seq` of that repository with the settings of its ch08/train.py, as in from_scratch_addition.py beside this
file. Written to experiments/results/date_peeky_peer.json: exact match after each of 5 epochs. 10 minutes a seed on one
core.
"""

import json
import platform
import sys

import from_scratch_addition as addition
import numpy as np

WORDVEC, HIDDEN = 16, 256


def main(directory: str):
    sequence, _, peeky = addition.book(directory)
    addition.EPOCHS = 5
    (x, t), test = sequence.load_data("date.txt")
    reverse, histories = lambda pair: (pair[0][:, ::-1], pair[1]), []
    for seed in range(addition.SEEDS):
        np.random.seed(seed)
        model = peeky.PeekySeq2seq(len(sequence.get_vocab()[0]), WORDVEC, HIDDEN)
        histories.append(addition.trained(model, reverse((x, t)), reverse(test), seed))
        report = {
            "command": "python experiments/peers/from_scratch_date.py DIR",
            "environment": {"python": platform.python_version(), "numpy": np.__version__},
            "histories": {"peeky": histories},
        }
        place = addition.RESULTS / "date_peeky_peer.json"
        place.write_text(json.dumps(report, indent=1) + "\n", encoding="utf-8")


if __name__ == "__main__":
    main(*sys.argv[1:])
