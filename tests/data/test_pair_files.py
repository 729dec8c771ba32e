import dataclasses

import numpy as np
import pytest

from attention_jax.config import TextPairs
from attention_jax.data import pair_files
from attention_jax.data.pairs import Texts, decode_targets, encode_sources, references
from attention_jax.errors import InputError

SPLITS = {
    "train": Texts(["a b c", "a", "b b b b b b", "c"], ["A B", "A", "B B", "C C C"]),
    "test": Texts(["a b zz", "c"], ["A ZZ", "C"]),
}


def assemble(splits=SPLITS, bleu_tokenize="none", **options):
    return pair_files.assemble(splits, TextPairs(**options), 2, bleu_tokenize=bleu_tokenize)


def test_rows_texts_and_facts_belong_together():
    data = assemble(max_buckets=2)
    rows = [
        (data.source_vocabulary.sentence(source), data.target_vocabulary.sentence(target))
        for bucket in data.train
        for source, target in zip(bucket.source, bucket.target)
    ]
    assert rows == [(s.split(), t.split()) for s, t in zip(*data.texts["train"])]
    assert sorted(data.texts["train"].source) == sorted(SPLITS["train"].source)
    assert [bucket.source.shape for bucket in data.train] == [(3, 4), (1, 7)]
    assert data.batch_sizes == (2, 2) and data.seen["test"].tolist() == [False, True]
    facts = data.facts
    assert (facts["source_vocabulary"], facts["target_vocabulary"], facts["train_pairs"], facts["test_pairs"]) == (
        7,
        7,
        4,
        2,
    )
    assert facts["test_inputs_also_in_train"] == 1 and facts["test_unknown_target_tokens"] == pytest.approx(
        1 / 3, abs=1e-5
    )
    # by hand: 3 rows of 4 + 4 positions with 4 + 2 + 2 and 3 + 2 + 4 tokens, one row of 7 + 3 without padding
    assert facts["padding_share"] == pytest.approx(1 - (17 + 10) / (24 + 10), abs=1e-4)


def test_held_out_rows_and_texts():
    data = assemble()
    np.testing.assert_array_equal(data.held_out["test"].source_length, [4, 2])
    assert data.source_vocabulary.sentence(data.held_out["test"].source[0]) == ["a", "b", "<unk>"]
    assert decode_targets(data, data.held_out["test"].target[:, 1:]) == ["A <unk>", "C"]
    assert references(data, "test") == ["A ZZ", "C"]


def test_overlong_pairs():
    cut = assemble(max_length=4)
    assert (
        cut.facts["overlong_train"] == 1
        and cut.facts["overlong_train_pairs"] == "truncated"
        and cut.facts["train_pairs"] == 4
    )
    assert max(bucket.source.shape[1] for bucket in cut.train) == 4
    dropped = assemble(max_length=4, overlong="drop")
    assert dropped.facts["train_pairs"] == 3 and "b b b b b b" not in dropped.texts["train"].source
    with pytest.raises(InputError, match="pair 3 of train: the source has 7 tokens with its end mark, the limit is 4"):
        assemble(max_length=4, overlong="error")
    with pytest.raises(InputError, match="no training pair is within --data.max-length 1"):
        assemble(max_length=1, overlong="drop")
    held_out = assemble(
        {"train": SPLITS["train"], "test": Texts(["a b c a b c"], ["A"])}, max_length=4, overlong="drop"
    )
    assert held_out.held_out["test"].source.shape == (1, 4) and held_out.texts["test"].source == ["a b c a b c"]


def test_source_reversed_tokens():
    data = assemble(reverse_source=True)
    assert data.source_vocabulary.sentence(data.held_out["test"].source[0]) == ["<unk>", "b", "a"]
    source, length = encode_sources(data, ["a b c"])
    assert data.source_vocabulary.decode(source[0]) == ["c", "b", "a", "<eos>"] and length.tolist() == [4]
    assert data.source_tokenizer.text(["c", "b", "a"]) == "a b c"
    assert decode_targets(data, data.held_out["test"].target[1:, 1:]) == ["C"]


def test_joint_vocabulary_and_lower_case():
    data = assemble(joint_vocabulary=True, lowercase=True)
    assert data.source_vocabulary is data.target_vocabulary and set(data.source_vocabulary.tokens[4:]) == {
        "a",
        "b",
        "c",
    }
    assert data.texts["test"].target == ["a zz", "c"]


@pytest.mark.parametrize("reverse", [False, True])
def test_new_texts_are_lowercased_like_data(reverse):
    data = assemble(lowercase=True, reverse_source=reverse)
    (new, _), (same, _) = (encode_sources(data, [text]) for text in ("A B", "a b"))
    assert (new == same).all() and data.source_vocabulary.unk_id not in new


def test_min_frequency():
    assert set(assemble(min_frequency=3).source_vocabulary.tokens[4:]) == {"b"}


@pytest.mark.parametrize("joint", [False, True])
def test_sentencepiece_makes_the_vocabulary(joint):
    rng = np.random.default_rng(0)
    train = Texts(
        *(
            [" ".join("".join(rng.choice(syllables, 2)) for _ in range(5)) for _ in range(60)]
            for syllables in (["ba", "ke", "ti", "mo", "lu"], ["sche", "ra", "zu", "gno", "fi"])
        )
    )
    example = Texts(train.source[:1], train.target[:1])
    data = assemble(
        {"train": train, "test": example},
        tokenizer="sentencepiece",
        vocabulary_size=30,
        joint_vocabulary=joint,
        bleu_tokenize="13a",
    )
    # 30 with sentencepiece's own unknown piece, which ours replaces; and pad, bos, eos
    assert len(data.source_vocabulary) == len(data.target_vocabulary) == 33
    assert (data.source_vocabulary is data.target_vocabulary) == joint
    assert decode_targets(data, data.held_out["test"].target[:, 1:]) == references(data, "test") == example.target


def test_batches_by_tokens():
    assert assemble(max_buckets=1, batch_tokens=70).batch_sizes == (8,)  # the widest row has 7 tokens with its end mark


def test_bpe_needs_merges():
    with pytest.raises(InputError, match="--data.merges"):
        assemble(tokenizer="bpe")


def test_every_option_is_used():
    """No dead options: each field of TextPairs appears in this package."""
    import inspect

    text = inspect.getsource(pair_files)
    assert not [field.name for field in dataclasses.fields(TextPairs) if f"options.{field.name}" not in text]
