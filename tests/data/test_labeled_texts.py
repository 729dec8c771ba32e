"""Labels as they are written: one number is one label, in every format."""

import json

import pytest
from tables import write

from attention_jax import config as configs
from attention_jax.data import labeled_texts
from attention_jax.errors import InputError

pytest.importorskip("pyarrow", reason="Parquet files need pyarrow")


@pytest.mark.parametrize(
    "kind, labels, words",
    [
        ("jsonl", [1, 1.0, "1", 0, 0.0, "0"], "the labels 1 and 1.0 are one number"),
        ("jsonl", [0, -0.0, 1, 2], "the labels 0 and -0.0 are one number"),
        ("jsonl", [1e22, 10**22, 3], "the labels 1e\\+22 and 10000000000000000000000 are one number"),
        ("parquet", ["1", "1.0", "2"], "the labels 1 and 1.0 are one number"),
        ("tsv", ["1", "1.0", "2"], "the labels 1 and 1.0 are one number"),
        ("jsonl", [True, False], "expected a text or a number in the column label, got 'True'"),
        ("jsonl", ["1", None], "the column label is empty or missing"),
    ],
)
def test_one_number_is_not_two_labels(kind, labels, words, tmp_path):
    rows = [{"label": label, "text": f"text {n}"} for n, label in enumerate(labels * 6)]
    path = tmp_path / f"a.{kind}"
    if kind == "tsv":
        path.write_text("".join(f"{row['label']}\t{row['text']}\n" for row in rows))
    else:
        write(path, rows)
    with pytest.raises(InputError, match=words) as error:
        labeled_texts.load(configs.LabeledFile(str(path), held_out_fraction=0.2), 4)
    assert "\n" not in str(error.value)


@pytest.mark.parametrize("labels", [[1, "1", 0, "0"], [0.0, 1.0, 2.5], ["1.1", "1.10", "01", "1"], [2**53, 2**53 + 1]])
def test_labels_that_differ_are_as_they_are_written(labels, tmp_path):
    rows = [{"label": label, "text": f"text {n}"} for n, label in enumerate(labels * 6)]
    path = write(tmp_path / "a.jsonl", rows)
    names = labeled_texts.load(configs.LabeledFile(path, held_out_fraction=0.2), 4).names
    assert names == tuple(sorted({str(label) for label in labels}))


def test_texts_that_a_pretrained_tokenizer_cuts_are_counted(tmp_path):
    """1 to 20 words with a mark at both ends, of which 8 are read: from 7 words on they are one text, cut once."""
    tokenizers = pytest.importorskip("tokenizers")
    tokenizer = tokenizers.Tokenizer(tokenizers.models.WordLevel({"[CLS]": 0, "[SEP]": 1, "w": 2, "u": 3}, "u"))
    tokenizer.pre_tokenizer = tokenizers.pre_tokenizers.Whitespace()
    pair = [("[CLS]", 0), ("[SEP]", 1)]
    tokenizer.post_processor = tokenizers.processors.TemplateProcessing("[CLS] $A [SEP]", special_tokens=pair)
    tokenizer.save(str(tmp_path / "tokenizer.json"))
    (tmp_path / "config.json").write_text(json.dumps({"vocab_size": 4}))
    path = write(tmp_path / "a.jsonl", [{"label": n % 2, "text": "w " * n + "u"} for n in range(20)])
    facts = labeled_texts.load(configs.LabeledFile(path, pretrained=str(tmp_path), max_length=8), 4).facts
    assert (facts["texts_cut"], facts["texts_left_out"], facts["longest_tokens"]) == (1, 13, 9)
