"""The page of where a model looks: one file, whole, small enough, safe against what texts may contain."""

import base64
import html
import io
import json
import re
import sys

import numpy as np
import pytest
from PIL import Image

from attention_jax.errors import InputError
from attention_jax.report import attention_page
from attention_jax.report.attention_data import LONGEST, Attention, AttentionRecord, Axis, Prediction, check_length

RNG = np.random.default_rng(0)


def attention(kind="encoder", layers=2, heads=3, queries=4, keys=5, **fields) -> Attention:
    weights = RNG.dirichlet(np.ones(keys), (layers, heads, queries)).astype(np.float32)
    side = lambda n: Axis(tuple(f"t{i}" for i in range(n)))
    return Attention(kind, weights, side(queries), side(keys), **fields)


def make_record(*attentions, text="out", title="in", **fields) -> AttentionRecord:
    return AttentionRecord(title, (Prediction(text, attentions, **fields),))


def data_of(page: attention_page.Page) -> dict:
    return json.loads(re.search(r'id="data">(.*?)</script>', page.html, re.DOTALL)[1])


def array(data: dict, blob: int, *shape: int) -> np.ndarray:
    return (np.frombuffer(base64.b64decode(data["blobs"][blob]), "<u2") / data["unit"]).reshape(shape)


def test_the_numbers_of_the_page_are_the_weights():
    expected = attention(
        rollout=RNG.dirichlet(np.ones(5), 4), head_ablation=np.array([[1.0, 2.0, np.nan], [3.0, 4.0, 5.0]])
    )
    data = data_of(attention_page.page([make_record(expected, score=-0.25, measure="log p", value=-1.5)], "a run"))
    [answer] = data["inputs"][0]["answers"]
    [actual] = answer["attentions"]
    assert (answer["text"], answer["score"], answer["measure"], answer["value"]) == ("out", -0.25, "log p", -1.5)
    np.testing.assert_allclose(array(data, actual["weights"], 2, 3, 4, 5), expected.weights, atol=0.5 / 65_535 + 1e-8)
    np.testing.assert_allclose(array(data, actual["rollout"], 4, 5), expected.rollout, atol=0.5 / 65_535 + 1e-8)
    assert actual["without"] == [[1.0, 2.0, None], [3.0, 4.0, 5.0]] and actual["heads"] == [
        "head 1",
        "head 2",
        "head 3",
    ]


def test_probability_near_one_becomes_log_odds():
    """By hand: of 0.998, ln 499 = 6.2126; without a head 0.5, so 0. One of 0.9 stays."""
    [answer], [stays] = (
        data_of(attention_page.page([make_record(attention(layers=1, heads=2, head_ablation=ablation), score=value,
                measure="the probability", value=value)], "a run"))["inputs"][0]["answers"]
        for value, ablation in ((0.998, np.array([[0.5, 0.998]])), (0.9, np.array([[0.5, 0.9]])))
    )  # fmt: skip
    assert (answer["measure"], answer["score"]) == ("the log-odds", 0.998)
    np.testing.assert_allclose(
        [answer["value"], *answer["attentions"][0]["without"][0]], [6.2126, 0, 6.2126], atol=1e-4
    )
    assert (stays["measure"], stays["value"]) == ("the probability", 0.9)


def test_no_text_can_break_out_of_the_page():
    nasty = "</script><script>alert(1)</script><!-- \u2028 {{DATA}} \" ' & <b>"
    sides = Axis((nasty,)), Axis((nasty, "{{SCRIPT}}"))
    nasty_attention = Attention("cross", np.array([[[[0.5, 0.5]]]]), *sides, heads=(nasty,))
    page = attention_page.page([make_record(nasty_attention, text=nasty, title=nasty)], nasty)
    assert page.html.count("<script") == page.html.count("</script>") == 2 and "<!--" not in page.html
    assert html.escape(nasty) in page.html and "alert(1)</script>" not in page.html
    data = data_of(page)
    assert data["inputs"][0]["title"] == data["title"] == nasty
    assert data["inputs"][0]["answers"][0]["attentions"][0]["keys"]["tokens"] == [nasty, "{{SCRIPT}}"]


def test_the_page_asks_the_network_for_nothing():
    image = RNG.integers(0, 256, (8, 8, 1), np.uint8)
    side = Axis(("class token", *("abcd")), image=image)
    text = attention_page.page([make_record(Attention("encoder", np.full((1, 1, 5, 5), 0.2), side, side))], "x").html
    assert "default-src 'none'" in text and not re.search(r"https?://(?!www\.w3\.org/2000/svg)", text)
    assert not re.search(r"<(link|iframe|object)|@import|\b(src|href)=|fetch\(|XMLHttpRequest", text)
    data = data_of(attention_page.Page(text))
    png = data["blobs"][data["inputs"][0]["answers"][0]["attentions"][0]["keys"]["image"]]
    assert base64.b64decode(png).startswith(b"\x89PNG")


def test_what_is_equal_is_in_the_page_once():
    shared = attention()
    data = data_of(
        attention_page.page([AttentionRecord("in", (Prediction("a", (shared,)), Prediction("b", (shared,))))], "x")
    )
    assert len(data["blobs"]) == 1


def test_page_under_three_megabytes_notes_omissions():
    big = lambda: make_record(attention(layers=4, heads=4, queries=150, keys=150))
    page = attention_page.page([big(), big(), big()], "x")
    assert len(page.html.encode()) <= attention_page.LARGEST and len(data_of(page)["inputs"]) == 2
    assert page.note == "So that the page stays under 3 MB it shows 2 of 3 inputs."
    assert data_of(page)["note"] == page.note
    by_head = np.arange(144.0).reshape(12, 12)
    read = tuple((f"after {layer}",) * 100 for layer in range(12))
    deep = attention(
        layers=12, heads=12, queries=100, keys=100, head_ablation=by_head, head_scores={"a": by_head}, lens=read
    )
    page = attention_page.page([make_record(deep)], "x")
    [actual] = data_of(page)["inputs"][0]["answers"][0]["attentions"]
    assert (actual["layers"], actual["lowest"]) == (8, 5) and actual["without"] == deep.head_ablation[-8:].tolist()
    assert actual["scores"] == {"a": by_head[-8:].tolist()} and actual["lens"][0][0] == "after 4"
    assert page.note.endswith("8 of 12 layers, the uppermost.") and attention_page.page([big()], "x").note == ""
    with pytest.raises(InputError, match=r"'in'... is too long for a page of 2,900,000 bytes; shorten it"):
        attention_page.page([make_record(attention(layers=1, heads=4, queries=600, keys=600))], "x")


def test_malformed_attention_raises_input_error():
    side = Axis(("a", "b"))
    for kind, shape in (("sideways", (1, 1, 2, 2)), ("encoder", (1, 2, 2)), ("encoder", (1, 1, 2, 3))):
        with pytest.raises(InputError, match=r"needs a kind of encoder, .* for 2 queries and 2 keys; got"):
            Attention(kind, np.zeros(shape), side, side)
    for fields in ({"lens": (("x", "y"),) * 2}, {"lens": (("x",),)}, {"head_scores": {"a": np.zeros((1, 2))}}):
        with pytest.raises(InputError, match="1 layers, 1 heads and 2 queries needs head scores"):
            Attention("decoder", np.full((1, 1, 2, 2), 0.5), side, side, **fields)
    check_length("a" * LONGEST, "a")
    with pytest.raises(InputError, match=f"at most {LONGEST} tokens; 'a'... has {LONGEST + 1}: shorten it"):
        check_length("a" * (LONGEST + 1), "a")
    with pytest.raises(InputError, match="cannot be written"):
        attention_page.Page("").save("/proc/nowhere/attention_page.html")


def test_notebook_shows_the_page_in_an_iframe(tmp_path):
    page = attention_page.page([make_record(attention(), title='"quoted"')], "x")
    frame = page._repr_html_()
    assert html.unescape(re.search(r'srcdoc="([^"]*)"', frame)[1]) == page.html and 'sandbox="allow-scripts"' in frame
    assert page.save(tmp_path / "new" / "attention_page.html").read_text(encoding="utf-8") == page.html


@pytest.mark.parametrize("channels", [1, 3])
def test_picture_is_a_png_without_other_packages(channels, monkeypatch):
    monkeypatch.setitem(sys.modules, "matplotlib.image", None)
    image = RNG.integers(0, 256, (5, 7, channels)).astype(np.uint8)
    read = np.asarray(Image.open(io.BytesIO(attention_page.picture(image))))
    np.testing.assert_array_equal(read.reshape(image.shape), image)
