"""What BERT computes in NumPy, in float64, from the names of its file. It shares no code with the package."""

import math

import numpy as np


def bert(state: dict, ids, heads: int = 12, layers: int = 6) -> tuple[np.ndarray, np.ndarray]:
    """(states [T, D], attention maps [layers, heads, T, T]) of one text (Devlin et al. 2019)."""
    w = {name: np.asarray(array, np.float64) for name, array in state.items() if "position_ids" not in name}

    def norm(x, name):
        centered = x - x.mean(-1, keepdims=True)
        scaled = centered / np.sqrt((centered**2).mean(-1, keepdims=True) + 1e-12)
        return scaled * w[f"{name}.LayerNorm.weight"] + w[f"{name}.LayerNorm.bias"]

    def linear(x, name):
        return x @ w[f"{name}.weight"].T + w[f"{name}.bias"]

    tables = [w[f"embeddings.{name}_embeddings.weight"] for name in ("word", "position", "token_type")]
    x = norm(tables[0][ids] + tables[1][: len(ids)] + tables[2][0], "embeddings")
    maps = []
    for layer in range(layers):
        at = f"encoder.layer.{layer}"
        split = lambda y: y.reshape(len(ids), heads, -1).swapaxes(0, 1)
        q, k, v = (split(linear(x, f"{at}.attention.self.{name}")) for name in ("query", "key", "value"))
        scores = q @ k.swapaxes(1, 2) / np.sqrt(q.shape[-1])
        weights = np.exp(scores - scores.max(-1, keepdims=True))
        maps.append(weights / weights.sum(-1, keepdims=True))
        pooled = (maps[-1] @ v).swapaxes(0, 1).reshape(len(ids), -1)
        x = norm(x + linear(pooled, f"{at}.attention.output.dense"), f"{at}.attention.output")
        h = linear(x, f"{at}.intermediate.dense")
        h = h * 0.5 * (1 + np.vectorize(math.erf)(h / math.sqrt(2)))
        x = norm(x + linear(h, f"{at}.output.dense"), f"{at}.output")
    return x, np.stack(maps)
