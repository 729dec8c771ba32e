"""The encoder of T5 and CLIP's text encoder: states against formulas in NumPy, and against transformers."""

import os
import re
from functools import partial
from pathlib import Path

import jax
import numpy as np
import pytest
import their_encoders
from their_weights import write_weights
from tiers import slow_but

from attention_jax import load_pretrained
from attention_jax.errors import InputError
from attention_jax.interpret import trace

pytest.importorskip("safetensors")
os.environ["HF_HUB_OFFLINE"] = "1"
FLAN = their_encoders.FLAN
TOKENS, LENGTH = np.array([[3, 1, 4, 1, 5, 9, 2, 6], [2, 7, 1, 8, 2, 0, 0, 0]]), np.array([8, 5])


def t5_states(state: dict, ids, config: dict):
    return their_encoders.t5_logits(state, ids, None, config)


FORMULAS = {
    **{
        name: (their_encoders.t5_encoder, config, t5_states)
        for name, config in {"T5": their_encoders.T5, "FLAN": FLAN, "UMT5": their_encoders.UMT5}.items()
    },
    "CLIP": (lambda config: their_encoders.clip_text(), their_encoders.CLIP, their_encoders.clip_states),
}
"""{family: (draws the tensors, config.json, states of one text)}"""


def write(directory, family: str):
    draw, config, formula = FORMULAS[family]
    state = draw(config)
    write_weights(directory / "model.safetensors", state, config)
    return state, lambda ids: formula(state, ids, config)


@pytest.mark.parametrize("family", slow_but(["T5", "CLIP"], FORMULAS))
def test_states_equal_their_formula(tmp_path, family):
    """Padding is not attended to, and without lengths there is none."""
    _, formula = write(tmp_path, family)
    encoder = load_pretrained(tmp_path)
    states = encoder.hidden(TOKENS, LENGTH)
    assert states.shape == (2, 8, 12)
    np.testing.assert_allclose(states[0], formula(TOKENS[0]), atol=2e-5)
    np.testing.assert_allclose(states[1, :5], formula(TOKENS[1, :5]), atol=2e-5)
    np.testing.assert_allclose(encoder.hidden(TOKENS)[1], formula(TOKENS[1]), atol=2e-5)


@pytest.mark.parametrize("config", [their_encoders.T5, their_encoders.FLAN], ids=["T5", "Flan-T5"])
def test_encoder_only_leaves_the_decoder_out(tmp_path, config):
    models = []
    alone, whole = their_encoders.t5_encoder(config), their_encoders.t5(config)
    whole |= {f"{stack}.embed_tokens.weight": whole["shared.weight"] for stack in ("encoder", "decoder")}  # of the hub
    for name, state in {"whole": whole, "alone": alone}.items():
        write_weights(tmp_path / name / "model.safetensors", state, config)
        models.append(load_pretrained(tmp_path / name, encoder_only=name == "whole"))
    assert models[0].config == models[1].config
    jax.tree.map(np.testing.assert_array_equal, *(model.params for model in models))


def test_clip_embeds_the_projected_state_of_the_last_token(tmp_path):
    state, formula = write(tmp_path, "CLIP")
    encoder = load_pretrained(tmp_path)
    call = {"params": encoder.params}, encoder.hidden(TOKENS, LENGTH), LENGTH
    expected = [formula(row)[n - 1] @ state["text_projection.weight"].T for row, n in zip(TOKENS, LENGTH)]
    np.testing.assert_allclose(encoder.model.apply(*call, method="embed"), expected, atol=2e-5)


@pytest.mark.parametrize("entry", ["text_config", "text_config_dict"])
def test_a_whole_clip_gives_its_text_encoder(tmp_path, capsys, entry):
    """Older files have a text_config_dict, whose entries and defaults transformers takes in place of text_config's."""
    state, formula = write(tmp_path, "CLIP")
    text = {name: value for name, value in their_encoders.CLIP.items() if name != "projection_dim"}
    config = {"model_type": "clip", "projection_dim": 7, "vision_config": {"x": 1}}
    config |= {"text_config": text | {"hidden_act": "relu"}} | {entry: text | {"gate": 1}}
    state |= {"logit_scale": np.ones(()), "vision_model.post_layernorm.weight": np.ones(3)}
    write_weights(tmp_path / "model.safetensors", state, config)
    np.testing.assert_allclose(load_pretrained(tmp_path).hidden(TOKENS)[0], formula(TOKENS[0]), atol=2e-5)
    assert "not read in config.json: vision_config, text_config.gate)" in capsys.readouterr().err


def test_states_between_layers_are_read(tmp_path):
    """As image generators read the penultimate one."""
    state, _ = write(tmp_path, "CLIP")
    encoder = load_pretrained(tmp_path)
    results = trace(encoder.model, encoder.params, TOKENS, LENGTH, sites="encoder.0.residual_out")
    expected = their_encoders.clip_states(state, TOKENS[0], their_encoders.CLIP, layers=1)
    np.testing.assert_allclose(results["encoder.0.residual_out"][0], expected, atol=2e-5)


@pytest.mark.parametrize(
    ("call", "message"),
    [
        (lambda encoder: encoder.embed(["a"]), "has no tokenizer.json, which texts need: add it, or give token ids"),
        (lambda encoder: encoder.hidden([1, 2]), r"token ids \[B, T\], got int64 \[2\]"),
        (lambda encoder: encoder.hidden(np.ones((2, 3))), r"token ids \[B, T\], got float64 \[2, 3\]"),
        (
            lambda encoder: encoder.hidden(TOKENS, TOKENS > 0),
            r"the length of each text, \[2\], from 1 to 8, got \[\[True",
        ),
        (lambda encoder: encoder.hidden(TOKENS, [8, 9]), r"\[2\], from 1 to 8, got \[8, 9\]"),
        (lambda encoder: encoder.hidden(TOKENS, [0, 8]), r"from 1 to 8, got \[0, 8\]: of a mask"),
        (lambda encoder: encoder.hidden(TOKENS, []), r"from 1 to 8, got \[\]: of a mask"),
        (lambda encoder: encoder.hidden(TOKENS, [2.9, 3.2]), r"takes integers, .* got \[2.9, 3.2\]"),
        (lambda encoder: encoder.hidden(TOKENS, [np.nan, 2]), r"takes integers, .* got \[nan, 2.0\]"),
        (lambda encoder: encoder.hidden(TOKENS, [True, True]), r"takes integers, .* got \[True, True\]: of a mask"),
        (lambda encoder: encoder.hidden(TOKENS, ["a", "b"]), r"takes integers, .* got \['a', 'b'\]"),
        (lambda encoder: encoder.hidden([[1, 2], [3]]), r"got rows of different lengths: pad the tokens"),
        (lambda encoder: jax.jit(encoder.hidden)(TOKENS), r'inside of jax.jit, call model.model.apply\(.*method="hid'),
        (
            lambda encoder: jax.jit(partial(encoder.model.apply, method="hidden"))(
                {"params": encoder.params}, TOKENS, TOKENS > 0
            ),
            r"numbers of tokens \[B\] = \[2\], got an array \[2, 8\]; of a mask",
        ),
        (lambda encoder: encoder.hidden([[3, 11]]), "tokens from 0 to 10, the vocabulary, got 3 to 11"),
        (lambda encoder: encoder.hidden([[-1, 1]]), "tokens from 0 to 10, the vocabulary, got -1 to 1"),
        (lambda encoder: encoder.hidden(np.ones((1, 10), int)), "there are 9 learned positions"),
        (lambda encoder: encoder.generate(["a"]), "is a MaskedLanguageModel, which has no continuations; it has"),
    ],
)
def test_what_it_has_not_is_one_line(tmp_path, call, message):
    write(tmp_path, "CLIP")
    with pytest.raises(InputError, match=message) as error:
        call(load_pretrained(tmp_path))
    assert "\n" not in str(error.value)


def test_what_is_no_encoder_is_one_line(tmp_path):
    write(tmp_path / "clip", "CLIP")
    with pytest.raises(InputError, match="encoder_only takes the encoder of a T5, and .* has the names of clip_text"):
        load_pretrained(tmp_path / "clip", encoder_only=True)
    whole = their_encoders.t5(their_encoders.UMT5)
    write_weights(tmp_path / "umt5" / "model.safetensors", whole, their_encoders.UMT5)
    with pytest.raises(InputError, match=r"has a decoder, too, .*: load_pretrained\(DIR, encoder_only=True\)"):
        load_pretrained(tmp_path / "umt5")
    write_weights(tmp_path / "t5" / "model.safetensors", their_encoders.t5(FLAN), FLAN)
    with pytest.raises(InputError, match="tokenizer.json; .* or take the encoder, .*encoder_only=True"):
        load_pretrained(tmp_path / "t5")
    with pytest.raises(InputError, match="encoder_only must be True or False, got 'no'"):
        load_pretrained(tmp_path / "t5", encoder_only="no")


PAGE = Path(__file__).resolve().parents[2] / "docs" / "flax_encoders.md"


@pytest.mark.slow
def test_code_of_the_page_runs(tmp_path, monkeypatch):
    """In image generators' directories: only the second CLIP of SDXL has a projection."""
    write_weights(tmp_path / "sdxl/text_encoder/model.safetensors", their_encoders.clip_text(0), their_encoders.CLIP)
    state, formula = write(tmp_path / "sdxl/text_encoder_2", "CLIP")
    _, t5_formula = write(tmp_path / "flux/text_encoder_2", "T5")
    write_weights(tmp_path / "flan-t5-small" / "model.safetensors", their_encoders.t5(FLAN), FLAN)
    monkeypatch.chdir(tmp_path)
    mask = np.arange(8) < LENGTH[:, None]
    namespace = {"tokens": TOKENS, "mask": mask, "eos": 8}
    t5, flan, clip = re.findall(r"^```python\n(.*?)^```$", PAGE.read_text(encoding="utf-8"), re.DOTALL | re.MULTILINE)
    close = partial(np.testing.assert_allclose, atol=2e-5)
    exec(t5, namespace)
    close(namespace["states"][1], t5_formula(TOKENS[1]))
    exec(flan, namespace)
    close(namespace["states"][1, :5], t5_states(their_encoders.t5(FLAN), TOKENS[1, :5], FLAN))
    exec(clip, namespace | {"tokens": TOKENS[1:]}, results := {})
    close(results["text_embeds"][0], formula(TOKENS[1])[3] @ state["text_projection.weight"].T)
    close(results["penultimate"][0], their_encoders.clip_states(state, TOKENS[1], their_encoders.CLIP, layers=1))


# --- against transformers, with random weights of published sizes -----------------------------------------------------

V1_1 = {"d_model": 512, "d_kv": 64, "d_ff": 1024, "num_layers": 8, "num_heads": 6, "feed_forward_proj": "gated-gelu"}
PUBLISHED = {
    "t5-small": ("T5EncoderModel", {"d_model": 512, "d_kv": 64, "d_ff": 2048, "num_layers": 6, "num_heads": 8}),
    "flan-t5-small": ("T5EncoderModel", V1_1 | {"tie_word_embeddings": False}),
    "flan-t5-small, whole": ("T5ForConditionalGeneration", V1_1 | {"tie_word_embeddings": False}),
    "umt5-small": ("UMT5EncoderModel", V1_1 | {"vocab_size": 32_128}),
    "clip-vit-base-patch32": ("CLIPTextModel", {}),
    "clip-vit-large-patch14": (
        "CLIPTextModelWithProjection",
        {"hidden_size": 768, "intermediate_size": 3072, "num_attention_heads": 12, "projection_dim": 768},
    ),
}
"""{model: (class of transformers, its sizes)}; umt5-small with an eighth of its vocabulary"""


@pytest.mark.slow
@pytest.mark.filterwarnings("ignore")
@pytest.mark.parametrize("name", PUBLISHED)
def test_published_sizes_agree_with_transformers(tmp_path, name):
    """States of two texts, with padding and without, to 1e-5 of the largest."""
    torch = pytest.importorskip("torch", reason="parity with transformers needs torch, of the extra `libraries`")
    transformers = pytest.importorskip("transformers", reason="parity needs transformers, of the extra `libraries`")
    kind, sizes = PUBLISHED[name]
    torch.manual_seed(0)
    kind = getattr(transformers, kind)
    model = kind(kind.config_class(**sizes, attn_implementation="eager")).eval()
    model.save_pretrained(tmp_path)
    encoder, inner = load_pretrained(tmp_path, encoder_only=name.endswith("whole")), model
    if name.endswith("whole"):
        inner = model.get_encoder()
    tokens, length = np.random.default_rng(0).integers(2, 30_000, (2, 77)), np.array([77, 12])
    is_token = np.arange(77) < length[:, None]
    with torch.no_grad():
        full, padded = (
            inner(torch.tensor(tokens), attention_mask=mask).last_hidden_state.numpy()
            for mask in (None, torch.tensor(is_token.astype(int)))
        )
    errors = [abs(np.asarray(encoder.hidden(tokens)) - full).max() / abs(full).max()]
    errors.append(abs(np.asarray(encoder.hidden(tokens, length)) - padded)[is_token].max() / abs(padded).max())
    print(name, f"{sum(x.size for x in jax.tree.leaves(encoder.params)):,} parameters", errors)
    assert max(errors) < 1e-5
    if encoder.config.projection_dim:
        tokens[:, -1] = model.config.eos_token_id
        with torch.no_grad():
            expected = model(torch.tensor(tokens)).text_embeds.numpy()
        call = {"params": encoder.params}, encoder.hidden(tokens), np.full(2, 77)
        actual = encoder.model.apply(*call, method="embed")
        assert abs(np.asarray(actual) - expected).max() / abs(expected).max() < 1e-5
