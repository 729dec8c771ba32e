"""A program that was exported gives our numbers where this package cannot be imported."""

import datetime
import json
import re
import shutil
import subprocess
import sys

import jax
import numpy as np
import pytest
import their_decoders
import tiny
from jax import export as exporting
from PIL import Image

from attention_jax import config as configs, tasks
from attention_jax.data import image_files, labeled_texts, tokenizers
from attention_jax.data.pairs import Tokenizer, decode_targets
from attention_jax.errors import InputError
from attention_jax.export import prepare_image, prepare_text, stablehlo
from attention_jax.export.text_steps import tokenizer_steps

pytest.importorskip("flatbuffers")

ELSEWHERE = """
import json, sys
sys.modules["attention_jax"] = None  # it cannot be imported
import jax, numpy as np
where = sys.argv[1]
manifest = json.load(open(where + "/manifest.json"))
program = jax.export.deserialize(open(where + "/" + manifest["programs"]["cpu"], "rb").read())
weights = dict(np.load(where + "/" + manifest["weights"]))
given = np.load(sys.argv[2])
inputs = [given[put["name"]].astype(put["dtype"]) for put in manifest["inputs"]]
np.save(sys.argv[3], program.call(weights, *inputs))
assert not any(name.startswith("attention_jax.") for name in sys.modules)
"""


def call_elsewhere(directory, place, **inputs) -> np.ndarray:
    """What the exported program makes of the inputs in a process of its own."""
    np.savez(place / "in.npz", **inputs)
    words = [sys.executable, "-c", ELSEWHERE, str(directory), str(place / "in.npz"), str(place / "out.npy")]
    process = subprocess.run(words, capture_output=True, text=True, cwd=place, timeout=120)
    assert process.returncode == 0, process.stderr
    return np.load(place / "out.npy")


def call_here(directory, *inputs) -> np.ndarray:
    """What the exported program makes of the inputs in this process."""
    program = exporting.deserialize((directory / "cpu.stablehlo").read_bytes())
    return np.asarray(program.call(dict(np.load(directory / "weights.npz")), *inputs))


ACCENTS = [
    "\u00dcn\u00efc\u00f6d\u00e9 \u0130stanbul \ufb01ne \u00bd",
    "e\u0301 x\u200by \u05e9\u05dc\u05d5\u05dd",
    "\u4f60\u597d\u3002 3.14,15",
]
PLAIN = ["a b c", "Go now, it's late: GO!", "don\u2019t can't _x_ a_b", "Cours\u202f! Va,\xa0va.", "low lower lowest"]
MARKS = ["", " ", "  a   b ", "<unk> <eos> <pad>", "a@@ b @@ c@@", "tab\tand\x1cfile", "a\nb\n\n c\n"]
EMOJI = ["\u4f60\u597d\u3002 3.14,15", "\U0001f468\u200d\U0001f469 \U0001f44d\U0001f3fd"]
DRAWN = ["".join(np.random.default_rng(seed).choice(list("abc .,!?A\n\u00e9@"), 9)) for seed in range(40)]
TEXTS = [*ACCENTS, *PLAIN, *MARKS, *EMOJI, *DRAWN]


def run_prepare_text(directory, place, code: str):
    """The value of `code`, with prepare_text.py of `directory` as p and TEXTS as t, where this package is not."""
    (place / "texts.json").write_text(json.dumps(TEXTS))
    script = f"""
import json, sys
sys.modules["attention_jax"] = None
sys.path.insert(0, {str(directory)!r})
import prepare_text as p
t = json.load(open({str(place / "texts.json")!r}))
print(json.dumps({code}))
"""
    process = subprocess.run([sys.executable, "-c", script], capture_output=True, text=True, cwd=place, timeout=120)
    assert process.returncode == 0, process.stderr
    return json.loads(process.stdout)


def test_steps_equal_tokenizers(tmp_path):
    lines = [f"low lower lowest {'abc'[i % 3]} new newer {i}" for i in range(60)]
    piece, exact = (tokenizers.sentencepiece(lines, 40, exact)[0] for exact in (False, True))
    merges = [("l", "o"), ("lo", "w"), ("e", "r</w>"), ("a", "a"), ("low", "er</w>"), ("a", "b</w>")]
    plain = [tokenizers.whitespace(), tokenizers.character(), tokenizers.words(), tokenizers.letters()]
    with_rules = [
        tokenizers.words_and_marks(),
        tokenizers.stripping_tokenizer(),
        tokenizers.fixed_width_tokenizer(99, -1),
    ]
    nested = [
        tokenizers.lowercase_tokenizer(piece),
        tokenizers.reverse_tokenizer(tokenizers.words()),
        tokenizers.line_tokenizer(exact),
    ]
    subwords = [tokenizers.bpe_of_merges(merges), tokenizers.bpe_of_merges([*merges, ("r", "</w>")], True)]
    every = [*plain, *with_rules, piece, *subwords, *nested]
    files, both = {}, []
    for number, tokenizer in enumerate(every):
        both.append(tokenizer_steps(tokenizer, f"t{number}", files))
    for name, content in files.items():
        (tmp_path / name).write_bytes(content)
    (tmp_path / "steps.json").write_text(json.dumps(both))
    shutil.copy(prepare_text.__file__, tmp_path)
    code = "[[(p.apply(e, x), p.apply(d, p.apply(e, x))) for x in t] for e, d in p.read_json('steps.json')]"
    for tokenizer, results in zip(every, run_prepare_text(tmp_path, tmp_path, code), strict=True):
        tokens = [tokenizer.tokens(text) for text in TEXTS]
        assert results == [[row, tokenizer.text(row)] for row in tokens], tokenizer.recipe[0]
    with pytest.raises(InputError, match="tokenizer of this run"):
        tokenizer_steps(Tokenizer(str.split, " ".join), "t", {})


@pytest.mark.parametrize("max_length", [None, 3])
def test_tokenizer_of_a_pretrained_model_is_copied(tmp_path, max_length):
    """Its file may cut and pad texts, which the steps do not."""
    library = pytest.importorskip("tokenizers", reason="a pretrained tokenizer needs tokenizers")
    original = their_decoders.tokenizer()
    original.post_processor = library.processors.TemplateProcessing(single="<s> $A", special_tokens=[("<s>", 0)])
    original.enable_padding(length=9)
    original.enable_truncation(2)
    content = original.to_str().encode()
    tokenizer, files = tokenizers.tokenizer_of_json(content, max_length), {}
    (tmp_path / "steps.json").write_text(json.dumps(tokenizer_steps(tokenizer, "tokens", files)))
    assert files == {"tokenizer.json": content}
    (tmp_path / "tokenizer.json").write_bytes(content)
    shutil.copy(prepare_text.__file__, tmp_path)
    code = "[[(p.apply(e, x), p.apply(d, p.apply(e, x))) for x in t] for e, d in [p.read_json('steps.json')]]"
    [results] = run_prepare_text(tmp_path, tmp_path, code)
    assert results == [[row, tokenizer.text(row)] for row in map(tokenizer.tokens, TEXTS)]
    original.no_padding()
    original.no_truncation() if max_length is None else original.enable_truncation(max_length)
    expected = [original.encode(text, add_special_tokens=max_length is not None).tokens for text in TEXTS]
    assert [row for row, _ in results] == expected


def task_of(place, model):
    task = tiny.builder(place)(model)
    return task, task.init(jax.random.PRNGKey(1))


@pytest.mark.slow
def test_images_to_logits_where_this_package_is_not(tmp_path, monkeypatch):
    monkeypatch.setattr(stablehlo, "TIMED", (2,))
    task, params = task_of(tmp_path, configs.ViTConfig(2, 16, 16, 1, 2))
    summary = stablehlo.export(task, params, tmp_path / "out", ("cpu", "tpu"))
    names = {path.name for path in (tmp_path / "out").iterdir()}
    programs = {"cpu.stablehlo", "tpu.stablehlo"}
    assert names == programs | {"manifest.json", "weights.npz", "words.json", "prepare_image.py"}
    assert not any(b"attention_jax/" in (tmp_path / "out" / name).read_bytes() for name in programs)  # no local path
    manifest = json.loads((tmp_path / "out" / "manifest.json").read_text())
    recipe = manifest["preprocessing"]
    assert 0 <= (datetime.date.today() - datetime.date.fromisoformat(manifest["date"])).days <= 1
    side, channels = task.data.train.image.shape[2:]
    assert (recipe["side"], recipe["mode"], recipe["filter"]) == (side, {1: "L", 3: "RGB"}[channels], "bilinear")
    assert re.search(r"weights of [\d,]+ bytes; [\d.]+ ms an example at batch 2 on this CPU$", summary)
    images = task.data.held_out["test"].image[:3]
    expected, _ = jax.jit(task.model.apply)({"params": params}, task.preparation.for_evaluation(images))
    np.testing.assert_allclose(call_elsewhere(tmp_path / "out", tmp_path, image=images), expected, atol=1e-5, rtol=1e-5)
    assert json.loads((tmp_path / "out" / "words.json").read_text())["classes"] == list(task.data.names)


def odd_images(directory):
    """50 files of all modes, sizes, formats and orientations."""
    draw, files = np.random.default_rng(0), []
    for number in range(50):
        mode = ("L", "RGB", "RGBA", "LA", "P", "1", "I;16", "CMYK")[number % 8]
        height, width = draw.integers(5, 90, 2)
        values = draw.integers(0, 256, (height, width, 4), np.uint8)
        if mode == "I;16":
            image = Image.fromarray(draw.integers(0, 2**16, (height, width)).astype(np.uint16))
        else:
            image = Image.fromarray(values).convert("RGBA").convert(mode)
        kind = "tiff" if mode in ("CMYK", "I;16") else ("png", "jpg")[mode in ("L", "RGB") and number % 2]
        exif = Image.Exif()
        exif[0x0112] = int(draw.integers(1, 9))  # orientation
        files.append(directory / f"{number}.{kind}")
        image.save(files[-1], exif=exif) if kind != "tiff" else image.save(files[-1])
    return files


@pytest.mark.parametrize("resized", [0, 12], ids=["bilinear", "area"])
@pytest.mark.parametrize("mode", ["L", "RGB"])
def test_the_reference_prepares_images_as_predict_does(tmp_path, resized, mode):
    side = resized or 8
    recipe = {"side": side, "mode": mode, "filter": "area" if resized else "bilinear"}
    for path in odd_images(tmp_path):
        expected = image_files.decode(str(path), side, mode, by_area=resized > 0)
        np.testing.assert_array_equal(prepare_image.prepare(path, recipe), expected, str(path))


@pytest.mark.slow
@pytest.mark.parametrize(
    "model",
    [configs.TransformerConfig(1, 1, hidden_size=8, num_heads=2, mlp_dim=8), configs.BahdanauConfig(**tiny.TRANSLATOR)],
    ids=["t", "b"],
)
def test_sentences_to_tokens(tmp_path, monkeypatch, model):
    monkeypatch.setattr(stablehlo, "TIMED", ())
    task, params = task_of(tmp_path, model)
    stablehlo.export(task, params, tmp_path / "out", ("cpu",))
    pairs = next(iter(task.data.held_out.values()))
    batch = {"source": pairs.source, "source_length": pairs.source_length}
    wide = json.loads((tmp_path / "out" / "manifest.json").read_text())["inputs"][0]["shape"][1]
    padded = np.pad(pairs.source, ((0, 0), (0, wide - pairs.source.shape[1])))
    actual = call_here(tmp_path / "out", padded, pairs.source_length)
    np.testing.assert_array_equal(actual, jax.jit(task.generate)(params, batch))
    words = json.loads((tmp_path / "out" / "words.json").read_text())
    assert words["target"]["tokens"] == task.data.target_vocabulary.tokens
    fitting = [text for text in TEXTS if len(task.data.source_tokenizer.tokens(text)) < wide]
    ids, length = run_prepare_text(tmp_path / "out", tmp_path, f"[x.tolist() for x in p.prepare({fitting!r})]")
    expected = task.read(fitting)
    np.testing.assert_array_equal(length, expected["source_length"])
    width = min(wide, expected["source"].shape[1])  # each is padded to a width of its own
    np.testing.assert_array_equal(np.array(ids)[:, :width], expected["source"][:, :width])
    assert not np.array(ids)[:, width:].any() and not expected["source"][:, width:].any()
    written = run_prepare_text(tmp_path / "out", tmp_path, f"[p.text(row) for row in {actual.tolist()}]")
    assert written == decode_targets(task.data, actual) and any(written)


@pytest.mark.slow
def test_texts_to_classes(tmp_path, monkeypatch):
    monkeypatch.setattr(stablehlo, "TIMED", ())
    task, params = task_of(tmp_path, configs.TextClassifierConfig(1, 8, 2, 8))
    stablehlo.export(task, params, tmp_path / "out", ("cpu",))
    inputs = run_prepare_text(tmp_path / "out", tmp_path, "[x.tolist() for x in p.prepare(t)]")
    tokens, length = (np.array(x, np.int32) for x in inputs)
    view, most = task, task.config.data.max_length
    expected_tokens, lengths = labeled_texts.encode(task.data.tokenizer.split(TEXTS), task.data.vocabulary, most)
    np.testing.assert_array_equal(length, lengths)
    np.testing.assert_array_equal(tokens[:, : expected_tokens.shape[1]], expected_tokens)
    _, probabilities, _ = view.read(params, TEXTS)
    actual = jax.nn.softmax(call_here(tmp_path / "out", tokens, length))
    np.testing.assert_allclose(actual, probabilities, atol=1e-6, rtol=1e-5)


@pytest.mark.slow
def test_a_language_model(tmp_path, monkeypatch):
    monkeypatch.setattr(stablehlo, "TIMED", ())
    task, params = task_of(tmp_path, configs.LanguageModelConfig(1, 8, 2, 8))
    stablehlo.export(task, params, tmp_path / "out", ("cpu",))
    tokens = task.data.train[:5, :-1]
    expected_logits, _ = jax.jit(task.model.apply)({"params": params}, tokens)
    np.testing.assert_allclose(call_here(tmp_path / "out", tokens), expected_logits, atol=1e-5, rtol=1e-5)
    texts = ["abc", "a  b", "C\u00e9"]
    (ids,) = run_prepare_text(tmp_path / "out", tmp_path, f"[x.tolist() for x in p.prepare({texts!r})]")
    for text, row in zip(texts, ids, strict=True):
        expected = task.encode(text)[0]
        np.testing.assert_array_equal(row[: len(expected)], expected)


def test_what_has_no_program_says_so(tmp_path):
    task, params = task_of(tmp_path, configs.StackedLSTMConfig(num_layers=1, hidden_size=8))
    with pytest.raises(InputError, match="there is no StableHLO of a MemoryTask yet: export its weights"):
        stablehlo.export(task, params, tmp_path / "out")
    assert not (tmp_path / "out").exists()


@pytest.mark.slow
def test_all_platforms_have_long_half_precision_attention(tmp_path):
    """One program for all of them would not: each platform's attention would be lowered for the others, too."""
    config = configs.Config(
        "tiny", configs.Images(examples=8, pixels=46), configs.ViTConfig(2, 16, 16, 1, 2, dtype="bfloat16")
    )
    task = tasks.build(config)  # 529 patches
    served = stablehlo.service(task)
    params = jax.eval_shape(task.init, jax.random.PRNGKey(0))
    for platform in ("cuda", "tpu"):
        assert stablehlo.export_program(served, stablehlo.flat(params), platform).platforms == (platform,)


def test_source_ends_with_eos_of_vocabulary(tmp_path):
    task_of = tiny.builder(tmp_path)
    model = configs.LuongSeq2seqConfig(hidden_size=8, embed_size=4)
    end = lambda task: stablehlo.service(task).preprocessing["encode"]["end"]
    assert end(task_of(model)) == ["<eos>"] and end(task_of(model, data=configs.Dates(examples=100))) == []
