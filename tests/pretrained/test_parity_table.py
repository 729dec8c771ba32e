"""The table of how close pretrained models are to transformers (tests/parity.py)."""

import json

import parity
import pytest

ROWS = json.loads(parity.RECORD.read_text())
NUMBERS = ("logits", "maps", "logits_64", "maps_64")


def test_page_has_recorded_numbers_within_bound():
    text = parity.PAGE.read_text(encoding="utf-8")
    assert parity.page(text, ROWS) == text, "python tests/parity.py writes it"
    assert list(ROWS) == [*parity.REAL, *parity.RANDOM]
    for family, row in ROWS.items():
        assert {"logits", "maps"} <= row.keys() and ("logits_64" in row) == (family in parity.REAL)
        assert 0 < max(row[name] for name in NUMBERS if name in row) <= parity.BOUND, family
        assert row.get("tokens", len(parity.ODD)) == len(parity.ODD), family


@pytest.mark.slow
@pytest.mark.filterwarnings("ignore")
@pytest.mark.parametrize("family", parity.RANDOM)
def test_a_random_model_is_within_the_bound(family):
    pytest.importorskip("torch", reason="parity with transformers needs torch, of the extra `libraries`")
    pytest.importorskip("transformers", reason="parity with transformers needs it, of the extra `libraries`")
    row = parity.random_row(*parity.RANDOM[family])
    assert max(row["logits"], row["maps"]) <= parity.BOUND
