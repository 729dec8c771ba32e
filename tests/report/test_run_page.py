"""The page of a run holds its numbers and links its figures."""

import json

import pytest

from attention_jax.errors import InputError
from attention_jax.report.run_page import run_page


def test_page_shows_numbers_and_figures(tmp_path):
    run = tmp_path / "date_luong"
    (run / "figures").mkdir(parents=True)
    (run / "figures" / "learning_curve.png").write_bytes(b"png")
    result = {
        "name": "date_luong",
        "metrics": {"test.exact": 0.9991},
        "seconds": 91.25,
        "history": [{"epoch": 1}],
        "missing": None,
    }
    (run / "result.json").write_text(json.dumps(result))
    text = run_page(run).read_text()
    assert text.startswith("# date_luong\n")
    assert "| metrics.test.exact | 0.9991 |" in text and "| seconds | 91.25 |" in text
    assert "![learning_curve](figures/learning_curve.png)" in text
    assert "history" not in text and "missing" not in text


@pytest.mark.parametrize("content, message", [(None, "no result.json"), ("{", "is damaged")])
def test_a_run_without_result_is_refused(tmp_path, content, message):
    if content:
        (tmp_path / "result.json").write_text(content)
    with pytest.raises(InputError, match=message):
        run_page(tmp_path)
