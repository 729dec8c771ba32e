"""docs/own_attention.md and docs/own_training.md are followed to the letter: their blocks become files, all used."""

import ast
import json
import os
import re
import shutil
import subprocess
from pathlib import Path

import pytest
from programs import Programs

ROOT = Path(__file__).resolve().parents[1]
PAGES = [ROOT / "docs" / f"own_{name}.md" for name in ("attention", "training")]
GUIDE = "".join(page.read_text(encoding="utf-8") for page in PAGES)
BLOCK = re.compile(r"^```(?:python|toml)\n# (\S+\.(?:py|toml))\n(.*?)^```$", re.DOTALL | re.MULTILINE)

ATTENDS = """
import jax, jax.numpy as jnp, numpy as np
from attention_jax.ops.attention import attend
from attention_jax import attend_heads, causal
from attention_jax.ops.heads import PerSequence
from mine.normalizers import Relative, SquarePlus
from mine.pools import Gated
from mine.rules import Recency, Strided
from mine.scores import Radial

query, key, value = np.random.default_rng(0).normal(size=(3, 12, 4)).astype(np.float32)
parameters = Radial(jnp.arange(1.0, 5.0)), Recency(jnp.array(0.5))

def total(parameters, implementation):
    score, bias = parameters
    call = {"score": score, "mask": Strided(4), "bias": bias, "implementation": implementation}
    return jnp.sum(attend(query, key, value, **call) ** 2)

scores = -(((query[:, None] - key[None]) / np.arange(1.0, 5.0)) ** 2).sum(-1)
distance = np.arange(12)[:, None] - np.arange(12)[None]
weights = np.exp(scores - 0.5 * np.log1p(abs(distance))) * ((distance >= 0) & (distance % 4 == 0))
by_hand = ((weights / weights.sum(1, keepdims=True)) @ value) ** 2
for implementation in ("plain", "fused"):
    loss, gradient = jax.jit(jax.value_and_grad(total), static_argnums=1)(parameters, implementation)
    np.testing.assert_allclose(loss, by_hand.sum(), rtol=1e-5)
    assert all(np.any(np.asarray(leaf) != 0) for leaf in jax.tree.leaves(gradient)), "a parameter has no gradient"

wide = jnp.concatenate([query, key], axis=1)
score, terms = Radial(jnp.arange(1.0, 9.0)), Radial(jnp.arange(1.0, 9.0)).terms(wide, wide)
product = terms.scale * terms.query @ terms.key.T
np.testing.assert_allclose(product + terms.key_term[None] + terms.query_term[:, None], score(wide, wide), atol=1e-5)

scores = query @ key.T / 2
values = scores + np.sqrt(scores**2 + 0.3)
by_hand = (values / values.sum(1, keepdims=True)) @ value
pooled = lambda width, i: attend(query, key, value, normalizer=SquarePlus(width), implementation=i).sum()
for implementation in ("plain", "fused"):
    np.testing.assert_allclose(pooled(jnp.float32(0.3), implementation), by_hand.sum(), rtol=1e-5)
    assert jax.grad(pooled)(jnp.float32(0.3), implementation) != 0, "the normalizer has no gradient"

gate = np.array([1.0, -1.0, 2.0, 0.5], np.float32)
weights = np.exp(scores) / np.exp(scores).sum(1, keepdims=True)
by_rule = {
    "normalizer": (Relative(), np.maximum(scores, 0) / (1 + abs(scores).sum(1, keepdims=True)) @ value),
    "pool": (Gated(jnp.array(gate)), weights @ (value / (1 + np.exp(-key @ gate))[:, None])),
}
for name, (rule, by_hand) in by_rule.items():
    for implementation in ("plain", "fused"):
        actual = attend(query, key, value, implementation=implementation, **{name: rule})
        np.testing.assert_allclose(actual, by_hand, rtol=1e-5, atol=1e-6)

x, rates = np.random.default_rng(1).normal(size=(2, 5, 3, 4)).astype(np.float32), np.array([[0.5, 1, 2], [0, 3, 4.0]])
out = attend_heads(x, x, x, bias=PerSequence(Recency(jnp.asarray(rates, jnp.float32))), mask=causal())
for b, h in np.ndindex(2, 3):
    alone = attend(x[b, :, h], x[b, :, h], x[b, :, h], bias=Recency(jnp.float32(rates[b, h])), mask=causal())
    np.testing.assert_allclose(out[b, :, h], alone, rtol=1e-5, atol=1e-6)
"""

SCORE_LEARNS = """
import jax, numpy as np
from attention_jax import load_run

run = load_run("runs/radial", trust_code=True)
assert run.config.model.score == "mine.scores:Radial"
[widths] = [x for path, x in jax.tree_util.tree_leaves_with_path(run.params) if "widths" in jax.tree_util.keystr(path)]
assert widths.shape == (8,) and np.all(np.asarray(widths) != 1), "the score has not learned"
"""

TRAINING_BY_HAND = """
import json
import jax, jax.numpy as jnp, numpy as np, optax
from mine.training import focal, linear, signum
from attention_jax import load_run
from attention_jax.config import Optim
from attention_jax.train.optimizer import optimizer

optim = Optim("mine.training:signum", learning_rate=0.5, schedule="mine.training:linear", b1=0.5)
params, update = {"w": jnp.array([1.0, -2.0])}, optimizer(optim, 2)
state = update.init(params)
for gradient in ([2.0, 1.0], [-1.0, -2.0]):  # moments [1, 0.5] and [0, -0.75], rates 0.5 and 0.25
    change, state = update.update({"w": jnp.array(gradient)}, state, params)
    params = optax.apply_updates(params, change)
np.testing.assert_allclose(params["w"], [0.5, -2.25])

total, count = focal(jnp.log(jnp.array([[0.5, 0.5], [0.25, 0.75]])), jnp.array([0, 0]), jnp.array([True, False]), 0.0)
np.testing.assert_allclose([total, count], [0.25 * np.log(2), 1.0], rtol=1e-6)

run = load_run("runs/signum", trust_code=True)
assert (run.config.optim.name, run.config.train.loss) == ("mine.training:signum", "mine.training:focal")
losses = [json.loads(line)["train.loss"] for line in open("runs/signum/metrics.jsonl") if "seconds" not in line]
V = run.params["bias"].size  # at first every token is about as probable as any other
np.testing.assert_allclose(losses[0], (1 - 1 / V) ** 2 * np.log(V), rtol=0.005)
"""

SMALL = "--train.max-steps=1 --train.total-epochs=1 --decode.max-length=4 --model.embed-size=4 --model.hidden-size=8"


@pytest.fixture(scope="module")
def checkout(tmp_path_factory) -> Path:
    """A checkout with the files of the guide in it, and some pairs to train on."""
    directory = tmp_path_factory.mktemp("extend")
    shutil.copytree(ROOT / "attention_jax", directory / "attention_jax", ignore=shutil.ignore_patterns("__pycache__"))
    shutil.copy(ROOT / "launch.py", directory)
    shutil.copytree(ROOT / "experiments" / "papers", directory / "experiments" / "papers")
    for name in ("date_luong.py", "language_model.py"):
        shutil.copy(ROOT / "experiments" / name, directory / "experiments")
    blocks = BLOCK.findall(GUIDE)
    assert len(dict(blocks)) == len(blocks) >= 5, "two blocks have one name, or the page has lost its blocks"
    for name, code in blocks:
        path = directory / name
        path.parent.mkdir(exist_ok=True)
        path.write_text(code, encoding="utf-8")
    pairs = [f"w{i} x y\tz w{i}\n" for i in range(40)]
    (directory / "pairs.tsv").write_text("".join(pairs), encoding="utf-8")
    return directory


@pytest.fixture(scope="module")
def python(checkout):
    """`python(*words)`: what `python WORDS` prints in the checkout; all in one process that knows no other checkout."""
    with Programs(os.environ | {"PYTHONPATH": ""}) as run:
        yield lambda *words, code=0: check_exit(run(*words, cwd=checkout), code)


def check_exit(ended: subprocess.CompletedProcess, code: int) -> str:
    assert ended.returncode == code, ended.stderr[-3000:]
    return ended.stderr if code else ended.stdout


@pytest.fixture(scope="module")
def launch(python):
    """`launch(line)`: what a command of `launch.py` prints."""
    return lambda line, code=0: python("launch.py", *line.split(), code=code)


def test_every_guide_block_is_a_file():
    assert GUIDE.count("```python") == sum(name.endswith(".py") for name, _ in BLOCK.findall(GUIDE))


@pytest.mark.slow
def test_guide_score_mask_and_bias_work(python):
    python("-c", ATTENDS)


@pytest.mark.slow
def test_guide_experiment_trains_and_predicts(checkout, launch):
    assert "mirror" in launch("list") and "docs/own_training.md" in launch("list mirror")
    assert "exact match on held-out words" in launch("reproduce mirror --scale smoke")
    run = "runs/reproduce/smoke/mirror/seed0"
    config = json.loads((checkout / run / "config.json").read_text(encoding="utf-8"))
    assert (config["data"]["type"], config["model"]["type"]) == ("mine.data:Mirror", "mine.models:LookupOptions")
    assert launch(f"predict {run} gnirts --attention look.png --trust-code").startswith("gnirts -> ")
    assert (checkout / "look.png").exists()


@pytest.mark.slow
def test_guide_score_trains_by_import_path(python, launch):
    launch(f"train date_luong --model.score mine.scores:Radial --data.examples 300 {SMALL} --out runs/radial")
    python("-c", SCORE_LEARNS)


PARTS_LEARN = """
import jax
from attention_jax import load_run

run = load_run("runs/parts", trust_code=True)
shapes = {jax.tree_util.keystr(path): leaf.shape for path, leaf in jax.tree_util.tree_leaves_with_path(run.params)}
of = lambda *words: [shape for name, shape in shapes.items() if all(word in name for word in words)]
assert of("attention_norm") == [(1, 1, 1)] and of("ffn", "kernel") == [(8, 8), (8, 8)] and not of("ffn", "bias")
assert of("normaliser_width") == [(2,)] and of("pool_gate") == [(2, 4)]
assert of("score_widths") == [(2, 4)] and of("'key'", "kernel") == [(8, 4)]
"""


@pytest.mark.slow
def test_the_parts_of_the_guide_train_and_predict(python, launch):
    command = re.search(r"^python launch.py (train language_model .*?)\n(?!  )", GUIDE, re.DOTALL | re.MULTILINE)
    [normalizer] = re.findall(r"--model.normalizer mine\.\S+", GUIDE)
    command = f"{command[1]} {normalizer} --model.head-pool mine.pools:Gated".replace("\\", " ").replace('"', "")
    small = "--model.num-layers 1 --model.hidden-size 8 --model.num-heads 2 --model.mlp-dim 8 --decode.length 4"
    launch(
        f"{command} {small} --data.sequence-length 16 --data.text-file pairs.tsv --train.max-steps 2 --out runs/parts",
    )
    python("-c", PARTS_LEARN)
    assert launch("predict runs/parts w1 --trust-code").startswith("w1")


@pytest.mark.slow
@pytest.mark.parametrize("kind", ["TalkingHeads", "MemorySlots"])
def test_attention_layers_of_the_guide_train_resume_decode_and_export(checkout, launch, kind):
    assert launch(f"check mine.attention:{kind}").count(" ok") == 4
    small = "--model.num-layers 2 --model.hidden-size 8 --model.num-heads 2 --model.mlp-dim 8 --decode.length 4"
    small += " --data.sequence-length 16 --data.text-file pairs.tsv --train.max-steps 2"
    launch(f"train language_model --model.attention mine.attention:{kind} {small} --train.total-epochs 1 --out {kind}")
    launch(f"train language_model --resume --out {kind} --train.total-epochs 2 --train.max-steps 4 --trust-code")
    history = json.loads((checkout / kind / "result.json").read_text(encoding="utf-8"))["history"]
    assert history[-1]["step"] == 4
    assert launch(f"predict {kind} w1 --trust-code").startswith("w1")
    for to in ("npz", "stablehlo"):
        launch(f"export {kind} --to {to} --trust-code")
    assert "--model.attention mine.attention" in launch(f"export {kind} --naming gpt2 --trust-code", code=2)


LANGUAGE_MODEL_BY_HAND = """
import jax, jax.numpy as jnp, numpy as np
from mine.language import Recall, RecallOptions
from attention_jax import load_run

model, tokens = Recall(RecallOptions(hidden_size=4), 6), np.array([[1, 2, 3, 4, 5], [5, 5, 0, 2, 1]])
rng, shapes = np.random.default_rng(0), jax.eval_shape(model.init, jax.random.key(0), tokens)
variables = jax.tree.map(lambda x: rng.normal(size=x.shape), shapes)
p = variables["params"]
x = p["embed"]["embedding"][tokens]
query = x @ p["query"]["kernel"] + p["query"]["bias"]
distance = np.arange(5)[:, None] - np.arange(5)[None]
scores = -(((query[:, :, None] - x[:, None]) / p["widths"]) ** 2).sum(-1) - p["rate"] * np.log1p(abs(distance))
weights = np.where(distance >= 0, np.exp(scores), 0)
weights /= weights.sum(-1, keepdims=True)
logits = np.concatenate([weights @ x, x], -1) @ p["kernel"] + p["bias"]
actual, intermediates = model.apply(variables, tokens, return_weights=True)
np.testing.assert_allclose(actual, logits, atol=1e-4)
np.testing.assert_allclose(intermediates["decoder_attention"][:, 0, 0], weights, atol=1e-5)
cache = model.apply(variables, 2, 7, method="start")
for t in range(5):
    stepwise, cache, _ = model.apply(variables, cache, tokens[:, t], method="step")
    np.testing.assert_allclose(stepwise, logits[:, t], atol=1e-4)
result = load_run("runs/own", trust_code=True).result
metrics = result["metrics"]
assert result["history"][-1]["step"] == 80, result["history"]
assert metrics["test.loss"] < 0.3 * np.log(4), metrics  # each of four letters determines the next
"""


@pytest.mark.slow
def test_language_model_of_the_guide_trains_resumes_and_writes(checkout, python, launch):
    (checkout / "letters.txt").write_text("abcd" * 500, encoding="utf-8")
    small = "--data.text-file letters.txt --data.sequence-length 16 --train.total-epochs 20 --out runs/own"
    launch(f"train my_language.py {small} --train.max-steps 60")
    launch("train my_language.py --resume --out runs/own --train.max-steps 80 --trust-code")
    python("-c", LANGUAGE_MODEL_BY_HAND)
    written = launch("predict runs/own abc --temperature 0 --length 5 --attention own.png --trust-code")
    assert written.startswith("abc -> abcdabcd") and (checkout / "own.png").exists()
    (checkout / "new.txt").write_text("abcd" * 20, encoding="utf-8")
    assert "perplexity" in launch("evaluate runs/own --text new.txt --trust-code")
    launch("look runs/own abcd --out own.html --trust-code")
    launch("export runs/own --to stablehlo --trust-code")
    assert (checkout / "own.html").exists() and any((checkout / "runs/own/export").rglob("*"))


@pytest.mark.slow
def test_guide_task_trains_without_view(checkout, launch):
    [task] = [
        node
        for node in ast.parse((checkout / "mine/surface.py").read_text()).body
        if getattr(node, "name", "") == "Regression"
    ]
    assert task.end_lineno - task.lineno < 40
    launch("train surface --out runs/surface")
    history = json.loads((checkout / "runs/surface/result.json").read_text())["history"]
    assert history[-1]["valid.loss"] < 0.3 * history[0]["valid.loss"]  # 0.0025 is the noise
    assert "valid.loss" in launch("evaluate runs/surface --trust-code")
    for command, message in (
        ("predict runs/surface 0.5", "a Regression has no"),
        ("look runs/surface", "no attention"),
    ):
        error = launch(f"{command} --trust-code", code=2)
        assert message in error and error.count("\n") == 1, error


@pytest.mark.slow
def test_guide_optimizer_schedule_and_loss_train(python, launch):
    options = "--optim.name mine.training:signum --optim.schedule mine.training:linear --train.loss mine.training:focal"
    [by_pattern] = re.findall(r"train date_luong (--optim.rates .*)", GUIDE)
    launch(f"train date_luong {options} {by_pattern} --data.examples 300 {SMALL} --out runs/signum")
    python("-c", TRAINING_BY_HAND)


@pytest.mark.slow
def test_a_file_anywhere_trains_on_ones_own_pairs(launch):
    small = "--model.hidden-size 8 --model.num-heads 2 --model.mlp-dim 8 --train.max-steps 1 --train.total-epochs 1"
    small += " --model.num-encoder-layers 1 --model.num-decoder-layers 1 --decode.max-length 4 --decode.beam-size 2"
    launch(f"train my_pairs.py {small}")
    assert launch("predict runs/my_pairs/001 w1").startswith("w1 -> ")


@pytest.mark.slow
def test_the_language_model_of_the_guide_trains(launch):
    small = "--model.num-layers 1 --model.hidden-size 8 --model.num-heads 2 --model.mlp-dim 8 --train.max-steps 2"
    launch(f"train my_text.py {small} --data.text-file pairs.tsv --data.sequence-length 16 --decode.length 4")
    assert launch("predict runs/my_text/001 w1 --trust-code").startswith("w1")
