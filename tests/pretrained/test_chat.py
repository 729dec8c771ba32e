"""Interventions and conversations with a pretrained model: a small Llama that is written here."""

import json
import shutil

import numpy as np
import pytest
import their_decoders as reference

import attention_jax
from attention_jax import InputError, interpret
from attention_jax.interpret import Part
from attention_jax.pretrained.chat import chat_template, render_chat

pytest.importorskip("tokenizers", reason="tokenizer.json needs tokenizers, of the extra `pretrained`")
TEXTS = ["The quick dog", "The quick brown fox jumps over the lazy dog"]
CHATML = (
    "{% for message in messages %}{{ '<|' + message['role'] + '|>' + message['content'] + '\n' }}{% endfor %}"
    "{% if add_generation_prompt %}{{ '<|assistant|>' }}{% endif %}"
)


@pytest.fixture(scope="module")
def directory(tmp_path_factory):
    place = tmp_path_factory.mktemp("models") / "llama"
    reference.directory(place)
    return place


@pytest.fixture(scope="module")
def model(directory):
    return attention_jax.load_pretrained(directory)


def test_what_is_set_is_set_in_loss_logits_and_continuations(model):
    edits = {"decoder.0.mlp_output": Part(2.0, positions=-1), "decoder.1.attention_output": Part(1.0, adds=True)}
    texts = [model.tokenizer.encode(text) for text in TEXTS]
    logits, losses = model.logits(TEXTS, set=edits), model.loss(TEXTS, set=edits)
    written, length = [*texts[0]], len(texts[0])
    last = edits | {"decoder.0.mlp_output": Part(2.0, positions=length - 1)}  # of the prompt, while it grows
    for _ in range(3):
        tokens = np.int32([[*written, 0, 0, 0][: length + 3]])  # of one length, and of one program
        [expected], _ = interpret.run(model.model, model.params, tokens, set=last)
        written.append(int(expected[len(written) - 1].argmax()))
    np.testing.assert_allclose(logits[0], expected[:length], atol=1e-5)
    for ids, text_logits, loss in zip(texts, logits, losses, strict=True):
        log_p = text_logits - np.log(np.exp(text_logits).sum(-1, keepdims=True))
        assert loss == pytest.approx(-log_p[range(len(ids) - 1), ids[1:]].mean(), rel=1e-5)
    assert model.generate(TEXTS[:1], length=3, set=edits) == [model.tokenizer.decode(written[length:])]

    edge = Part(-np.inf, heads=1, positions=-1, keys=2)
    mask = np.zeros((4, length, length), bool)
    mask[1, length - 1, 2] = True
    [cut], [by_mask] = (model.logits(TEXTS[:1], set={"decoder.1.scores": edit}) for edit in (edge, Part(-np.inf, mask)))
    np.testing.assert_allclose(cut, by_mask, atol=1e-5)
    _, activations = interpret.run(
        model.model, model.params, model.batch(TEXTS), set={"decoder.1.scores": edge}, sites="*.weights"
    )
    is_zero = (
        np.asarray(activations["decoder.1.weights"][:, 1, :, 2]) == 0
    )  # [B, Q]: by the mask of the future, and the edge
    assert [np.flatnonzero(row).tolist() for row in is_zero] == [[0, 1, len(ids) - 1] for ids in texts]

    source = interpret.trace(model.model, model.params, model.batch(TEXTS[:1]), sites="decoder.0.residual_out")
    patched = interpret.patch(source)  # all positions of the prompt, with its growing activations
    assert model.generate(TEXTS[:1], length=3, set=patched) == model.generate(TEXTS[:1], length=3)
    with pytest.raises(InputError, match="there is no site 'decoder.9.mlp_output'"):
        model.generate(TEXTS, length=2, set={"decoder.9.mlp_output": Part(0.0)})


def test_a_conversation_is_continued_by_the_template(directory, model, tmp_path):
    with pytest.raises(InputError, match="has no chat template: use generate"):
        model.chat(["Hello"])
    for number, (name, content) in enumerate(
        {
            "chat_template.jinja": CHATML,
            "chat_template.json": json.dumps({"chat_template": CHATML}),
            "tokenizer_config.json": json.dumps({"chat_template": [{"name": "default", "template": CHATML}]}),
        }.items()
    ):
        place = shutil.copytree(directory, tmp_path / str(number))
        (place / name).write_text(content)
        assert chat_template(place) == CHATML
    chat = attention_jax.load_pretrained(place)
    text = "<|system|>Be brief.\n<|user|>The quick dog?\n<|assistant|>"
    messages = [{"role": "system", "content": "Be brief."}, {"role": "user", "content": "The quick dog?"}]
    assert render_chat(CHATML, messages, {}) == text
    assert chat.chat([messages], length=3) == model.generate([text], length=3)
    with pytest.raises(InputError, match=r"chat takes a list of conversations"):
        chat.chat("Hello")
    with pytest.raises(InputError, match=r'a conversation is a text, or messages \{"role"'):
        chat.chat([[{"role": "user"}]])


def test_a_template_cannot_leave_its_sandbox():
    for template in (
        "{{ ''.__class__.__mro__ }}",
        "{{ messages.append(1) }}",
        "{{ raise_exception('no') }}",
        "{% x %}",
    ):
        with pytest.raises(InputError, match=r"^the model's chat template (cannot be applied|refuses these messages)"):
            render_chat(template + "{{ ''.__class__.__mro__[1].x() }}", "Hello", {})
