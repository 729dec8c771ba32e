"""GGUF files that the `gguf` library writes, and damaged ones."""

import struct

import numpy as np
import pytest

from attention_jax.errors import InputError
from attention_jax.pretrained import tensors

gguf = pytest.importorskip("gguf", reason="GGUF files need gguf, of the extra `pretrained`")
RNG = np.random.default_rng(0)
HEADS, WIDTH, HIDDEN = 4, 8, 32


def write_gguf(path, architecture="llama", quantized=None, fields=(), entries=(), **arrays):
    """A file with what `config_of` needs."""
    writer = gguf.GGUFWriter(path, architecture)
    if not any(name.endswith("block_count") for _, (name, _) in entries):
        writer.add_block_count(1)
    writer.add_context_length(64)
    writer.add_embedding_length(HIDDEN)
    writer.add_feed_forward_length(64)
    writer.add_head_count(HEADS)
    writer.add_layer_norm_rms_eps(1e-6)
    for name, value in fields:
        getattr(writer, name)(value)
    for name, entry in entries:
        getattr(writer, name)(*entry)
    for name, array in arrays.items():
        if quantized is None:
            writer.add_tensor(name, array)
        else:
            writer.add_tensor(name, gguf.quantize(array, quantized), raw_dtype=quantized)
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.write_tensors_to_file()
    writer.close()
    return path


def draw_array(*shape):
    return RNG.standard_normal(shape).astype(np.float32)


def read(path) -> dict:
    return {name: np.asarray(array) for name, array in tensors.read_tensors(path).arrays.items()}


@pytest.mark.parametrize("kind", ["F32", "F16", "BF16", "Q8_0", "Q4_1", "Q4_0", "Q5_1"])
def test_tensor_types_equal_gguf_library(tmp_path, kind):
    x, kind = draw_array(4200, HIDDEN), gguf.GGMLQuantizationType[kind]  # more rows than are read at a time
    path = write_gguf(tmp_path / "a.gguf", quantized=kind, **{"token_embd.weight": x})
    actual = read(path)["model.embed_tokens.weight"]
    np.testing.assert_array_equal(actual, gguf.dequantize(gguf.quantize(x, kind), kind))
    assert actual.shape == x.shape and abs(actual - x).max() < 0.5


def test_what_the_header_says_is_a_config(tmp_path):
    fields = [("add_rope_freq_base", 5e5), ("add_head_count_kv", 2), ("add_bos_token_id", 1), ("add_eos_token_id", 2)]
    config = tensors.read_tensors(
        write_gguf(tmp_path / "a.gguf", fields=fields, **{"output_norm.weight": np.ones(HIDDEN)})
    ).config
    assert config == {
        "model_type": "llama",
        "bos_token_id": 1,
        "eos_token_id": 2,
        "num_hidden_layers": 1,
        "hidden_size": HIDDEN,
        "intermediate_size": 64,
        "num_attention_heads": HEADS,
        "num_key_value_heads": 2,
        "head_dim": WIDTH,
        "max_position_embeddings": 64,
        "rms_norm_eps": 1e-6,
        "rope_theta": 5e5,
        "tie_word_embeddings": True,
    }


def test_llama3s_frequencies_are_its_factors(tmp_path):
    """Llama 3.2: factor 32. Frequencies above one turn in 2048 tokens stay, those below one in 8192 are divided."""
    frequency = 5e5 ** (-np.arange(0, WIDTH, 2) / WIDTH)
    wave = 2 * np.pi / frequency
    smooth = (8192 / wave - 1) / 3
    scaled = np.where(wave < 2048, 1, np.where(wave > 8192, 1 / 32, (1 - smooth) / 32 + smooth))
    arrays = {"rope_freqs.weight": (1 / scaled).astype(np.float32)}
    config = tensors.read_tensors(
        write_gguf(tmp_path / "a.gguf", fields=[("add_rope_freq_base", 5e5)], **arrays)
    ).config
    assert config["rope_scaling"] == {
        "rope_type": "llama3",
        "factor": 32.0,
        "low_freq_factor": 1.0,
        "high_freq_factor": 4.0,
        "original_max_position_embeddings": 8192,
    }
    arrays["rope_freqs.weight"][1] += 1
    path = write_gguf(tmp_path / "b.gguf", fields=[("add_rope_freq_base", 5e5)], **arrays)
    with pytest.raises(InputError, match="must be those of Llama 3"):
        tensors.read_tensors(path)


def config(path, architecture="llama", tensors_there=("output_norm.weight",), **header) -> dict:
    """The config.json of a header with these further entries of the architecture, a dot as two underscores."""
    fields = [("add_head_count_kv", 2), ("add_rope_freq_base", 500.0)]
    writer = lambda name: (
        "add_bool"
        if type(header[name]) is bool
        else "add_float32"
        if type(header[name]) is float
        else (
            "add_string"
            if isinstance(header[name], str)
            else "add_array"
            if isinstance(header[name], list)
            else "add_uint32"
        )
    )
    entries = [(writer(name), (f"{architecture}.{name.replace('__', '.')}", header[name])) for name in header]
    arrays = dict.fromkeys(tensors_there, np.ones(HIDDEN, np.float32))
    return tensors.read_tensors(
        write_gguf(path / "a.gguf", architecture, fields=fields, entries=entries, **arrays)
    ).config


@pytest.mark.parametrize(
    ("header", "factor"),
    [
        ({"rope__scaling__factor": 4.0}, 4),
        ({"rope__scale_linear": 2.0}, 2),
        ({"rope__scale_linear": 2.0, "rope__scaling__factor": 8.0}, 8),
        ({"rope__scaling__type": "linear", "rope__scale_linear": 2.0}, 2),
        ({"rope__scaling__type": "none", "rope__scaling__factor": 4.0}, None),
        ({"rope__scaling__type": "linear"}, None),
        ({"rope__scaling__factor": 0.0}, None),
        ({"rope__scale_linear": 1.0}, None),
    ],
    ids=str,
)
def test_rotary_scaling_equals_llama_cpp(tmp_path, header, factor):
    """src/llama-model.cpp: the type is linear where it is not said, scale_linear is the earlier name, and 0 is 1."""
    expected = None if factor is None else {"rope_type": "linear", "factor": factor}
    assert config(tmp_path, **header).get("rope_scaling") == expected


@pytest.mark.parametrize(
    ("architecture", "header"),
    [
        ("llama", {"attention__scale": 0.5}),
        ("llama", {"attention__sliding_window": 16}),
        ("llama", {"attention__causal": False}),
        ("llama", {"logit_scale": 2.0}),
        ("llama", {"expert_count": 8}),
        ("llama", {"rope__scaling__type": "yarn", "rope__scaling__factor": 4.0}),
        ("llama", {"rope__scaling__attn_factor": 2.0}),
        ("llama", {"rope__dimension_count": 4}),
        ("qwen2", {"attention__sliding_window": 16}),
        ("gemma2", {"rope__freq_base_swa": 7.0}),
        ("gemma3", {"attention__key_length_swa": 16}),
    ],
    ids=str,
)
def test_unsupported_header_entry_is_an_error(tmp_path, architecture, header):
    (name,) = list(header)[:1]
    with pytest.raises(
        InputError, match="yarn" if "yarn" in header.values() else name.replace("__", ".").split(".")[-1]
    ):
        config(tmp_path, architecture, **header)


def test_neutral_header_entries_are_read(tmp_path):
    plain = config(tmp_path)
    same = {"attention__scale": float(np.float32(WIDTH**-0.5)), "logit_scale": 1.0, "expert_count": 0}
    same |= {"attention__sliding_window": 64, "attention__causal": True, "vocab_size": 300}
    assert config(tmp_path, **same) == plain and plain["rope_theta"] == 500
    assert config(tmp_path, unheard_of=3) == plain | {"unheard_of": 3}  # a note will name it


def test_windows_of_gemma_are_where_the_header_says(tmp_path):
    kinds = lambda architecture, **header: [
        kind.split("_")[0]
        for kind in config(tmp_path, architecture, **{"block_count": 4, "attention__sliding_window": 8} | header)[
            "layer_types"
        ]
    ]
    assert kinds("gemma2") == ["sliding", "full"] * 2
    assert kinds("gemma3", attention__sliding_window_pattern=3) == ["sliding", "sliding", "full", "sliding"]
    assert kinds("gemma3", attention__sliding_window_pattern=[True, False, False, True]) == [
        "sliding", "full", "full", "sliding"
    ]  # fmt: skip
    assert kinds("gemma3", attention__sliding_window=0) == ["full"] * 4
    assert config(tmp_path, "gemma3", rope__freq_base_swa=70.0)["rope_local_base_freq"] == 70


def number(value: int) -> bytes:
    return struct.pack("<Q", value)


def text(value: str) -> bytes:
    return number(len(value)) + value.encode()


HEAD = b"GGUF" + struct.pack("<I", 3)
LONG_LIST = text("a") + struct.pack("<II", 9, 4) + number(2**60)


@pytest.mark.parametrize(
    "content",
    [
        b"GGUF",
        b"GGML" + b"\0" * 60,
        b"GGUF" + struct.pack("<I", 1) + b"\0" * 60,
        b"GGUF" + struct.pack(">I", 3) + b"\0" * 60,
        HEAD + number(2**62) + number(0),
        HEAD + number(0) + number(2**62),
        HEAD + number(0) + number(1) + number(2**62),
        HEAD + number(0) + number(1) + LONG_LIST,
        HEAD + number(0) + number(1) + text("a") + struct.pack("<II", 9, 8) + number(2**60) + b"\0" * 99,
        HEAD + number(0) + number(1) + text("a") + struct.pack("<I", 77),
        HEAD + number(0) + number(1) + text("general.architecture") + struct.pack("<I", 8) + text("mamba"),
        HEAD + number(1) + number(0) + text("t") + struct.pack("<I", 99),
        HEAD
        + number(1)
        + number(0)
        + text("t")
        + struct.pack("<I", 1)
        + number(2**40)
        + struct.pack("<I", 0)
        + number(0),
        HEAD
        + number(1)
        + number(0)
        + text("t")
        + struct.pack("<I", 1)
        + number(32)
        + struct.pack("<I", 999)
        + number(0),
        HEAD + number(1) + number(0) + text("t") + struct.pack("<I", 1) + number(31) + struct.pack("<I", 2) + number(0),
    ],
    ids=range(15),
)
def test_a_header_is_not_trusted(tmp_path, content):
    path = tmp_path / "model.gguf"
    path.write_bytes(content)
    with pytest.raises(InputError) as error:
        tensors.read_tensors(path)
    assert "\n" not in str(error.value)


def test_truncated_file_is_an_error_at_once(tmp_path):
    path = write_gguf(tmp_path / "a.gguf", **{"token_embd.weight": draw_array(40, HIDDEN)})
    path.write_bytes(path.read_bytes()[:-64])
    with pytest.raises(InputError, match="is truncated: tensor token_embd.weight"):
        tensors.read_tensors(path)
