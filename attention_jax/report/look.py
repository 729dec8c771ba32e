"""Where a model looks, as ONE HTML file: no network, no server, under 3 MB.

`page` fills look.html, look.css and look.js, which lie beside this file, with what `View.attention_maps` gathered
(`report/attended.py`). Weights go into the page as 16-bit fractions of one: within 1/131,070 of what they were.
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

from attention_jax import InputError
from attention_jax.files import write_whole
from attention_jax.report.attended import KINDS, Answer, Attention, Looked, Side

LARGEST = 2_900_000
"""Bytes of a page. What does not fit is left out: inputs, then answers but the best, then the lower layers."""
UNIT = 65_535
"""What stands for a weight of one."""


@dataclass(frozen=True)
class Page:
    """A page that can be saved, and that a notebook shows."""

    html: str
    note: str = ""
    """What had to be left out, in a sentence, or nothing."""

    def save(self, path: Path | str) -> Path:
        """Write the page to a file, and its directory if need be; the path. Raises InputError if it cannot be
        written."""
        path = Path(path)
        try:
            return write_whole(path, self.html)
        except OSError as error:
            raise InputError(f"{path} cannot be written ({error.strerror}); give another --out FILE.html") from error

    def _repr_html_(self) -> str:
        """In a notebook: the page in a frame of its own, apart from the notebook's script and style."""
        frame = 'title="Where the model looks" sandbox="allow-scripts" style="width:100%;height:820px;border:0"'
        return f'<iframe {frame} srcdoc="{html.escape(self.html)}"></iframe>'


def page(looked: Sequence[Looked], title: str) -> Page:
    """The page of one or more inputs, called `title`. Raises InputError if not even one layer of one input fits."""
    for tried in fewer(looked):
        note = left_out(looked, tried)
        text = filled(tried, title, note)
        if len(text.encode()) <= LARGEST:
            return Page(text, note)
    raise InputError(f"{looked[0].title[:40]!r}... is too long for a page of {LARGEST:,} bytes; shorten it")


def fewer(looked: Sequence[Looked]) -> Iterator[Sequence[Looked]]:
    """All of it, then less and less."""
    count = len(looked)
    while count:
        yield looked[:count]
        count -= max(count // 8, 1)
    best = replace(looked[0], answers=looked[0].answers[:1])
    yield [best]
    for layers in range(layers_of(best) - 1, 0, -1):
        answer = best.answers[0]
        upper = tuple(last_layers(attention, layers) for attention in answer.attentions)
        yield [replace(best, answers=(replace(answer, attentions=upper),))]


def layers_of(looked: Looked) -> int:
    """The layers of the deepest attention of an input's best answer."""
    return max(len(attention.weights) for attention in looked.answers[0].attentions)


def last_layers(attention: Attention, layers: int) -> Attention:
    """The uppermost layers of an attention alone."""
    without = None if attention.without is None else attention.without[-layers:]
    lowest = attention.lowest + max(len(attention.weights) - layers, 0)
    return replace(attention, weights=attention.weights[-layers:], without=without, lowest=lowest)


def left_out(looked: Sequence[Looked], shown: Sequence[Looked]) -> str:
    """What of `looked` is not shown, in a sentence."""
    told = (
        (len(looked), len(shown), "inputs"),
        (len(looked[0].answers), len(shown[0].answers), "answers"),
        (layers_of(looked[0]), layers_of(shown[0]), "layers, the uppermost"),
    )
    parts = [f"{less} of {all_} {what}" for all_, less, what in told if less < all_]
    return f"So that the page stays under 3 MB it shows {', '.join(parts)}." if parts else ""


def filled(looked: Sequence[Looked], title: str, note: str) -> str:
    """The page's text, whatever its size."""
    blobs: dict[str, int] = {}
    inputs = [as_json(one, blobs) for one in looked]
    data = {"title": title, "note": note, "unit": UNIT, "kinds": KINDS, "inputs": inputs, "blobs": list(blobs)}
    here = Path(__file__)
    parts = {
        "TITLE": html.escape(title),
        "STYLE": here.with_suffix(".css").read_text(encoding="utf-8"),
        "DATA": in_script(data),
        "SCRIPT": here.with_suffix(".js").read_text(encoding="utf-8"),
    }
    before, *pieces = here.with_suffix(".html").read_text(encoding="utf-8").split("{{")
    named = (piece.split("}}", 1) for piece in pieces)  # in one pass: what is filled in may have braces of its own
    return before + "".join(parts[name] + rest for name, rest in named)


def in_script(data) -> str:
    """JSON that can stand in a script element: no text in it can end the element or begin a comment.

    >>> in_script(["</script><!--"])
    '["\\\\u003c/script>\\\\u003c!--"]'
    """
    return json.dumps(data, separators=(",", ":"), allow_nan=False).replace("<", "\\u003c")


def as_json(looked: Looked, blobs: dict[str, int]) -> dict:
    """An input as the script reads it. Arrays go to `blobs`, {base64: number}: equal ones once."""

    def answer(one: Answer) -> dict:
        attentions = [attention(each) for each in one.attentions]
        facts = {"text": one.text, "score": finite(one.score), "measure": one.measure, "value": finite(one.value)}
        return facts | {"attentions": attentions}

    def attention(one: Attention) -> dict:
        layers, heads = one.weights.shape[:2]
        facts = {
            "kind": one.kind,
            "layers": layers,
            "lowest": one.lowest,
            "heads": list(one.heads) or [f"head {h + 1}" for h in range(heads)],
            "queries": side(one.queries),
            "keys": side(one.keys),
            "weights": fractions(one.weights, blobs),
        }
        return facts | {
            "rollout": None if one.rollout is None else fractions(one.rollout, blobs),
            "values": None if one.values is None else np.asarray(one.values, float).tolist(),
            "without": None if one.without is None else [[finite(x) for x in row] for row in one.without],
        }

    def side(one: Side) -> dict:
        channels = {name: {"width": x.shape[1], "blob": fractions(x, blobs)} for name, x in one.channels.items()}
        return {
            "tokens": list(one.tokens),
            "image": None if one.image is None else add(picture(one.image), blobs),
            "grid": 0 if one.image is None else math.isqrt(len(one.tokens)),
            "points": None if one.points is None else np.asarray(one.points, float).tolist(),
            "channels": channels,
        }

    return {"title": looked.title, "answers": [answer(one) for one in looked.answers]}


def finite(x) -> float | None:
    """A number that JSON has, or None."""
    return None if x is None or not math.isfinite(x) else float(x)


def fractions(array, blobs: dict[str, int]) -> int:
    """The number of the blob that holds an array of values in [0, 1] as 16-bit fractions, little-endian."""
    return add(np.rint(np.clip(np.asarray(array, np.float64), 0, 1) * UNIT).astype("<u2").tobytes(), blobs)


def add(content: bytes, blobs: dict[str, int]) -> int:
    """The number of the blob with this content."""
    return blobs.setdefault(base64.b64encode(content).decode("ascii"), len(blobs))


def picture(image: np.ndarray) -> bytes:
    """An image [S, S, 1 or 3] of bytes as a PNG file."""
    from matplotlib.image import imsave

    file = io.BytesIO()
    imsave(file, np.repeat(image, 3, axis=-1) if image.shape[-1] == 1 else image, format="png")
    return file.getvalue()
