"""Attention in float64 NumPy, one query at a time, from the equations of the papers. Of a rule of the package only its
parameters are read; its formula is that of its class here. A masked key is deleted before anything is computed."""

import math
from typing import NamedTuple

import numpy as np


class Result(NamedTuple):
    """What `attend` returns, for all queries."""

    out: np.ndarray  # [Q, W]
    log_sum_exp: np.ndarray  # [Q], -inf without a key
    max_score: np.ndarray  # [Q], -inf without a key
    entropy: np.ndarray  # [Q] in nats, 0 without a key, NaN of negative weights


def log(x):
    with np.errstate(divide="ignore"):
        return np.log(x)


# --- scores: (rule, query [Q, D], key [K, E]) -> [Q, K] ---------------------------------------------------------------


def unit(x):
    return x / np.sqrt((x**2).sum(axis=-1, keepdims=True))


def squared_distance(q, k):
    return ((q[:, None] - k[None]) ** 2).sum(axis=-1)


def additive(query_kernel, key_kernel, vector, q, k):
    return np.tanh((q @ query_kernel)[:, None] + (k @ key_kernel)[None]) @ vector


def leaky(x):
    return np.where(x > 0, x, 0.2 * x)


def leaky_sum(s, q, k):
    return leaky((q @ s.query_vector + s.query_bias)[:, None] + (k @ s.key_vector + s.key_bias)[None])


SCORES = {
    "Dot": lambda s, q, k: q @ k.T,
    "ScaledDot": lambda s, q, k: q @ k.T / math.sqrt(q.shape[1]),
    "Bilinear": lambda s, q, k: q @ s.kernel @ k.T,
    "Additive": lambda s, q, k: additive(s.query_kernel, s.key_kernel, s.vector, q, k),
    "Concat": lambda s, q, k: additive(s.kernel[: q.shape[1]], s.kernel[q.shape[1] :], s.vector, q, k),
    "LeakySum": leaky_sum,
    "Cosine": lambda s, q, k: s.sharpness * unit(q) @ unit(k).T,
    "QKNorm": lambda s, q, k: (unit(q) * s.query_scale) @ (unit(k) * s.key_scale).T * math.sqrt(q.shape[1]),
    "SoftCap": lambda s, q, k: s.cap * np.tanh(SCORES[name_of(s.score)](s.score, q, k) / s.cap),
    "NegativeSquaredDistance": lambda s, q, k: -squared_distance(q, k),
    "Gaussian": lambda s, q, k: -squared_distance(q, k) / (2 * s.sigma**2),
    "Boxcar": lambda s, q, k: log((squared_distance(q, k) < s.width**2) * 1.0),
    "Triangular": lambda s, q, k: log(np.maximum(1 - np.sqrt(squared_distance(q, k)) / s.width, 0)),
    "Constant": lambda s, q, k: np.zeros((len(q), len(k))),
    "gatv2": lambda s, q, k: leaky(q[:, None] + k[None]) @ s.args[0],
    "manhattan": lambda s, q, k: -abs(q[:, None] - k[None]).sum(axis=-1),
}
"""By the name of a class, or of a function with its parameters in a `Partial`; so are the other rules."""


def name_of(rule):
    return rule.func.__name__ if hasattr(rule, "func") else type(rule).__name__


# --- biases: (rule, query [Q, D], positions [Q, 1] and [1, K]) -> [Q, K] ----------------------------------------------


def t5_bucket(relative, buckets, max_distance, bidirectional):
    """Raffel et al. 2020: exact buckets for the near half, logarithmic ones up to max_distance, one for all beyond."""
    first = 0
    if bidirectional:
        buckets //= 2
        first, relative = (buckets if relative > 0 else 0), abs(relative)
    else:
        relative = max(-relative, 0)
    exact = buckets // 2
    if relative < exact:
        return first + relative
    far = exact + int(math.log(relative / exact) / math.log(max_distance / exact) * (buckets - exact))
    return first + min(far, buckets - 1)


def t5(b, q, i, j):
    buckets = [[t5_bucket(k - n, len(b.table), b.max_distance, b.bidirectional) for k in j[0]] for n in i[:, 0]]
    return b.table[np.array(buckets, int).reshape(len(i), j.size)]


def shaw(b, q, i, j):
    reach = len(b.table) // 2
    return np.einsum("qd,qkd->qk", q, b.table[np.clip(j - i, -reach, reach) + reach]) / math.sqrt(q.shape[1])


def transformer_xl(b, q, i, j):
    """Dai et al. 2019: cosines of the distance times 10000^(-2 f / S), then the sines."""
    half = b.kernel.shape[1] // 2
    angles = (i - j)[..., None] * 10000.0 ** (-np.arange(half) / half)
    waves = np.concatenate([np.cos(angles), np.sin(angles)], axis=-1)  # [Q, K, S]
    return np.einsum("qs,qks->qk", q @ b.kernel, waves) / math.sqrt(q.shape[1])


BIASES = {
    "ALiBi": lambda b, q, i, j: -b.slope * abs(i - j),
    "Forget": lambda b, q, i, j: -abs(b.total[i] - b.total[j]),
    "T5Bias": t5,
    "ShawBias": shaw,
    "TransformerXLBias": transformer_xl,
    "Location": lambda b, q, i, j: (q @ b.kernel)[:, j[0]],
    "by_distance": lambda b, q, i, j: b.args[0][np.clip(i - j, -4, 4) + 4],
}


def bias_of(bias, q, i, j, offset):
    """The logits that a rule, an array [Q or 1, K or 1], or a tuple of these adds."""
    if bias is None:
        return 0.0
    if isinstance(bias, tuple):
        return sum(bias_of(summand, q, i, j, offset) for summand in bias)
    if isinstance(bias, np.ndarray):
        rows, columns = (np.minimum(at, size - 1) for at, size in zip((i - offset, j), bias.shape))
        return bias[rows, columns]
    return BIASES[name_of(bias)](bias, q, i, j)


# --- masks: (rule, positions [Q, 1] and [1, K]) -> whether the query may attend to the key ----------------------------


def is_dense(m, i, j):
    inside = (i >= 0) & (i < m.allowed.shape[0]) & (j < m.allowed.shape[1])
    return inside & m.allowed[np.clip(i, 0, m.allowed.shape[0] - 1), np.clip(j, 0, m.allowed.shape[1] - 1)]


def is_same_segment(m, i, j):
    id_of = lambda ids, at: np.where((at >= 0) & (at < len(ids)), ids[np.clip(at, 0, len(ids) - 1)], -1)
    query_ids, key_ids = id_of(m.query_ids, i), id_of(m.key_ids, j)
    return (query_ids == key_ids) & (query_ids >= 0)


MASKS = {
    "Causal": lambda m, i, j: j <= i,
    "Lengths": lambda m, i, j: j + 0 * i < m.length,
    "Window": lambda m, i, j: abs(i - j) <= m.width,
    "Dense": is_dense,
    "Segments": is_same_segment,
    "stripes": lambda m, i, j: (i + j) % 3 != 1,
    "Both": lambda m, i, j: mask_matrix(m.left, i, j) & mask_matrix(m.right, i, j),
    "Either": lambda m, i, j: mask_matrix(m.left, i, j) | mask_matrix(m.right, i, j),
    "Rule": lambda m, i, j: mask_matrix(m.allowed, i, j),
}


def mask_matrix(mask, i, j, offset=0):
    """Of a rule, or of a boolean array [Q or 1, K or 1]."""
    if mask is None:
        return np.ones((len(i), j.size), bool)
    if isinstance(mask, np.ndarray):
        return np.broadcast_to(mask, (len(i), j.size))
    return MASKS[name_of(mask)](mask, i, j)


# --- normalizers: (rule, scores [k] of the keys of one query) -> weights [k] ------------------------------------------


def share(x, unused=0.0):
    total = x.sum() + unused
    return x / total if total else x


def softmax(s, sink=-math.inf):
    top = max(s.max(), sink)
    return share(np.exp(s - top), np.exp(sink - top))


def entmax(s, alpha):
    """Peters et al. 2019, equation 10, by bisection."""
    weights = lambda t: np.maximum((alpha - 1) * (s - t), 0) ** (1 / (alpha - 1))
    low, high = s.max() - 1 / (alpha - 1), s.max()
    for _ in range(60):
        middle = (low + high) / 2
        low, high = (middle, high) if weights(middle).sum() >= 1 else (low, middle)
    return weights(low)


def sparsemax(s):
    """Martins & Astudillo 2016, algorithm 1."""
    ordered, place = np.sort(s)[::-1], 1 + np.arange(len(s))
    k = place[1 + place * ordered > np.cumsum(ordered)].max()
    return np.maximum(s - (ordered[:k].sum() - 1) / k, 0)


def softpick(s):
    """Zuhri et al. 2025, with epsilon in the formula of the text: no shift."""
    return np.maximum(np.exp(s) - 1, 0) / (1e-6 + np.abs(np.exp(s) - 1).sum())


def top_k(n, s):
    chosen = s >= np.sort(s)[-min(n.k, len(s))]
    weights = np.zeros(len(s))
    weights[chosen] = weights_of(n.of, s[chosen])
    return weights


def stick_breaking(s):
    weights, left = np.zeros(len(s)), 1.0
    for j in reversed(range(len(s))):
        weights[j] = left / (1 + np.exp(-s[j]))
        left -= weights[j]
    return weights


NORMALIZERS = {
    "Softmax": lambda n, s: softmax(s, -math.inf if n.sink is None else n.sink),
    "ScalableSoftmax": lambda n, s: softmax(s),  # of scores that `attend` has multiplied
    "Sigmoid": lambda n, s: 1 / (1 + np.exp(-s - n.bias)),
    "ReluPower": lambda n, s: np.maximum(s, 0) ** n.power / len(s),
    "Signed": lambda n, s: s,
    "Softpick": lambda n, s: softpick(s),
    "Sparsemax": lambda n, s: sparsemax(s),
    "Entmax": lambda n, s: entmax(s, n.alpha),
    "TopK": top_k,
    "StickBreaking": lambda n, s: stick_breaking(s),
    "Softplus": lambda n, s: share(np.log1p(np.exp(n.sharpness * s)), n.unused),
    "Diluted": lambda n, s: np.exp(s) / (n.unused + (np.exp(s) + n.share).sum()),
}
"""`Softplus` and `Diluted` are the ratios of one's own of tests/ops/cases.py."""


def weights_of(normalizer, s):
    return NORMALIZERS[name_of(normalizer)](normalizer, s) if len(s) else s


# --- poolings: (rule, weights [k], query [D], key [k, D], value [k, V]) -> [W] ----------------------------------------


def moments(p, w, q, k, v):
    mean = share(w) @ v
    return np.concatenate([mean, share(w) @ (v - mean) ** 2])


def local_linear(p, w, q, k, v):
    """The normal equations of one query (Fan 1992), with a ridge of 1e-6 of the mean variance of a feature."""
    w = share(w)
    mean, center = w @ k, w @ v
    covariance = (w[:, None] * (k - mean)).T @ (k - mean)
    ridge = 1e-6 * np.trace(covariance) / len(covariance) if p.ridge is None else p.ridge
    matrix = covariance + (ridge or 1.0) * np.eye(len(covariance))
    return (center + (q - mean) @ np.linalg.solve(matrix, (w[:, None] * (k - mean)).T @ (v - center))) * w.any()


POOLS = {
    "Mean": lambda p, w, q, k, v: w @ v,
    "Moments": moments,
    "LocalLinear": local_linear,
    "LogMixture": lambda p, w, q, k, v: log(w @ np.exp(v)),
}


# --- attention --------------------------------------------------------------------------------------------------------


def entropy(w):
    if (w < 0).any():
        return math.nan
    p = share(w)[w > 0]
    return -(p * np.log(p)).sum()


def attend(query, key, value, *, score, bias, mask, normalizer, pool, offset=0, factor=None) -> Result:
    """`factor` [Q, K] multiplies the weights: 0 where dropout drops one, 1 / (1 - rate) elsewhere."""
    i, j = offset + np.arange(len(query))[:, None], np.arange(len(key))[None]
    allowed, results = mask_matrix(mask, i, j), []
    for n, q in enumerate(query):
        keep = np.flatnonzero(allowed[n])
        s = SCORES[name_of(score)](score, q[None], key[keep])[0]
        s = s + np.broadcast_to(bias_of(bias, q[None], i[n : n + 1], j[:, keep], offset), (1, len(keep)))[0]
        if name_of(normalizer) == "ScalableSoftmax":  # Nakanishi 2025: e^(s log(n) z) = n^(s z), n the keys of the mask
            s = np.array([x if x == -np.inf else normalizer.scale * math.log(len(keep)) * x for x in s])
        keep, s = keep[s > -np.inf], s[s > -np.inf]
        w = weights_of(normalizer, s)
        counted = s[w > 0] if name_of(normalizer) == "TopK" else s
        top = max(s, default=-np.inf)
        log_sum = top + log(np.exp(counted - top).sum()) if len(s) else -np.inf
        dropped = w if factor is None else w * factor[n, keep]
        out = POOLS[name_of(pool)](pool, dropped, q, key[keep], value[keep])
        results.append((out, log_sum, top, entropy(w)))
    return Result(*map(np.array, zip(*results)))
