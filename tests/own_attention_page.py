"""The attention layers of docs/own_attention.md, as `own_attention_page:TalkingHeads` and `...:MemorySlots`."""

import re
from pathlib import Path

PAGE = (Path(__file__).resolve().parents[1] / "docs" / "own_attention.md").read_text(encoding="utf-8")
exec(re.search(r"^```python\n# mine/attention.py\n(.*?)^```$", PAGE, re.DOTALL | re.MULTILINE)[1])
