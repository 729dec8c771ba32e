"""New inputs of any length and number are padded to few shapes: nothing new is compiled, and answers stay the same."""

import jax
import numpy as np
import pytest
from contract import draw

from attention_jax import config as configs
from attention_jax.config import Decode, Sampling, replace
from attention_jax.errors import InputError
from attention_jax.pretrained.interface import Pretrained
from attention_jax.runs.api import LoadedRun
from attention_jax.tasks import language, seq2seq, text_classification
from attention_jax.train import placement
from tests.tiny import builder

TEXTS = ["a b", "c d a b c a d", "a b " * 7, "d c b a b c"]
"""Of 1 to 14 words, so with special tokens at most the 16 of the smallest length."""
MODELS = {
    "classifier": (configs.TextClassifierConfig(1, 8, 2, 8, dropout=0.0), Decode()),
    "translator": (configs.TransformerConfig(1, 1, 8, 2, 8), Decode(max_length=6)),
    "language": (configs.LanguageModelConfig(1, 8, 2, 8), Sampling(length=4, temperature=1.0)),
}


@pytest.fixture(scope="module")
def build(tmp_path_factory):
    make = builder(tmp_path_factory.mktemp("data"))

    def build(name):
        options, decode = MODELS[name]
        task = make(options, decode=decode)
        return task, jax.tree.map(lambda x: 4 * x, draw(task.init))

    return build


@pytest.fixture
def compilations():
    """The durations of the compilations so far."""
    durations = []
    record = lambda event, duration, **_: durations.append(duration) if "backend_compile" in event else None
    jax.monitoring.register_event_duration_secs_listener(record)
    yield durations
    jax.monitoring.unregister_event_duration_listener(record)


@pytest.mark.slow
@pytest.mark.parametrize("name", MODELS)
def test_texts_of_new_lengths_compile_nothing_and_answer_alike(name, build, compilations, monkeypatch):
    """All in one batch of four, each alone, and without any padding give the same (9 CPU-seconds in all)."""
    task, params = build(name)
    together = task.predict(params, TEXTS[:3])
    if name != "language":  # one text after another
        task.predict(params, TEXTS[3:4])
    assert len(compilations) > 0
    compilations.clear()
    assert task.predict(params, TEXTS[1:]) == task.predict(params, TEXTS)[1:]
    assert [task.predict(params, [text])[0] for text in TEXTS[:3]] == together
    assert compilations == []
    for module in (language, seq2seq, text_classification):
        monkeypatch.setattr(module, "length_bucket", lambda longest, limit=None: longest)
    monkeypatch.setattr(placement, "batch_bucket", lambda count, most: min(count, most))
    assert task.predict(params, TEXTS[:3]) == together and len(compilations) > 0


@pytest.mark.parametrize("name", [pytest.param(x, marks=[pytest.mark.slow] * (x != "classifier")) for x in MODELS])
def test_a_warm_service_compiles_nothing(name, build, compilations, tmp_path):
    """`warm_up` with a length compiles what texts of all lengths need that are padded to it."""
    task, params = build(name)
    run = LoadedRun(tmp_path, task.config, None)
    vars(run)["_answering"] = task, params
    jax.clear_caches()  # other tests may have compiled the same programs
    run.warm_up(np.array([3, 16]))
    assert len(compilations) > 0
    compilations.clear()
    assert len(run.predict(TEXTS[:1])) == 1 and compilations == []
    for wrong in ({"lengths": [0]}, {"lengths": [16], "rows": 1.5}, {"lengths": "16"}):
        with pytest.raises(InputError, match="numbers of tokens and of rows, at least 1"):
            run.warm_up(**wrong)
    run.warm_up(16, rows=np.int64(1))
    assert compilations == []
    with pytest.raises(InputError, match="warm_up is for runs"):
        Pretrained(tmp_path, task.config.model, task.model, params, None).warm_up(16)


def test_attention_maps_of_new_lengths_compile_nothing(build, compilations):
    """The maps of a text have its tokens, and are those of the text beside others (5 CPU-seconds)."""
    task, params = build("classifier")
    alone = task.attention_maps(params, TEXTS[:1])
    task.attention_maps(params, TEXTS[:2])
    compilations.clear()
    records = task.attention_maps(params, TEXTS[:3])
    assert compilations == []
    for record, text in zip(records, TEXTS):
        assert all(len(side.keys.tokens) == len(text.split()) for side in record.predictions[0].attentions)
    for first, second in zip(alone[0].predictions[0].attentions, records[0].predictions[0].attentions):
        np.testing.assert_allclose(first.weights, second.weights, atol=1e-6)


def test_probabilities_of_padded_texts_are_exact(build):
    """Those of the model on the tokens of each text alone, without padding (1 CPU-second)."""
    task, params = build("classifier")
    probabilities = task.probabilities(params, TEXTS)
    tokens = np.array([task.data.vocabulary.encode_text(TEXTS[1].split())], np.int32)
    logits, _ = jax.jit(task.model.apply)({"params": params}, tokens, np.array([7], np.int32))
    np.testing.assert_allclose(jax.nn.softmax(logits)[0], probabilities[1], atol=1e-6)
    assert probabilities.shape == (4, len(task.classes)) and task.classes == task.data.names
    limited = replace(task.config, **{"data.max_length": 10})
    assert type(task)(limited, task.data, task.model).encode_texts(TEXTS)[1]["tokens"].shape == (4, 10)
