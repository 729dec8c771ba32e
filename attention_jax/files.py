"""Writing files that are whole or not there, with the standard library alone: a sweep's scheduler does without JAX."""

import json
import os
from pathlib import Path


def write_json(path: Path, value) -> Path:
    """Write `value` so that the file is either the old one or the whole new one, never a half; make its directory."""
    return write_whole(path, json.dumps(value, indent=1, ensure_ascii=False) + "\n")


def write_whole(path: Path, text: str) -> Path:
    """Write `text` beside the file, then put it in the file's place in one step."""
    path.parent.mkdir(parents=True, exist_ok=True)
    temporary = path.with_name(path.name + ".part")
    temporary.write_text(text, encoding="utf-8")
    os.replace(temporary, path)
    return path
