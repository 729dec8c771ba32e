"""How close pretrained models are to transformers, the table of docs/weights.md: `python tests/parity.py [FAMILY]`.

It needs torch, transformers and accelerate. The numbers are kept in tests/parity.json, so that a family that is not
measured now, or whose file is not installed, keeps its row. Random models are small ones that transformers draws.
"""

import functools
import json
import os
import sys
import tempfile
import warnings
from datetime import date
from pathlib import Path

import jax
import numpy as np
import pytest
import real_models
import their_decoders
import their_encoders

ROOT = Path(__file__).resolve().parents[1]
sys.path.insert(0, str(ROOT))  # for a checkout that is not installed

import attention_jax
from attention_jax import models
from attention_jax.files import write_atomically
from attention_jax.pretrained import exchange, tensors
from attention_jax.report.tables import Table, markdown

os.environ["HF_HUB_OFFLINE"] = "1"
RECORD, PAGE = ROOT / "tests" / "parity.json", ROOT / "docs" / "weights.md"
START, END = "<!-- parity -->\n", "<!-- end of parity -->"
BOUND = 1e-4

# --- random models ----------------------------------------------------------------------------------------------------

SIZES = {"vocab_size": 31, "hidden_size": 24, "intermediate_size": 40, "num_hidden_layers": 3}
SIZES |= {"num_attention_heads": 4, "num_key_value_heads": 2, "max_position_embeddings": 64}
LLAMA3 = {"rope_type": "llama3", "factor": 8.0, "low_freq_factor": 1.0, "high_freq_factor": 4.0}
LLAMA3 |= {"original_max_position_embeddings": 16, "rope_theta": 500.0}
CAPS = {"attn_logit_softcapping": 2.0, "final_logit_softcapping": 1.5}
GEMMA3_ROPE = {
    "rope_parameters": {
        "sliding_attention": {"rope_type": "default", "rope_theta": 100.0},
        "full_attention": {"rope_type": "linear", "factor": 8.0, "rope_theta": 1000.0},
    }
}
LAYERS = ["sliding_attention", "full_attention", "sliding_attention"]
GEMMA2 = {"head_dim": 8, "sliding_window": 4, "query_pre_attn_scalar": 3} | CAPS
GEMMA3 = {"head_dim": 8, "sliding_window": 4, "query_pre_attn_scalar": 5, "layer_types": LAYERS} | GEMMA3_ROPE
GPT2 = {
    "bos_token_id": None,
    "eos_token_id": None,
    "vocab_size": 31,
    "n_embd": 24,
    "n_layer": 3,
    "n_head": 4,
    "n_positions": 64,
}
BERT = {name: value for name, value in SIZES.items() if name != "num_key_value_heads"}
DISTILBERT = {"vocab_size": 31, "dim": 24, "n_layers": 3, "n_heads": 4, "hidden_dim": 40}
T5 = {"vocab_size": 31, "d_model": 24, "d_kv": 6, "d_ff": 40, "num_layers": 3, "num_heads": 4}
MARIAN = {"vocab_size": 31, "d_model": 24, "pad_token_id": 30, "decoder_start_token_id": 30}
MARIAN |= {
    f"{side}_{name}": size
    for side in ("encoder", "decoder")
    for name, size in {"layers": 3, "attention_heads": 4, "ffn_dim": 40}.items()
}
VIT = {name: value for name, value in BERT.items() if name[:3] not in ("voc", "max")}
VIT |= {"image_size": 12, "patch_size": 4, "num_labels": 9}
RANDOM = {
    "Llama": ("LlamaForCausalLM", SIZES),
    "Llama 3.1, scaled positions": ("LlamaForCausalLM", SIZES | {"rope_parameters": LLAMA3}),
    "Mistral, a window": ("MistralForCausalLM", SIZES | {"sliding_window": 4}),
    "Qwen 2": ("Qwen2ForCausalLM", SIZES),
    "Qwen 3": ("Qwen3ForCausalLM", SIZES | {"head_dim": 8, "tie_word_embeddings": True}),
    "Gemma 2, caps and windows": ("Gemma2ForCausalLM", SIZES | GEMMA2),
    "Gemma 3": ("Gemma3ForCausalLM", SIZES | GEMMA3),
    "GPT-2": ("GPT2LMHeadModel", GPT2),
    "BERT": ("BertForMaskedLM", BERT),
    "RoBERTa": ("RobertaForMaskedLM", BERT | {"pad_token_id": 1}),
    "DistilBERT": ("DistilBertForMaskedLM", DISTILBERT),
    "T5": ("T5ForConditionalGeneration", T5),
    "Flan-T5": ("T5ForConditionalGeneration", T5 | {"feed_forward_proj": "gated-gelu", "tie_word_embeddings": False}),
    "T5, encoder": ("T5EncoderModel", T5),
    "Flan-T5, encoder": ("T5EncoderModel", T5 | {"feed_forward_proj": "gated-gelu"}),
    "CLIP, text": ("CLIPTextModel", SIZES | {"hidden_act": "quick_gelu"}),
    "Marian": ("MarianMTModel", MARIAN),
    "ViT": ("ViTForImageClassification", VIT),
    "DeiT": ("DeiTForImageClassification", VIT),
}
"""{family: (class of transformers, options of its configuration)}"""


def random_model(kind: str, options: dict):
    """A random model of theirs, of which no two parts can be exchanged unseen."""
    import torch
    import transformers

    kind = getattr(transformers, kind)
    torch.manual_seed(0)
    model = kind(kind.config_class(**{"attn_implementation": "eager"} | options)).eval()
    with torch.no_grad():
        for parameter in model.parameters():
            if parameter.requires_grad:  # sinusoids are parameters, too
                parameter.add_(0.2 * torch.randn_like(parameter))
    return model


def inputs(model) -> dict[str, np.ndarray]:
    """Random inputs of a model, under their names there: tokens, or images."""
    rng = np.random.default_rng(0)
    if model.main_input_name == "pixel_values":
        return {"pixel_values": rng.standard_normal((2, 3, 12, 12)).astype(np.float32)}
    arrays = {"input_ids": rng.integers(2, 30, (2, 23))}
    return arrays | ({"decoder_input_ids": rng.integers(2, 30, (2, 13))} if model.config.is_encoder_decoder else {})


def hf_outputs(model, **arrays: np.ndarray) -> tuple[np.ndarray, list[np.ndarray]]:
    """(logits, or states of a model without a head, attention maps [B, layers, H, Q, K] of each kind)."""
    import torch

    with torch.no_grad():
        output = model(**{name: torch.tensor(x) for name, x in arrays.items()}, output_attentions=True)
    kinds = ("attentions", "encoder_attentions", "decoder_attentions", "cross_attentions")
    maps = [torch.stack(output[kind], 1).numpy() for kind in kinds if output.get(kind)]
    return (output.logits if "logits" in output else output.last_hidden_state).numpy(), maps


def weights_outputs(weights: exchange.Weights, **arrays: np.ndarray) -> tuple[np.ndarray, list[np.ndarray]]:
    """The same of our model with these weights."""
    return outputs(exchange.module_of(weights), exchange.nested(weights.arrays), **arrays)


def outputs(model, params, **arrays: np.ndarray) -> tuple[np.ndarray, list[np.ndarray]]:
    """The same of our model."""
    maps = ("encoder_attention", "decoder_attention", "cross_attention")
    if "pixel_values" in arrays:
        inputs = (arrays["pixel_values"].transpose(0, 2, 3, 1),)
    else:
        tokens = arrays["input_ids"]
        inputs = (tokens, np.full(len(tokens), tokens.shape[1]))[: 1 if isinstance(model, models.LanguageModel) else 2]
    inputs += (arrays["decoder_input_ids"],) if "decoder_input_ids" in arrays else ()
    headless = isinstance(model, models.MaskedLanguageModel) and not model.options.word_head
    call = functools.partial(model.apply, return_weights=True, method="hidden" if headless else None)
    logits, intermediates = jax.jit(call)({"params": params}, *inputs)
    return np.asarray(logits), [np.asarray(intermediates[kind]) for kind in maps if kind in intermediates]


def largest(actual, expected) -> float:
    """The largest difference, relative to the largest value."""
    assert np.shape(actual) == np.shape(expected)
    return float(abs(np.asarray(actual, np.float64) - expected).max() / abs(expected).max())


def differences(actual, expected) -> dict[str, float]:
    """Those of logits and of attention maps."""
    maps = [largest(*pair) for pair in zip(actual[1], expected[1], strict=True)]
    return {"logits": largest(actual[0], expected[0]), "maps": max(maps)}


def random_row(kind: str, options: dict) -> dict:
    """The row of a random model."""
    model = random_model(kind, options)
    with tempfile.TemporaryDirectory() as place:
        model.save_pretrained(place)
        weights = exchange.read(Path(place))
        arrays = inputs(model)
        return {"weights": "random", "parameters": model.num_parameters()} | differences(
            weights_outputs(weights, **arrays), hf_outputs(model, **arrays)
        )


# --- real models ------------------------------------------------------------------------------------------------------

TEXT = "Alice has 12 apples, gives Bob 3 of them, and asks: how many are left? They count 1, 2, 3, and so on until 9."
ODD = [
    "", " ", "  two  spaces ", "Hello, world!", "don't can't I'll we've", "na\u00efve caf\u00e9", "\u65e5\u672c\u8a9e",
    "\U0001f642\U0001f469\u200d\U0001f469\u200d\U0001f467 emoji", "tabs\tand\nnew\r\nlines\n\n\n", "a\u00a0b\u2009c",
    "e\u0301 vs \u00e9", "\ufb01 ligature", "ALLCAPS lower MiXeD", "x" * 60, '{"json": [true, null]}',
    "def f(x):\n    return x + y", "<s>a text</s>", "[MASK] and [SEP]", "\u0661\u0662\u0663 digits", "\u0639\u0631",
    "don\u2019t \u201cquote\u201d", "\u200bzero\u200dwidth", "3.14 and 1,000 and 2024", "\u00b2\u00b3\u00bd", "A\x00B",
]  # fmt: skip
"""Texts whose tokens are easily wrong."""


def smollm2(place: Path) -> Path:
    return real_models.smollm2()


def minilm(place: Path) -> Path:
    return real_models.minilm()


REAL = {
    "SmolLM2-135M-Instruct": ("4 bits", smollm2, their_decoders.outputs),
    "all-MiniLM-L6-v2": ("float32", minilm, lambda state, ids, config: their_encoders.bert(state, ids)),
    "Gemma 3 270M": ("4 bits", real_models.gemma3, their_decoders.outputs),
}
"""{name: (its weights, the path of its file or directory, what it computes in float64)}"""


def load_hf_model(path: Path):
    """(model, tokenizer) of transformers, from a directory or a .gguf file."""
    import torch
    import transformers

    directory, options = (path.parent, {"gguf_file": path.name}) if path.suffix == ".gguf" else (path, {})
    kind = transformers.AutoModelForCausalLM if options else transformers.AutoModel
    model = kind.from_pretrained(directory, **options, dtype=torch.float32, attn_implementation="eager").eval()
    return model, transformers.AutoTokenizer.from_pretrained(directory, **options)


def real_row(name: str, place: Path) -> dict:
    """The row of a real model: also against float64, and the odd texts that have the same tokens."""
    kind, find, exact = REAL[name]
    path = find(place)
    model, tokenizer = load_hf_model(path)
    stored, pretrained = tensors.read_tensors(path), attention_jax.load_pretrained(path)
    ids = pretrained.tokenizer.encode(TEXT)
    assert ids == tokenizer(TEXT)["input_ids"]
    actual = outputs(pretrained.model, pretrained.params, input_ids=np.array([ids]))
    logits, maps = exact(stored.arrays, ids, stored.config)
    row = {
        "weights": kind,
        "parameters": model.num_parameters(),
        "tokens": sum(pretrained.tokenizer.encode(text) == tokenizer(text)["input_ids"] for text in ODD),
    }
    row |= differences(actual, hf_outputs(model, input_ids=np.array([ids])))
    return row | {f"{quantity}_64": x for quantity, x in differences(actual, (logits[None], [maps[None]])).items()}


# --- the table --------------------------------------------------------------------------------------------------------


def table(rows: dict[str, dict]) -> str:
    """The table of the page."""
    power = lambda row, name: f"{row[name]:.1e}".replace("e-0", "e-") if name in row else ""
    lines = []
    for family, row in rows.items():
        size, count = row["parameters"], f"{row['tokens']} of {len(ODD)}" if "tokens" in row else ""
        size = f"{size / 1e6:.0f} M" if size > 1e6 else f"{size / 1e3:.0f} k"
        numbers = [power(row, name) for name in ("logits", "maps", "logits_64", "maps_64")]
        lines.append((family, row["weights"], size, *numbers, count))
    measured = ("logits", "maps", "logits, float64", "maps, float64", "equal tokens")
    return markdown(Table("", ("family", "weights", "size", *measured), lines, right=("size", *measured)))


def page(text: str, rows: dict[str, dict]) -> str:
    """The page with the table between its marks."""
    head, tail = text.split(START)
    return f"{head}{START}{table(rows)}\n{END}{tail.partition(END)[2]}"


def measure_families(names: list[str]) -> dict[str, dict]:
    """The rows of these families, of which those are left out whose files are not installed."""
    rows = {}
    for name in names:
        try:
            with tempfile.TemporaryDirectory() as place:
                row = random_row(*RANDOM[name]) if name in RANDOM else real_row(name, Path(place))
        except pytest.skip.Exception as skipped:
            print(f"{name}: {skipped}", file=sys.stderr)
            continue
        rows[name] = row | {"on": date.today().isoformat()}
        print(name, rows[name])
    return rows


def main(names: list[str]):
    """Measure the families, all by default, and write the record and the page."""
    warnings.simplefilter("ignore")  # theirs
    recorded = json.loads(RECORD.read_text()) if RECORD.exists() else {}
    recorded |= measure_families(names or [*REAL, *RANDOM])
    rows = {name: recorded[name] for name in (*REAL, *RANDOM) if name in recorded}
    write_atomically(RECORD, json.dumps(rows, indent=1) + "\n")
    write_atomically(PAGE, page(PAGE.read_text(encoding="utf-8"), rows))


if __name__ == "__main__":
    main(sys.argv[1:])
