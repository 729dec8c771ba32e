"""BERT, RoBERTa and DistilBERT against Hugging Face's transformers, with small models that it draws; and the real
all-MiniLM-L6-v2 against a float64 forward pass in NumPy."""

import functools
import os

import jax
import numpy as np
import pytest

from attention_jax.weights import exchange

os.environ["HF_HUB_OFFLINE"] = "1"
SIZES = {"vocab_size": 30, "max_position_embeddings": 18, "pad_token_id": 1}
TINY = SIZES | {"hidden_size": 24, "num_hidden_layers": 2, "num_attention_heads": 3, "intermediate_size": 40}
DISTIL = SIZES | {"dim": 24, "n_layers": 2, "n_heads": 3, "hidden_dim": 40}
FAMILIES = {
    "Bert": TINY | {"hidden_act": "gelu_new", "layer_norm_eps": 1e-3},
    "Roberta": TINY | {"layer_norm_eps": 1e-5},
    "DistilBert": DISTIL | {"activation": "relu"},
}
HEADS = ("Model", "ForMaskedLM", "ForSequenceClassification")


@pytest.fixture(scope="module")
def libraries():
    torch = pytest.importorskip("torch", reason="parity with transformers needs torch==2.13.0, an extra")
    return torch, pytest.importorskip("transformers", reason="parity with Hugging Face needs transformers")


def drawn(torch, transformers, family, head):
    """A model whose parameters all differ from zero and one, which would hide a swap."""
    torch.manual_seed(0)
    more = {"num_labels": 5} if head == "ForSequenceClassification" else {}
    about = getattr(transformers, f"{family}Config")(**FAMILIES[family], **more, attn_implementation="eager")
    model = getattr(transformers, family + head)(about)
    with torch.no_grad():
        for parameter in model.parameters():
            parameter.add_(0.2 * torch.randn_like(parameter))
    return model.eval()


def relative(ours, theirs):
    theirs = theirs.detach().numpy()
    return np.abs(np.asarray(ours) - theirs).max() / np.abs(theirs).max()


@pytest.mark.filterwarnings("ignore")
@pytest.mark.parametrize("head", HEADS)
@pytest.mark.parametrize("family", FAMILIES)
def test_hidden_states_heads_and_maps(libraries, tmp_path, family, head):
    torch, transformers = libraries
    model = drawn(torch, transformers, family, head)
    model.save_pretrained(tmp_path / "there")
    weights = exchange.read(tmp_path / "there")
    rng, length = np.random.default_rng(0), np.array([13, 6])
    tokens, types = rng.integers(2, 30, (2, 13)), rng.integers(0, 2, (2, 13))
    tokens = np.where(np.arange(13) < length[:, None], tokens, 1)
    given = {"attention_mask": torch.tensor((np.arange(13) < length[:, None]).astype(np.int64))}
    given |= {"token_type_ids": torch.tensor(types)} if family == "Bert" else {}
    there = model(torch.tensor(tokens), **given, output_attentions=True, output_hidden_states=True)
    ours, params = exchange.module_of(weights), {"params": exchange.nested(weights.arrays)}
    call = (params, tokens, length, types if family == "Bert" else None)
    hidden, maps = jax.jit(functools.partial(ours.apply, method="hidden", return_weights=True))(*call)
    logits, _ = jax.jit(ours.apply)(*call)
    found = {}
    for row, count in enumerate(length):
        found[f"hidden {row}"] = relative(hidden[row, :count], there.hidden_states[-1][row, :count])
        for layer, attention in enumerate(there.attentions):
            found[f"map {row} {layer}"] = relative(
                maps["encoder_attention"][row, layer, :, :count], attention[row, :, :count]
            )
        if head == "ForMaskedLM":
            found[f"logits {row}"] = relative(logits[row, :count], there.logits[row, :count])
    if head == "ForSequenceClassification":
        found["logits"] = relative(logits, there.logits)
    if head == "Model":
        mean = [there.last_hidden_state[row, :count].mean(0) for row, count in enumerate(length)]
        found["mean"] = relative(logits, torch.stack(mean))
    print(family, head, max(found.values()))
    assert max(found.values()) < 1e-5, found

    changed = weights._replace(arrays={name: 0.9 * array for name, array in weights.arrays.items()})
    exchange.write(changed, tmp_path / "back", "safetensors", family.lower())
    again, told = type(model).from_pretrained(tmp_path / "back", output_loading_info=True)
    lacks = {name for name in told["missing_keys"] if "pooler" not in name and "decoder" not in name}
    assert not lacks and not told["unexpected_keys"]
    read = exchange.read(tmp_path / "back")
    assert read.options == weights.options
    theirs = again.eval()(torch.tensor(tokens), **given)
    theirs = theirs.last_hidden_state if head == "Model" else theirs.logits
    method = "hidden" if head == "Model" else None
    mine = jax.jit(functools.partial(ours.apply, method=method))({"params": exchange.nested(read.arrays)}, *call[1:])[0]
    rows = np.arange(13) < length[:, None]
    mine, theirs = (mine, theirs) if head == HEADS[2] else (np.asarray(mine)[rows], theirs[torch.tensor(rows)])
    assert relative(mine, theirs) < 1e-5
