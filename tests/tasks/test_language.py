"""The task of language models, on a text of our own."""

from dataclasses import replace

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from contract import draw
from tiers import slow_but

from attention_jax import tasks
from attention_jax.config import Config, Decode, LanguageModelConfig, Sampling, TimeMachine, Train
from attention_jax.data.vocabulary import Vocabulary
from attention_jax.errors import InputError
from attention_jax.models.layer_checks import compiled
from attention_jax.sampling import truncate_logits
from attention_jax.tasks.language import continuation


@pytest.fixture(scope="module")
def task(tmp_path_factory):
    path = tmp_path_factory.mktemp("text") / "timemachine.txt"
    path.write_text("abc " * 100)
    model = LanguageModelConfig(
        num_layers=1, hidden_size=16, num_heads=2, mlp_dim=16, dropout=0.0, attention_dropout=0.0
    )
    return tasks.build(Config("test", TimeMachine(str(path), 32, 100, 20), model, train=Train(batch_size=16)))


@pytest.fixture(scope="module")
def params(task):
    params = jax.jit(task.init)(jax.random.key(0))
    chunk = task.plan(0, 4)[0]
    batch = {"tokens": task.buckets[0]["tokens"][chunk.indices[0]], "weight": chunk.weight[0]}

    def mean_loss(params):
        total, count, _ = task.loss(params, batch, jax.random.key(1))
        return total / count

    @jax.jit
    def step(params, _):
        return jax.tree.map(lambda p, g: p - 0.3 * g, params, jax.grad(mean_loss)(params)), None

    return jax.jit(lambda p: jax.lax.scan(step, p, None, length=60)[0])(params)


@pytest.mark.slow
def test_model_learns_and_continues_text(task, params):
    metrics = task.evaluate(params, True).metrics
    assert metrics["valid.perplexity"] < 1.3
    assert metrics["valid.perplexity"] == pytest.approx(np.exp(metrics["valid.loss"]))
    [text] = task.predict(params, ["Abc A"], None)
    assert text == ("abc " * 30)[: len("abc a") + 20]


def test_perplexity_of_a_new_text_predicts_every_token_once(task, params):
    """Windows of 33 characters, each from the last one of the window before; one program for them and one by hand."""
    text = "abc ab abc " * 9
    scores, ids = task.perplexity(params, text), task.encode(text)[0]
    assert (scores["tokens"], scores["stride"], scores["unknown_tokens"]) == (len(text) - 1, 32, 0)
    padded = np.pad(ids, (0, 33 * 4 - len(ids)))
    logits = compiled(lambda rows: task.model.apply({"params": params}, rows)[0])
    log_p = jax.nn.log_softmax(logits(np.stack([padded[first : first + 32] for first in range(0, 128, 32)])))
    nats = -np.asarray(log_p).reshape(128, -1)[np.arange(len(ids) - 1), ids[1:]]
    assert scores["loss"] == pytest.approx(nats.mean(), rel=1e-5)
    assert scores["bits_per_character"] == pytest.approx(nats.mean() / np.log(2), rel=1e-5)
    letters = Vocabulary([*" abcdefghijklmnopqrstuvw!yz"], unk="<unk>")  # without an x
    without_x = tasks.build(task.config, task.data._replace(vocabulary=letters))
    assert without_x.perplexity(params, "axb")["unknown_tokens"] == 1
    with pytest.raises(InputError, match="at least two tokens; this one has 1"):
        task.perplexity(params, "a")


def test_long_prompt_keeps_its_last_tokens(task):
    """20 characters are added within 32 positions: of a longer text the last 12 are read."""
    options = replace(task.config.model, position_embedding="learned", max_length=32)
    learned = tasks.build(replace(task.config, model=options))
    params = draw(learned.init)
    short, long = learned.predict(params, ["abc abc abc ", "cab" * 20 + "abc abc abc "], None)
    assert len(long) == 72 + 20 and long[-20:] == short[-20:]
    with pytest.raises(InputError, match="32 learned positions, --model.max-length, for 60 tokens"):
        learned.attention_map(params, "", "abc " * 15)


@pytest.mark.slow
def test_loss_counts_characters_and_leaves_padding_rows_out(task, params):
    rows = task.buckets[0]["tokens"][:4]
    loss = jax.jit(lambda p, b: task.loss(p, b, jax.random.key(0))[:2])
    total, count = loss(params, {"tokens": rows, "weight": jnp.array([1.0, 1.0, 0.0, 0.0])})
    less, fewer = loss(params, {"tokens": rows[:2], "weight": jnp.ones(2)})
    assert count == fewer == 64
    np.testing.assert_allclose(total, less, rtol=1e-5)


def test_report_draws_attention(task, params, tmp_path):
    (tmp_path / "figures").mkdir()
    [path] = task.report(params, task.evaluate(params, True), tmp_path / "figures")
    assert path.stat().st_size > 5_000
    assert (tmp_path / "samples.txt").read_text().startswith("it has")


def test_bad_sizes_are_one_line(tmp_path):
    path = tmp_path / "t.txt"
    path.write_text("abc " * 100)
    with pytest.raises(InputError, match="multiple of --model.num-heads"):
        tasks.build(Config("test", TimeMachine(str(path), 8, 10, 2), LanguageModelConfig(hidden_size=10, num_heads=4)))


SAMPLINGS = [Sampling(6, 0.0), Sampling(6, 0.8, top_k=3), Sampling(6, 1.0, top_p=0.5, seed=2)]


@pytest.mark.slow
@pytest.mark.parametrize("sampling", slow_but(SAMPLINGS[2:], SAMPLINGS))
def test_the_cache_writes_what_the_whole_model_would(task, sampling):
    model = task.model.clone(options=replace(task.config.model, num_kv_heads=1, mask="window(3)", norm_layer="rms"))
    tokens = task.buckets[0]["tokens"][:1, :5]
    params = draw(model.init, tokens)["params"]

    @jax.jit
    def choose_next(tokens, last, rng):
        logits = model.apply({"params": params}, tokens)[0][:, last]
        if sampling.temperature:
            logits = truncate_logits(logits / sampling.temperature, sampling.top_k, sampling.top_p)
            logits = logits + jax.random.gumbel(rng, logits.shape)
        return logits.argmax(-1)[:, None].astype(jnp.int32)

    text, rngs = tokens, jax.random.split(jax.random.key(sampling.seed), 5 + 6 - 1)
    for t in range(6):
        padded = np.pad(text, ((0, 0), (0, 6 - t)))  # one program for all lengths: a causal model ignores the rest
        text = np.concatenate([text, choose_next(padded, text.shape[1] - 1, rngs[4 + t])], axis=1)
    np.testing.assert_array_equal(continuation(model, params, tokens, sampling), text[0, 5:])


def test_options_of_translation_are_refused(task):
    with pytest.raises(InputError, match="decode=Sampling"):
        tasks.build(replace(task.config, decode=Decode()))


def test_bits_per_character_divide_bits_per_token(task, params):
    """One program. A perplexity of 2 ** n is n bits."""
    data = task.data._replace(characters_per_token=dict.fromkeys(task.data.held_out, 4.0))
    metrics = tasks.build(task.config, data).evaluate(params, False).metrics
    for split in task.data.held_out:
        assert metrics[f"{split}.bits_per_character"] == pytest.approx(np.log2(metrics[f"{split}.perplexity"]) / 4)
