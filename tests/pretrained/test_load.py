"""Pretrained models from Python and the command line: a small Llama that is written here."""

import json
import struct

import numpy as np
import pytest
import their_decoders as reference
from test_launch import error_line, launch_here

import attention_jax
from attention_jax import config as configs
from attention_jax.cli import command_options
from attention_jax.errors import InputError
from attention_jax.pretrained import load, tensors
from attention_jax.pretrained.load import is_pretrained

pytest.importorskip("tokenizers", reason="tokenizer.json needs tokenizers, of the extra `pretrained`")
safetensors = pytest.importorskip("safetensors.numpy")
TEXT = "The quick dog"


@pytest.fixture(scope="module")
def llama(tmp_path_factory):
    """(model, weights of the file, directory)."""
    place = tmp_path_factory.mktemp("models") / "llama"
    state = reference.directory(place)
    return attention_jax.load_pretrained(place), state, place


def largest(actual, expected):
    """The largest difference, relative to the largest value."""
    return abs(np.asarray(actual, np.float64) - expected).max() / abs(expected).max()


def test_a_directory_computes_what_its_weights_say(llama):
    """Four programs: logits, losses, maps, a continuation."""
    model, state, _ = llama
    ids = model.tokenizer.encode(TEXT)
    logits, maps = reference.outputs(state, ids)
    assert largest(model.logits([TEXT])[0], logits) < 1e-5
    [record] = model.attention([TEXT])
    [prediction] = record.predictions
    assert largest(prediction.attentions[0].weights, maps) < 1e-5
    assert "".join(prediction.attentions[0].keys.tokens).replace("\u2581", " ") == TEXT
    log_p = logits - np.log(np.exp(logits).sum(-1, keepdims=True))
    assert model.loss([TEXT])[0] == pytest.approx(-log_p[range(len(ids) - 1), ids[1:]].mean(), rel=1e-5)
    written = list(ids)
    for _ in range(5):
        written.append(int(reference.outputs(state, written)[0][-1].argmax()))
    pieces = []
    assert 1 not in written and 0 not in written[len(ids) :]
    assert model.generate([TEXT], length=5) == [model.tokenizer.decode(written[len(ids) :])]
    assert model.generate([TEXT], length=5, stream=pieces.append) == ["".join(pieces)]


@pytest.mark.slow
def test_texts_together_are_each_alone(llama):
    model, texts = llama[0], ["The quick dog", "a", "The quick brown fox jumps over the lazy dog. Again"]
    together = model.generate(texts, length=4)
    assert together == [model.generate([text], length=4)[0] for text in texts]
    assert model.generate([]) == []


def test_a_bias_is_beside_positions_of_the_file(llama, capsys):
    """Of four heads, whose slopes are 1/4, 1/16, 1/64 and 1/256; one program. ALiBi multiplies the weights of the first
    layer, up to the sum of a row, by exp(-slope * distance)."""
    model = attention_jax.load_pretrained(llama[2], bias="alibi", per_layer="1:bias=none")
    assert "positions" not in capsys.readouterr().err
    maps = model.attention([TEXT])[0].predictions[0].attentions[0].weights
    rotary_maps = reference.outputs(llama[1], model.tokenizer.encode(TEXT))[1]
    distance = np.subtract.outer(*[np.arange(maps.shape[-1])] * 2)
    expected = rotary_maps[0] * np.exp(-distance * 0.25 ** np.arange(1, 5)[:, None, None])
    np.testing.assert_allclose(maps[0], expected / expected.sum(-1, keepdims=True), atol=1e-5)
    attention_jax.load_pretrained(llama[2], position_embedding="alibi")
    assert "note: rotary positions of the file are not used: --model.bias adds" in capsys.readouterr().err


def test_an_attention_layer_adopts_the_kernels_of_its_names(llama, capsys):
    """Talking heads begin as the heads of the file; one program."""
    model = attention_jax.load_pretrained(llama[2], attention="own_attention_page:TalkingHeads")
    [note] = capsys.readouterr().err.splitlines()
    assert "initialized, as no weights have them" in note and "mix_scores" in note and "kernel" not in note
    logits = reference.outputs(llama[1], model.tokenizer.encode(TEXT))[0]
    assert largest(model.logits([TEXT])[0], logits) < 1e-5


@pytest.mark.slow
@pytest.mark.parametrize("options", [{"normalizer": "top_k(2)"}, {"per_layer": "1:mask=window(1)"}], ids=str)
def test_options_replace_those_of_the_file(llama, options):
    model = attention_jax.load_pretrained(llama[2], **options)
    maps = model.attention([TEXT])[0].predictions[0].attentions[0].weights
    assert (maps[1] > 0).sum(-1).max() == 2
    assert largest(model.logits([TEXT])[0], llama[0].logits([TEXT])[0]) > 1e-3


def test_per_layer_options_overlay_those_of_file():
    """As of Gemma, which has windows in some of its layers."""
    options = configs.LanguageModelConfig(num_layers=3, per_layer="0-1:mask=window(2),rope_theta=50")
    both = "0:mask=window(2),rope_theta=50;1:mask=none,rope_theta=50,normalizer=sigmoid"
    changes = {"per_layer": "1:mask=none,normalizer=sigmoid"}
    assert load.with_options(options, changes).per_layer == both
    assert load.with_options(options, {"per_layer": ""}) == options
    words = ["m.gguf", "text", "--model.per-layer", changes["per_layer"]]
    assert command_options.parse_with_model(command_options.Predict, words, options, None)[1].per_layer == both
    start_config = configs.Config("x", None, options)
    words = ["x", *words[2:]]
    assert (
        command_options.parse_with_config(command_options.Train, words, lambda _: start_config)[1].model.per_layer
        == both
    )
    masked = load.with_options(options, {"mask": "window(1)", "score": "dot"})
    assert load.find_layer_overrides(options, masked) == {"mask": "0-1"}


@pytest.mark.slow
def test_twelve_layers_are_scanned_and_compute_the_same(tmp_path):
    state = reference.directory(tmp_path, num_hidden_layers=12)
    model = attention_jax.load_pretrained(tmp_path)
    assert model.config.scan_layers and "layers_0" in model.params["decoder"]
    expected, maps = reference.outputs(
        state, model.tokenizer.encode(TEXT), reference.CONFIG | {"num_hidden_layers": 12}
    )
    assert largest(model.logits([TEXT])[0], expected) < 1e-4
    assert largest(model.attention([TEXT])[0].predictions[0].attentions[0].weights, maps) < 1e-4
    again = attention_jax.load_pretrained(tmp_path, scan_layers=False)
    assert largest(again.logits([TEXT])[0], expected) < 1e-4


def test_half_precision_parameters(llama):
    """bfloat16 has 8 bits of a number."""
    model = attention_jax.load_pretrained(llama[2], dtype="bfloat16")
    leaves = {str(leaf.dtype) for leaf in __import__("jax").tree.leaves(model.params)}
    assert leaves == {"bfloat16"}
    assert largest(model.logits([TEXT])[0], llama[0].logits([TEXT])[0]) < 0.05


def test_what_the_model_is_not(llama, capsys):
    model, _, place = llama
    for method in ("embed", "fill_mask", "classify", "translate"):
        with pytest.raises(
            InputError, match=f"{place} is a LanguageModel, which has no .*; it has batch, logits, loss, gene"
        ):
            getattr(model, method)(["a"])
    with pytest.raises(InputError, match="has no option 'normaliser'; it has score, normalizer"):
        attention_jax.load_pretrained(place, normaliser="sparsemax")
    with pytest.raises(InputError, match=r"key/kernel of \[16, 8\], and these options need \[16, 16\]"):
        attention_jax.load_pretrained(place, num_kv_heads=4)
    for text in ("", " "):
        with pytest.raises(InputError, match="must not be empty"):
            model.logits([text])
    with pytest.raises(InputError, match="a list of texts"):
        model.generate("one text")
    with pytest.raises(InputError, match="at least 2 tokens, 'a' has 1"):
        model.loss(["a"])
    attention_jax.load_pretrained(place, normalizer="learned_sink")
    assert "note: initialized, as no weights have them: decoder/layer_0/attention/normaliser" in capsys.readouterr().err


@pytest.mark.slow
def test_perplexity_is_that_of_the_windows(llama):
    model, state, _ = llama
    text = "The lazy dog jumps. " * 120
    ids = model.tokenizer.encode(text)
    assert len(ids) > 512
    nats = 0.0
    windows = [ids[:512], ids[512:]]
    for window in windows:
        logits = reference.outputs(state, window)[0]
        log_p = logits - np.log(np.exp(logits).sum(-1, keepdims=True))
        nats -= log_p[range(len(window) - 1), window[1:]].sum()
    scores = model.perplexity(text)
    assert scores["tokens"] == len(ids) - 2 and scores["loss"] == pytest.approx(nats / scores["tokens"], rel=1e-5)
    assert scores["perplexity"] == pytest.approx(np.exp(scores["loss"]))


def test_the_command_line_takes_it_like_a_run(llama, tmp_path):
    model, _, place = llama
    result = launch_here("predict", place, TEXT, "--decode.length", "3")
    assert result.returncode == 0 and result.stdout == f"{TEXT} -> {TEXT}{model.generate([TEXT], length=3)[0]}\n"
    page, text = tmp_path / "page.html", tmp_path / "text.txt"
    result = launch_here("look", place, TEXT, "--model.normalizer", "top_k(2)", "--out", page)
    assert result.returncode == 0 and result.stdout == f"{page}\n" and TEXT in page.read_text(), result.stderr
    text.write_text("The lazy dog\njumps over it.\n")
    result = launch_here("evaluate", place, "--text", text)
    assert (
        f"{'perplexity':32} {model.perplexity('The lazy dog' + chr(10) + 'jumps over it.')['perplexity']:.6g}"
        in result.stdout
    )
    result = launch_here("export", place, "--out", tmp_path / "out")
    assert result.returncode == 0 and "named as own" in result.stdout, result.stderr
    assert "at least one text" in error_line("predict", place) and "at least one text" in error_line("look", place)
    assert "needs --text FILE" in error_line("evaluate", place)
    assert "needs a run" in error_line("export", place, "--to", "stablehlo")
    assert "normalizer" in error_line("predict", place, TEXT, "--model.normalizer", "sofmax")
    assert is_pretrained(place) and not is_pretrained(tmp_path)


def shape(name: str, changed: tuple):
    """A change of the shape of one tensor."""

    def damage(place):
        state = reference.llama()
        state[name] = np.zeros(changed, np.float32)
        safetensors.save_file(state, place / "model.safetensors")

    return damage


def without(*names):
    def damage(place):
        state = {name: x for name, x in reference.llama().items() if name not in names}
        safetensors.save_file(state, place / "model.safetensors")

    return damage


def extra_arrays(**arrays):
    return lambda place: safetensors.save_file(reference.llama() | arrays, place / "model.safetensors")


def config(**changes):
    def damage(place):
        values = reference.CONFIG | changes
        values = {name: value for name, value in values.items() if value is not None}
        (place / "config.json").write_text(json.dumps(values))

    return damage


def content(name: str, data: bytes | None):
    return lambda place: (place / name).unlink() if data is None else (place / name).write_bytes(data)


def cut(name: str, share: float):
    def damage(place):
        whole = (place / name).read_bytes()
        (place / name).write_bytes(whole[: int(len(whole) * share)])

    return damage


def index(names: dict):
    def damage(place):
        (place / "model.safetensors").rename(place / "model-00001-of-00001.safetensors")
        (place / tensors.INDEX).write_text(json.dumps({"weight_map": names}))

    return damage


TOKENS, GATE = "model.embed_tokens.weight", "model.layers.1.mlp.gate_proj.weight"
SHARD = "model-00001-of-00001.safetensors"
LFS = b"version https://git-lfs.github.com/spec/v1\n"
NAN = np.full((300, 16), np.nan, np.float32)
DAMAGES = {
    "no weights": (content("model.safetensors", None), "must hold one file of weights"),
    "weights cut in the middle": (cut("model.safetensors", 0.5), "is damaged"),
    "weights cut in the header": (cut("model.safetensors", 0.01), "is damaged"),
    "empty weights": (content("model.safetensors", b""), "is damaged"),
    "huge header": (content("model.safetensors", struct.pack("<Q", 2**50) + b"{}"), "is damaged"),
    "a pickle": (content("model.safetensors", b"\x80\x02}q\x00."), "is a pickle"),
    "HTML": (content("model.safetensors", b"<!DOCTYPE html><html>not found</html>"), "is damaged"),
    "a pointer of Git LFS": (content("model.safetensors", LFS), "is damaged"),
    "NaN": (extra_arrays(**{TOKENS: NAN}), f"tensor {TOKENS} has values that are NaN"),
    "infinite": (extra_arrays(**{"model.norm.weight": np.full(16, np.inf, np.float32)}), "NaN or infinite"),
    "integers": (extra_arrays(**{GATE: np.ones((24, 16), np.int8)}), "must be of type F64, F32, F16, BF16, is I8"),
    "a tensor is missing": (without(GATE), "1 missing (model.layers.1.mlp.gate_proj.weight)"),
    "the embeddings are missing": (without(TOKENS), "must have the names of"),
    "a layer is missing": (without(*(n for n in reference.llama() if "layers.1" in n)), "num_hidden_layers 1, has 2"),
    "a tensor of another shape": (shape(GATE, (25, 16)), "model.layers.1.mlp.gate_proj.weight is [25, 16] instead"),
    "a norm of another shape": (shape("model.norm.weight", (17,)), "model.norm.weight is [17] instead of [16]"),
    "an unexpected tensor": (extra_arrays(surprise=np.ones(2, np.float32)), "1 unexpected (surprise)"),
    "an untied head": (extra_arrays(**{"lm_head.weight": np.ones((300, 16), np.float32)}), "must be tied"),
    "no config": (content("config.json", None), "needs its config.json"),
    "config is no JSON": (content("config.json", b"{"), "config.json"),
    "config is a list": (content("config.json", b"[]"), "config.json"),
    "deep config": (content("config.json", b"[" * 100_000), "config.json"),
    "unknown family": (config(model_type="mamba"), "model_type mamba is not supported; supported: "),
    "another family": (config(model_type="vit"), ""),
    "no heads": (config(num_attention_heads=None), "num_attention_heads"),
    "heads that do not divide": (config(num_attention_heads=3), ""),
    "zero heads": (config(num_attention_heads=0), ""),
    "heads are a text": (config(num_attention_heads="many"), ""),
    "another width": (config(hidden_size=32), "hidden_size 16, has 32"),
    "another vocabulary": (config(vocab_size=301), "vocab_size 300, has 301"),
    "scaled positions": (config(rope_scaling={"type": "dynamic", "factor": 2.0}), "got dynamic"),
    "an unknown entry of YaRN": (config(rope_scaling={"type": "yarn", "factor": 2.0, "beta": 1}), "have beta in"),
    "another activation": (config(hidden_act="relu"), "hidden_act silu or swish, has 'relu'"),
    "quantized": (config(quantization_config={"bits": 4}), "quantized safetensors files are not read"),
    "a negative epsilon": (config(rms_norm_eps=-1.0), "norm-epsilon"),
    "a base below one": (config(rope_theta=0.5), "rope-theta"),
    "no tokenizer": (content("tokenizer.json", None), "must have the tokenizer of the model"),
    "a tokenizer cut short": (cut("tokenizer.json", 0.5), "tokenizer.json is damaged"),
    "a tokenizer that is none": (content("tokenizer.json", b"{}"), "tokenizer.json is damaged"),
    "special tokens are a list": (content("tokenizer_config.json", b"[]"), "must be a JSON object"),
    "index without shards": (index({TOKENS: "absent.safetensors"}), "names 1 files that are not there"),
    "index that escapes": (index({TOKENS: "../llama/model.safetensors"}), "in its own directory"),
    "index of an absolute path": (index({TOKENS: "/etc/passwd"}), "in its own directory"),
    "index that names too much": (
        index({**dict.fromkeys(reference.llama(), SHARD), "more": SHARD}), "only one of them has more"
    ),
    "index that is no object": (index([]), "must have a weight_map"),
}  # fmt: skip


@pytest.mark.parametrize("name", DAMAGES)
def test_a_damaged_directory_is_one_line(tmp_path, name, capsys):
    damage, message = DAMAGES[name]
    reference.directory(tmp_path / "llama")
    damage(tmp_path / "llama")
    with pytest.raises(InputError) as error:
        attention_jax.load_pretrained(tmp_path / "llama")
    assert message in str(error.value) and "\n" not in str(error.value) and len(str(error.value)) < 800
    if name in ("NaN", "no weights"):
        assert message in error_line("predict", tmp_path / "llama", TEXT)  # with exit code 2


def test_a_tokenizer_of_another_model(tmp_path):
    reference.directory(tmp_path, vocab_size=270)
    model = attention_jax.load_pretrained(tmp_path)
    with pytest.raises(InputError, match="the model 270: are they of one model"):
        model.logits(["The quick brown fox jumps"])


def test_a_path_that_is_not_there():
    with pytest.raises(InputError, match=r"there is no nowhere.gguf"):
        attention_jax.load_pretrained("nowhere.gguf")
    assert "there is no nowhere.gguf" in error_line("predict", "nowhere.gguf", "a")
