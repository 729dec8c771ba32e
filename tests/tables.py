"""Files of rows with named columns, as people have them."""

import gzip
import json
from pathlib import Path


def write(path: Path, rows: list[dict]) -> str:
    """Write a table of these rows in the format of its name: .parquet, .jsonl or .jsonl.gz."""
    if path.suffix == ".parquet":
        import pyarrow
        import pyarrow.parquet as parquet

        parquet.write_table(pyarrow.Table.from_pylist(rows), path, row_group_size=16)
    else:
        opened = gzip.open if path.suffix == ".gz" else open
        with opened(path, "wt", encoding="utf-8") as file:
            file.writelines(json.dumps(row, ensure_ascii=False) + "\n" for row in rows)
    return str(path)
