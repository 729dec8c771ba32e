"""GGUF files that the `gguf` library writes, and damaged ones."""

import struct

import numpy as np
import pytest

from attention_jax.errors import InputError
from attention_jax.weights import tensors

gguf = pytest.importorskip("gguf", reason="GGUF files need gguf, of the extra `pretrained`")
RNG = np.random.default_rng(0)
HEADS, WIDTH, HIDDEN = 4, 8, 32


def written(path, architecture="llama", quantized=None, fields=(), **arrays):
    """A file with what `config_of` needs."""
    writer = gguf.GGUFWriter(path, architecture)
    writer.add_block_count(1)
    writer.add_context_length(64)
    writer.add_embedding_length(HIDDEN)
    writer.add_feed_forward_length(64)
    writer.add_head_count(HEADS)
    writer.add_layer_norm_rms_eps(1e-6)
    for name, value in fields:
        getattr(writer, name)(value)
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


def drawn(*shape):
    return RNG.standard_normal(shape).astype(np.float32)


def read(path) -> dict:
    return {name: np.asarray(array) for name, array in tensors.read(path).arrays.items()}


@pytest.mark.parametrize("kind", ["F32", "F16", "BF16", "Q8_0", "Q4_1", "Q4_0", "Q5_1"])
def test_a_tensor_of_every_type_is_read_as_the_library_reads_it(tmp_path, kind):
    x, kind = drawn(4200, HIDDEN), gguf.GGMLQuantizationType[kind]  # more rows than are read at a time
    path = written(tmp_path / "a.gguf", quantized=kind, **{"token_embd.weight": x})
    found = read(path)["model.embed_tokens.weight"]
    np.testing.assert_array_equal(found, gguf.dequantize(gguf.quantize(x, kind), kind))
    assert found.shape == x.shape and abs(found - x).max() < 0.5


def test_rotated_channels_of_llama_are_halves_apart(tmp_path):
    """The converter of llama.cpp: reshape(heads, 2, width / 2, -1).swapaxes(1, 2), by the heads of queries or keys."""
    theirs = {"q": drawn(HEADS * WIDTH, HIDDEN), "k": drawn(2 * WIDTH, HIDDEN), "v": drawn(2 * WIDTH, HIDDEN)}
    turned = lambda x: x.reshape(-1, 2, WIDTH // 2, HIDDEN).swapaxes(1, 2).reshape(x.shape)
    arrays = {f"blk.0.attn_{one}.weight": turned(x) for one, x in theirs.items()}
    fields = [("add_head_count_kv", 2)]
    llama = read(written(tmp_path / "llama.gguf", fields=fields, **arrays))
    qwen = read(written(tmp_path / "qwen.gguf", "qwen2", fields=fields, **arrays))
    for one, x in theirs.items():
        expected = turned(x) if one == "v" else x
        np.testing.assert_array_equal(llama[f"model.layers.0.self_attn.{one}_proj.weight"], expected)
        np.testing.assert_array_equal(qwen[f"model.layers.0.self_attn.{one}_proj.weight"], turned(x))


def test_what_the_header_says_is_a_config(tmp_path):
    fields = [("add_rope_freq_base", 5e5), ("add_head_count_kv", 2), ("add_bos_token_id", 1), ("add_eos_token_id", 2)]
    config = tensors.read(written(tmp_path / "a.gguf", fields=fields, **{"output_norm.weight": np.ones(HIDDEN)})).config
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


def test_gemma_stores_one_less_elsewhere(tmp_path):
    scale = np.linspace(0.5, 2, HIDDEN, dtype=np.float32)
    path = written(tmp_path / "a.gguf", "gemma3", **{"output_norm.weight": scale, "blk.0.post_ffw_norm.weight": scale})
    found = read(path)
    assert found.keys() == {"model.norm.weight", "model.layers.0.post_feedforward_layernorm.weight"}
    np.testing.assert_array_equal(found["model.norm.weight"] + 1, scale)


def test_llama3s_frequencies_are_its_factors(tmp_path):
    """Llama 3.2: factor 32. Frequencies above one turn in 2048 tokens stay, those below one in 8192 are divided."""
    frequency = 5e5 ** (-np.arange(0, WIDTH, 2) / WIDTH)
    wave = 2 * np.pi / frequency
    smooth = (8192 / wave - 1) / 3
    scaled = np.where(wave < 2048, 1, np.where(wave > 8192, 1 / 32, (1 - smooth) / 32 + smooth))
    arrays = {"rope_freqs.weight": (1 / scaled).astype(np.float32)}
    config = tensors.read(written(tmp_path / "a.gguf", fields=[("add_rope_freq_base", 5e5)], **arrays)).config
    assert config["rope_scaling"] == {
        "rope_type": "llama3",
        "factor": 32.0,
        "low_freq_factor": 1.0,
        "high_freq_factor": 4.0,
        "original_max_position_embeddings": 8192,
    }
    arrays["rope_freqs.weight"][1] += 1
    path = written(tmp_path / "b.gguf", fields=[("add_rope_freq_base", 5e5)], **arrays)
    with pytest.raises(InputError, match="must be those of Llama 3"):
        tensors.read(path)


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
        tensors.read(path)
    assert "\n" not in str(error.value)


def test_a_truncated_file_is_refused_before_its_tensors_are_read(tmp_path):
    path = written(tmp_path / "a.gguf", **{"token_embd.weight": drawn(40, HIDDEN)})
    path.write_bytes(path.read_bytes()[:-64])
    with pytest.raises(InputError, match="is truncated: tensor token_embd.weight"):
        tensors.read(path)
