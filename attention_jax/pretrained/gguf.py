"""Reading of GGUF files: their tensors under Hugging Face's names, a config.json of what their header says, and the
header itself, in which the vocabulary is.

The header is read here, so that no length in it is trusted; the `gguf` library (an extra) knows the quantized types.
https://github.com/ggml-org/ggml/blob/master/docs/gguf.md
"""

import functools
import math
import re
import struct
from collections.abc import Callable, Iterable
from pathlib import Path
from typing import Any, BinaryIO, NamedTuple

import numpy as np

from attention_jax.errors import InputError, explain_damage, how_to_install
from attention_jax.pretrained.foreign_files import WEIGHTS, StoredTensor

SUFFIX = ".gguf"
NUMBERS = {0: "B", 1: "b", 2: "H", 3: "h", 4: "I", 5: "i", 6: "f", 7: "?", 10: "Q", 11: "q", 12: "d"}
"""{type of a value: its format in `struct`}"""
STRING, ARRAY = 8, 9
ROWS = 2048
"""The rows of a tensor that are dequantized at a time."""
NAMES = {  # name in a .gguf file: in Hugging Face's
    "token_embd": "model.embed_tokens",
    "output_norm": "model.norm",
    "output": "lm_head",
    "attn_norm": "input_layernorm",
    "attn_q": "self_attn.q_proj",
    "attn_k": "self_attn.k_proj",
    "attn_v": "self_attn.v_proj",
    "attn_output": "self_attn.o_proj",
    "attn_q_norm": "self_attn.q_norm",
    "attn_k_norm": "self_attn.k_norm",
    "ffn_norm": "post_attention_layernorm",
    "ffn_gate": "mlp.gate_proj",
    "ffn_up": "mlp.up_proj",
    "ffn_down": "mlp.down_proj",
}
GEMMA = NAMES | {
    "post_attention_norm": "post_attention_layernorm",
    "ffn_norm": "pre_feedforward_layernorm",
    "post_ffw_norm": "post_feedforward_layernorm",
}
GPT2 = {
    "token_embd": "transformer.wte",
    "position_embd": "transformer.wpe",
    "output_norm": "transformer.ln_f",
    "output": "lm_head",
    "attn_norm": "ln_1",
    "attn_qkv": "attn.c_attn",
    "attn_output": "attn.c_proj",
    "ffn_norm": "ln_2",
    "ffn_up": "mlp.c_fc",
    "ffn_down": "mlp.c_proj",
}


NEUTRAL: dict[str, tuple] = {
    "expert_count": (0,),
    "logit_scale": (0, 1),
    "residual_scale": (0, 1),
    "embedding_scale": (0, 1),
    "use_parallel_residual": (False,),
    "attention.causal": (True,),
    "attention.max_alibi_bias": (0,),
    "attention.clamp_kqv": (0,),
    "attention.temperature_scale": (0,),
    "attention.shared_kv_layers": (0,),
    "rope.scaling.attn_factor": (1,),
    "rope.scaling.alpha": (0, 1),
}
"""{what a header may say of an architecture: the values that change nothing}; others are refused."""
HARMLESS = (
    "vocab_size|tensor_data_layout|attention.layer_norm_epsilon|expert_used_count|pooling_type|"  # repeated, or unused
    "rope.scaling.(finetuned|original_context_length|yarn_.*)|"  # of kinds of scaling that are refused
    r"(general|tokenizer|split|quantize|imatrix)\..*"  # names; the tokenizer and generate read theirs
)


class Architecture(NamedTuple):
    """How the models of a `general.architecture` are called in Hugging Face's config.json, and their tensors."""

    model_type: str
    names: dict[str, str]
    layers: str = "model.layers"


ARCHITECTURES = {
    "llama": Architecture("llama", NAMES),
    "qwen2": Architecture("qwen2", NAMES),
    "qwen3": Architecture("qwen3", NAMES),
    "gemma2": Architecture("gemma2", GEMMA),
    "gemma3": Architecture("gemma3_text", GEMMA),
    "gpt2": Architecture("gpt2", GPT2, "transformer.h"),
}


class Header(NamedTuple):
    """The header of a file."""

    fields: dict[str, Any]
    tensors: dict[str, tuple[tuple[int, ...], int, int]]
    """{name: (shape as in NumPy, number of its type, first byte)}"""


def read_gguf(path: Path) -> tuple[dict[str, StoredTensor], dict]:
    """(arrays under Hugging Face's names, a config.json) of a file.

    Raises InputError for a damaged file and an architecture that is not known.
    """
    header = header_of(path)
    name = header.fields.get("general.architecture")
    if name not in ARCHITECTURES:
        raise InputError(f"{path}: architecture {name} is not supported; supported: {', '.join(ARCHITECTURES)}")
    config, arrays = config_of(header), {}
    for gguf_name, place in header.tensors.items():
        if gguf_name != "rope_freqs.weight":
            hf_name = to_hf_name(gguf_name, ARCHITECTURES[name])
            arrays[hf_name] = to_hf_layout(StoredTensor(hf_name, "F32", place[0], reader(path, *place)), name, config)
    if "rope_freqs.weight" in header.tensors:
        if "rope_scaling" in config:
            raise InputError(
                f"{path}: rope_freqs.weight beside {config['rope_scaling']} is not supported: one of them is"
            )
        config["rope_scaling"] = llama3_scaling(reader(path, *header.tensors["rope_freqs.weight"])(), config)
    return arrays, config


def header_of(path: Path) -> Header:
    """Read the header of a file; InputError for one that is damaged, or is of another format."""
    with explain_damage(path, WEIGHTS):
        status = Path(path).stat()
        return _header(Path(path), status.st_size, status.st_mtime_ns)


@functools.lru_cache(maxsize=1)  # of a large vocabulary it takes a second, and several readers need it
def _header(path: Path, size: int, written: int) -> Header:
    with path.open("rb") as file:
        values = _Values(file, size)
        magic, version = file.read(4), values.number("I")
        if magic != b"GGUF" or version not in (2, 3):
            raise InputError(f"{path} must be a GGUF file of version 2 or 3; it begins with {magic!r}, {version}")
        tensors, count = values.number("Q"), values.number("Q")
        fields = {values.text(): values.value() for _ in range(values.check_count(count, 8 + 4))}
        places = {}
        for _ in range(values.check_count(tensors, 8 + 4 + 4 + 8)):
            name, axes = values.text(), values.number("I")
            if axes > 4 or name in places:
                raise ValueError(f"tensor {name} is there twice or has {axes} axes")
            shape = tuple(values.number("Q") for _ in range(axes))[::-1]
            places[name] = shape, values.number("I"), values.number("Q")
        alignment = int(fields.get("general.alignment", 32))
        start = -(-file.tell() // alignment) * alignment
    entries = {name: (shape, kind, start + offset) for name, (shape, kind, offset) in places.items()}
    for name, (shape, kind, offset) in entries.items():
        if offset + size_of(name, shape, kind)[0] > size:
            raise InputError(f"{path} is truncated: tensor {name} ends after it; copy or download it again")
    return Header(fields, entries)


class _Values:
    """The values in a file; ValueError where one would be longer than the rest of it."""

    def __init__(self, file: BinaryIO, size: int):
        self.file, self.size = file, size

    def check_count(self, count: int, width: int) -> int:
        if count * width > self.size - self.file.tell():
            raise ValueError(f"{count} values where {self.size - self.file.tell()} bytes are left")
        return count

    def number(self, form: str):
        return struct.unpack(f"<{form}", self.file.read(struct.calcsize(f"<{form}")))[0]

    def text(self) -> str:
        return self.file.read(self.check_count(self.number("Q"), 1)).decode("utf-8", errors="surrogateescape")

    def value(self, kind: int | None = None):
        kind = self.number("I") if kind is None else kind
        if kind == STRING:
            return self.text()
        if kind != ARRAY:
            return self.number(NUMBERS[kind])
        kind, count = self.number("I"), self.number("Q")
        if kind == STRING:
            return [self.text() for _ in range(self.check_count(count, 8))]
        width = struct.calcsize(f"<{NUMBERS[kind]}")
        return list(struct.unpack(f"<{count}{NUMBERS[kind]}", self.file.read(self.check_count(count, width) * width)))


def library():
    """The `gguf` library, which is an extra."""
    try:
        import gguf
    except ImportError as error:
        raise InputError(f"a .gguf file needs gguf, which is not installed: {how_to_install(['gguf'])}") from error
    return gguf


def size_of(name: str, shape: tuple[int, ...], kind: int) -> tuple[int, tuple[int, int]]:
    """(bytes of a tensor, (values, bytes) of a block of its type)."""
    sizes = library().GGML_QUANT_SIZES
    if kind not in sizes or not shape or shape[-1] % sizes[kind][0]:
        raise InputError(
            f"tensor {name} must be of a type of GGUF, in whole blocks; it is {list(shape)} of type {kind}"
        )
    block = sizes[kind]
    return math.prod(shape) // block[0] * block[1], block


def reader(path: Path, shape: tuple[int, ...], kind: int, offset: int) -> Callable[[], np.ndarray]:
    """A function that reads a tensor as float32."""

    def load() -> np.ndarray:
        size, (values, width) = size_of("", shape, kind)
        quantization = library().GGMLQuantizationType(kind)
        rows = np.fromfile(path, np.uint8, size, offset=offset).reshape(-1, shape[-1] // values * width)
        result = np.empty((len(rows), shape[-1]), np.float32)
        for first in range(0, len(rows), ROWS):
            try:
                chunk = library().dequantize(rows[first : first + ROWS], quantization)
            except NotImplementedError as error:
                raise InputError(f"{path}: tensors of type {quantization.name} are not read: {error}") from error
            result[first : first + ROWS] = chunk
        return result.reshape(shape)

    return load


def to_hf_name(name: str, kind: Architecture) -> str:
    """The name of a tensor in Hugging Face's files; one that is not known is left as it is.

    >>> to_hf_name("blk.3.attn_q.weight", ARCHITECTURES["llama"])
    'model.layers.3.self_attn.q_proj.weight'
    """
    match = re.fullmatch(r"(?:blk\.(\d+)\.)?(\w+)\.(weight|bias)", name)
    if not match or match[2] not in kind.names:
        return name
    inside = f"{kind.names[match[2]]}.{match[3]}"
    return inside if match[1] is None else f"{kind.layers}.{match[1]}.{inside}"


def to_hf_layout(tensor: StoredTensor, architecture: str, config: dict) -> StoredTensor:
    """The tensor with its axes, channels and values as in Hugging Face's files."""
    change, shape = None, tensor.shape
    of_heads = {"q_proj": "num_attention_heads", "k_proj": "num_key_value_heads"}
    projection = tensor.name.split(".")[-2] if "." in tensor.name else ""
    if architecture == "llama" and projection in of_heads:
        change = lambda x: halves(x, config[of_heads[projection]])
    if architecture.startswith("gemma") and tensor.name.endswith("norm.weight"):
        change = lambda x: x - 1  # there the file has 1 + w
    if architecture == "gpt2" and re.search(r"\.c_\w+\.weight$", tensor.name):
        change, shape = np.transpose, shape[::-1]
    return tensor if change is None else tensor.then(change, shape)


def halves(x: np.ndarray, heads: int) -> np.ndarray:
    """Rows of pairs of rotated channels, [heads * pairs * 2, ...], with the first of all pairs before the second.

    >>> halves(np.arange(8), heads=2).tolist()
    [0, 2, 1, 3, 4, 6, 5, 7]
    """
    return x.reshape(heads, -1, 2, *x.shape[1:]).swapaxes(1, 2).reshape(x.shape)


GPT2_ENTRIES = {
    "n_layer": "block_count",
    "n_head": "attention.head_count",
    "n_positions": "context_length",
    "n_embd": "embedding_length",
    "layer_norm_epsilon": "attention.layer_norm_epsilon",
    "n_inner": "feed_forward_length",
}
"""{entry of config.json: of the header, after the name of the architecture}"""
ENTRIES = {
    "num_hidden_layers": "block_count",
    "hidden_size": "embedding_length",
    "intermediate_size": "feed_forward_length",
    "num_attention_heads": "attention.head_count",
    "num_key_value_heads": "attention.head_count_kv",
    "head_dim": "attention.key_length",
    "max_position_embeddings": "context_length",
    "rms_norm_eps": "attention.layer_norm_rms_epsilon",
    "rope_theta": "rope.freq_base",
    "sliding_window": "attention.sliding_window",
    "attn_logit_softcapping": "attn_logit_softcapping",
    "final_logit_softcapping": "final_logit_softcapping",
}
WIDTHS = (
    "attention.value_length",
    "rope.dimension_count",
    "rope.dimension_count_swa",
    "attention.key_length_swa",
    "attention.value_length_swa",
)
"""What must equal the width of a head."""
INTERPRETED = (
    *WIDTHS,
    "attention.key_length",
    "attention.scale",
    "rope.scaling.type",
    "rope.scaling.factor",
    "rope.scale_linear",
)
"""Entries besides those above that are read."""
GEMMA_ENTRIES = ("attention.sliding_window_pattern", "rope.freq_base_swa")


def decimal(value: float) -> float:
    """The short decimal number that a float32 stands for.

    >>> decimal(float(np.float32(1e-5)))
    1e-05
    """
    return float(f"{value:.3g}")


def config_of(header: Header) -> dict:
    """The config.json of a model, in which an entry of the header that is not known has its own name.

    Raises InputError for an entry with a value that is not supported.
    """
    architecture = header.fields["general.architecture"]
    fields = {name.removeprefix(f"{architecture}."): value for name, value in header.fields.items()}
    config = {"model_type": ARCHITECTURES[architecture].model_type} | special_ids(header.fields)
    names = GPT2_ENTRIES if architecture == "gpt2" else ENTRIES
    config |= {hf_key: fields[name] for hf_key, name in names.items() if name in fields}
    if architecture == "gpt2":
        check_neutral(fields)
        config["layer_norm_epsilon"] = decimal(config.get("layer_norm_epsilon", 1e-5))
        return config | unread(fields, names.values())
    config["rms_norm_eps"] = decimal(config["rms_norm_eps"])
    config.setdefault("num_key_value_heads", config["num_attention_heads"])
    config.setdefault("rope_theta", 10_000.0)
    width = config.setdefault("head_dim", config["hidden_size"] // config["num_attention_heads"])
    for same in WIDTHS:
        if fields.get(same, width) != width:
            raise InputError(f"heads of {width} channels need {same} {width}, got {fields[same]}: not supported")
    config["tie_word_embeddings"] = "output.weight" not in header.tensors
    if architecture == "llama" and "blk.0.attn_q.bias" in header.tensors:
        config["attention_bias"] = True
    config |= scaling(fields)
    if architecture.startswith("gemma"):
        return config | gemma_config(architecture, config, fields) | unread(fields, [*names.values(), *GEMMA_ENTRIES])
    if 0 < config.pop("sliding_window", 0) < config.get("max_position_embeddings", math.inf):
        raise InputError(
            f"attention.sliding_window {fields['attention.sliding_window']} in the header of a {architecture} is not "
            "supported: llama.cpp does not read it"
        )
    check_neutral(fields, scale=(0, np.float32(width**-0.5)))
    return config | unread(fields, names.values())


def check_neutral(fields: dict, scale: tuple | None = None):
    """Raise InputError for an entry of `NEUTRAL` with another value, or an attention.scale other than `scale`."""
    for name, values in (NEUTRAL | ({} if scale is None else {"attention.scale": scale})).items():
        if name in fields and not np.isin(fields[name], values).all():
            raise InputError(
                f"{name} {fields[name]} in the header of a .gguf file is not supported: it must be {values[-1]}"
            )


def unread(fields: dict, names: Iterable[str]) -> dict:
    """The entries of the header that are not known, by their names; `names` are those of the family."""
    names = {*names, *INTERPRETED, *NEUTRAL}
    return {name: value for name, value in fields.items() if name not in names and not re.fullmatch(HARMLESS, name)}


def special_ids(fields: dict) -> dict:
    """{"bos_token_id": 1, ...} as far as the file names them; for sentencepiece otherwise llama.cpp's defaults."""
    gguf_names = {"bos": "bos", "eos": "eos", "pad": "padding", "unk": "unknown"}
    ids = {name: fields.get(f"tokenizer.ggml.{gguf_name}_token_id") for name, gguf_name in gguf_names.items()}
    usual = {"bos": 1, "eos": 2, "unk": 0} if fields.get("tokenizer.ggml.model") == "llama" else {}
    ids = {name: usual.get(name) if number is None else number for name, number in ids.items()}
    return {f"{name}_token_id": number for name, number in ids.items() if number is not None}


def scaling(fields: dict) -> dict:
    """The entry of scaled rotary positions, whose type is linear where the file does not say it, as in llama.cpp."""
    kind, factor = fields.get("rope.scaling.type", "linear"), fields.get("rope.scaling.factor")
    factor = (fields.get("rope.scale_linear", 0) if factor is None else factor) or 1
    if kind not in ("none", "linear"):
        raise InputError(f"rotary positions scaled by {kind} are not supported in a .gguf file; linear ones are")
    return {} if kind == "none" or factor == 1 else {"rope_scaling": {"rope_type": "linear", "factor": factor}}


def gemma_config(architecture: str, config: dict, fields: dict) -> dict:
    """What the file does not say of a Gemma model: it follows from its architecture and its number of layers."""
    check_neutral(fields, scale=(0,))
    layers, width = config["num_hidden_layers"], config["head_dim"]
    # models of 27 billion parameters scale queries by another width
    largest = {"gemma2": 46, "gemma3": 62}[architecture]
    scalar = config["hidden_size"] // config["num_attention_heads"] if layers == largest else width
    every = fields.get("attention.sliding_window_pattern", {"gemma2": 2, "gemma3": 6}[architecture])
    narrow = every if isinstance(every, list) else [bool(every == 0 or (i + 1) % every) for i in range(layers)]
    if architecture == "gemma3" and not config.get("sliding_window"):
        narrow = [False] * layers
    kinds = ["sliding_attention" if is_local else "full_attention" for is_local in narrow]
    entries = {"query_pre_attn_scalar": scalar, "layer_types": kinds, "hidden_activation": "gelu_pytorch_tanh"}
    local = fields.get("rope.freq_base_swa", 10_000.0 if architecture == "gemma3" else config["rope_theta"])
    if architecture == "gemma2" and local != config["rope_theta"]:
        raise InputError(f"rope.freq_base_swa {local} of a Gemma 2 is not supported: it must be {config['rope_theta']}")
    return entries | ({"rope_local_base_freq": local} if architecture == "gemma3" else {})


def llama3_scaling(factors: np.ndarray, config: dict) -> dict:
    """The entry of Llama 3's scaled rotary positions from the divisors of the frequencies; InputError for others."""
    theta, width = config["rope_theta"], config["head_dim"]
    wave = 2 * np.pi * theta ** (2 * np.arange(width // 2) / width)
    factor, low, high, length = float(factors.max()), 1.0, 4.0, 8192
    smooth = np.clip((length / wave - low) / (high - low), 0, 1)
    if not np.allclose(1 / factors, (1 - smooth) / factor + smooth, rtol=1e-4):
        raise InputError("rope_freqs.weight must be those of Llama 3 (factors 1 and 4, length 8192); they are others")
    names = {"rope_type": "llama3", "factor": factor, "low_freq_factor": low, "high_freq_factor": high}
    return names | {"original_max_position_embeddings": length}
