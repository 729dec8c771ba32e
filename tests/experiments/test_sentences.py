"""The BLEU of the four sentences, against what the book's notebooks print."""

import pytest

from experiments import fra_eng_sentences as sentences

PRINTED = {
    "va !": ("va !", 1.0),
    "j'ai perdu .": ("je perdu .", 0.687),
    "il est calme .": ("il est est est mouillé .", 0.473),
    "je suis chez moi .": ("je suis chez moi chez moi chez moi chez", 0.522),
}
"""{reference: (what an edition writes, its BLEU)}"""


@pytest.mark.parametrize("reference", PRINTED)
def test_bleu_is_the_books(reference):
    written, score = PRINTED[reference]
    assert reference in sentences.PAIRS.values()
    assert sentences.bleu(written, reference) == pytest.approx(score, abs=5e-4)


def test_both_models_keep_their_last_epoch():
    for config in sentences.variants().values():
        assert not config.train.use_best and config.decode.max_length == 9
