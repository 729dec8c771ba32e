"""Interactive page of attention maps in one self-contained HTML file under 3 MB.

`page` fills attention_page.html, .css and .js with the records of `Task.attention_maps`
(`report/attention_data.py`). Weights are stored as 16-bit fractions of one, with an error of at most 1/65,535.
"""

import base64
import html
import io
import json
import math
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from pathlib import Path

import numpy as np

from attention_jax.errors import InputError
from attention_jax.files import write_atomically
from attention_jax.report.attention_data import KINDS, PROBABILITY, Attention, AttentionRecord, Axis, Prediction

LARGEST = 2_900_000
"""The largest page in bytes. To fit, inputs are dropped first, then all but the best prediction, then lower layers."""
SURE = 0.995
"""A probability from here on would be printed as 1.00: the page has log-odds instead."""
UNIT = 65_535
"""The integer for a weight of one."""


@dataclass(frozen=True)
class Page:
    """A page that can be saved, and that a notebook displays."""

    html: str
    note: str = ""
    """A sentence about omitted parts, or ""."""

    def save(self, path: Path | str) -> Path:
        """Write the page to a file, creating its directory, and return the path; InputError if that fails."""
        path = Path(path)
        try:
            return write_atomically(path, self.html)
        except OSError as error:
            raise InputError(f"{path} cannot be written ({error.strerror}); give another --out FILE.html") from error

    def _repr_html_(self) -> str:
        """The page in a sandboxed frame, isolated from the notebook's scripts and styles."""
        frame = 'title="Attention maps" sandbox="allow-scripts" style="width:100%;height:820px;border:0"'
        return f'<iframe {frame} srcdoc="{html.escape(self.html)}"></iframe>'


def page(records: Sequence[AttentionRecord], title: str) -> Page:
    """Return the page of one or more inputs; InputError if not even one layer of one input fits."""
    for tried in truncations(records):
        note = omission_note(records, tried)
        text = render(tried, title, note)
        if len(text.encode()) <= LARGEST:
            return Page(text, note)
    raise InputError(f"{records[0].title[:40]!r}... is too long for a page of {LARGEST:,} bytes; shorten it")


def truncations(records: Sequence[AttentionRecord]) -> Iterator[Sequence[AttentionRecord]]:
    """Iterate over all records, then smaller and smaller parts of them."""
    count = len(records)
    while count:
        yield records[:count]
        count -= max(count // 8, 1)
    best = replace(records[0], predictions=records[0].predictions[:1])
    yield [best]
    for layers in range(layers_of(best) - 1, 0, -1):
        answer = best.predictions[0]
        upper = tuple(last_layers(attention, layers) for attention in answer.attentions)
        yield [replace(best, predictions=(replace(answer, attentions=upper),))]


def layers_of(records: AttentionRecord) -> int:
    """Return the largest number of layers among the attentions of the best prediction."""
    return max(len(attention.weights) for attention in records.predictions[0].attentions)


def last_layers(attention: Attention, layers: int) -> Attention:
    """Return an attention with its uppermost layers only."""
    without = None if attention.head_ablation is None else attention.head_ablation[-layers:]
    scores = {kind: x[-layers:] for kind, x in attention.head_scores.items()}
    lowest = attention.first_layer + max(len(attention.weights) - layers, 0)
    changes = {"head_ablation": without, "head_scores": scores, "lens": attention.lens[-layers:], "first_layer": lowest}
    return replace(attention, weights=attention.weights[-layers:], **changes)


def omission_note(records: Sequence[AttentionRecord], remaining: Sequence[AttentionRecord]) -> str:
    """Return a sentence about the parts of `records` that are not in `remaining`, or ""."""
    counts = (
        (len(records), len(remaining), "inputs"),
        (len(records[0].predictions), len(remaining[0].predictions), "answers"),
        (layers_of(records[0]), layers_of(remaining[0]), "layers, the uppermost"),
    )
    omissions = [f"{less} of {all_} {unit}" for all_, less, unit in counts if less < all_]
    return f"So that the page stays under 3 MB it shows {', '.join(omissions)}." if omissions else ""


def render(records: Sequence[AttentionRecord], title: str, note: str) -> str:
    """Return the HTML text."""
    blobs: dict[str, int] = {}
    inputs = [as_json(record, blobs) for record in records]
    data = {"title": title, "note": note, "unit": UNIT, "kinds": KINDS, "inputs": inputs, "blobs": list(blobs)}
    page_file = Path(__file__)
    replacements = {
        "TITLE": html.escape(title),
        "STYLE": page_file.with_suffix(".css").read_text(encoding="utf-8"),
        "DATA": in_script(data),
        "SCRIPT": page_file.with_suffix(".js").read_text(encoding="utf-8"),
    }
    head, *pieces = page_file.with_suffix(".html").read_text(encoding="utf-8").split("{{")
    fields = (piece.split("}}", 1) for piece in pieces)  # in one pass: inserted text may contain braces
    return head + "".join(replacements[name] + tail for name, tail in fields)


def in_script(data) -> str:
    """Return JSON that is safe in a script element: no text can end the element or begin a comment.

    >>> in_script(["</script><!--"])
    '["\\\\u003c/script>\\\\u003c!--"]'
    """
    return json.dumps(data, separators=(",", ":"), allow_nan=False).replace("<", "\\u003c")


def as_json(records: AttentionRecord, blobs: dict[str, int]) -> dict:
    """Return an input as JSON values. Arrays go to `blobs`, {base64: number}, without duplicates."""

    def answer(prediction: Prediction) -> dict:
        if prediction.measure == PROBABILITY and prediction.value >= SURE:
            prediction = with_log_odds(prediction)
        attentions = [attention(each) for each in prediction.attentions]
        facts = {
            "text": prediction.text,
            "score": finite(prediction.score),
            "measure": prediction.measure,
            "value": finite(prediction.value),
        }
        return facts | {"attentions": attentions}

    def attention(attn: Attention) -> dict:
        layers, heads = attn.weights.shape[:2]
        facts = {
            "kind": attn.kind,
            "layers": layers,
            "lowest": attn.first_layer,
            "heads": list(attn.heads) or [f"head {h + 1}" for h in range(heads)],
            "queries": side(attn.queries),
            "keys": side(attn.keys),
            "weights": fractions(attn.weights, blobs),
            "without_key": attn.without_key,
        }
        return facts | {
            "rollout": None if attn.rollout is None else fractions(attn.rollout, blobs),
            "values": None if attn.values is None else np.asarray(attn.values, float).tolist(),
            "without": None if attn.head_ablation is None else [[finite(x) for x in row] for row in attn.head_ablation],
            "scores": {kind: np.round(np.asarray(x, float), 4).tolist() for kind, x in attn.head_scores.items()},
            "lens": attn.lens,
        }

    def side(axis: Axis) -> dict:
        channels = {name: {"width": x.shape[1], "blob": fractions(x, blobs)} for name, x in axis.channels.items()}
        return {
            "tokens": list(axis.tokens),
            "image": None if axis.image is None else add(picture(axis.image), blobs),
            "grid": 0 if axis.image is None else math.isqrt(len(axis.tokens)),
            "points": None if axis.points is None else np.asarray(axis.points, float).tolist(),
            "channels": channels,
        }

    return {"title": records.title, "answers": [answer(prediction) for prediction in records.predictions]}


def with_log_odds(prediction: Prediction) -> Prediction:
    """Return a prediction with log-odds where its value and the ablations of heads were probabilities."""
    attentions = tuple(
        attention
        if attention.head_ablation is None
        else replace(attention, head_ablation=np.vectorize(log_odds)(attention.head_ablation))
        for attention in prediction.attentions
    )
    return replace(prediction, measure="the log-odds", value=log_odds(prediction.value), attentions=attentions)


def log_odds(probability: float) -> float:
    """Return ln(p / (1 - p)) of a float32 p, whose distance to 0 and 1 is at least 2^-24 here, half of the spacing
    below one.

    >>> round(log_odds(0.9), 4), round(log_odds(1.0), 2), round(log_odds(0.0), 2)
    (2.1972, 16.64, -16.64)
    """
    p = min(max(float(probability), 2.0**-24), 1 - 2.0**-24)
    return math.log(p / (1 - p))


def finite(x) -> float | None:
    """Return a finite number, or None, since JSON has no NaN or infinity."""
    return None if x is None or not math.isfinite(x) else float(x)


def fractions(array, blobs: dict[str, int]) -> int:
    """Store an array of values in [0, 1] as little-endian 16-bit fractions; return the number of its blob.

    Only a value of 0 is stored as 0: small positive ones are rounded up to the smallest fraction.
    """
    values = np.clip(np.asarray(array, np.float64), 0, 1)
    units = np.where(values > 0, np.maximum(np.rint(values * UNIT), 1), 0)
    return add(units.astype("<u2").tobytes(), blobs)


def add(content: bytes, blobs: dict[str, int]) -> int:
    """Store bytes as a blob and return its number."""
    return blobs.setdefault(base64.b64encode(content).decode("ascii"), len(blobs))


def picture(image: np.ndarray) -> bytes:
    """Encode an image [S, S, 1 or 3] of bytes as a PNG file."""
    from PIL import Image

    content = io.BytesIO()
    Image.fromarray(image if image.shape[-1] == 3 else image[..., 0]).save(content, "PNG")
    return content.getvalue()
