"""`launch.py intervene`: what a language model says of a text with some of its activations replaced."""

from collections.abc import Callable, Sequence
from typing import Any, NamedTuple

from attention_jax.cli.command_options import Intervene
from attention_jax.errors import InputError
from attention_jax.printing import escaped

SHOWN = 5
"""Most probable tokens, and heads of a kind."""
LENS = 3
"""Most probable tokens after a layer."""
RANDOM = 32
"""Random tokens that are repeated for the scores of heads."""


class Subject(NamedTuple):
    """A language model with its vocabulary."""

    model: Any
    params: Any
    encode: Callable[[str], list[int]]
    word: Callable[[int], str]

    def tokens(self, text: str):
        """A text as tokens [1, T]; InputError for fewer than two."""
        import jax.numpy as jnp

        ids = self.encode(text)
        if len(ids) < 2:
            raise InputError(f"intervene needs a text of at least two tokens; {text!r} has {len(ids)}")
        return jnp.asarray([ids], jnp.int32)


def subject(asked: Intervene) -> Subject:
    """The language model of a run or of a pretrained model."""
    from attention_jax import load_run, models

    loaded = load_run(asked.run, trust_code=asked.trust_code)
    tokenizer = getattr(loaded, "tokenizer", None)
    model = loaded.model if hasattr(loaded, "model") else getattr(loaded.view, "model", None)
    if not isinstance(model, models.LanguageModel):
        raise InputError(
            f"intervene needs a LanguageModel, {asked.run} has a {type(model).__name__}: call attention_jax.interpret"
        )
    if tokenizer is not None:
        return Subject(model, loaded.params, tokenizer.encode, lambda number: tokenizer.decode([number]))
    view = loaded.view
    if not hasattr(view.data, "tokenizer"):
        raise InputError(f"{asked.run} was not trained on texts: call attention_jax.interpret with its tokens")
    word = lambda number: view.data.tokenizer.text(view.data.vocabulary.decode([number]))
    return Subject(model, loaded.params, lambda text: view.encode(text)[0].tolist(), word)


def print_results(asked: Intervene):
    """Print the most probable tokens and the loss before and after, the rows of a lens, and scores of heads."""
    from attention_jax import interpret

    if bool(asked.patch) != bool(asked.patch_from):
        raise InputError('patching needs both --patch SITE ... and --patch-from "another text"')
    if asked.positions and not (asked.patch or asked.ablate):
        raise InputError("--positions are those of --ablate and --patch: add one of them, or leave it out")
    one = subject(asked)
    tokens = one.tokens(asked.text)
    edits = interpret.ablate(asked.ablate, positions=asked.positions or None)
    if asked.patch:
        edits = edits | patched(one, tokens, asked)
    before = interpret.run(one.model, one.params, tokens)[0]
    after = interpret.run(one.model, one.params, tokens, set=edits)[0] if edits else None
    print("\n".join(map(escaped, answers(one, tokens, before, after))))
    if asked.lens != "none":
        print("\n".join(map(escaped, ["", *lens(one, tokens, asked.lens)])))
    if asked.heads:
        print("\n".join(["", *heads(one)]))


def patched(one: Subject, tokens, asked: Intervene) -> dict:
    """What sets the sites of --patch to their activations for --patch-from."""
    from attention_jax import interpret

    other = one.tokens(asked.patch_from)
    if other.shape != tokens.shape:
        raise InputError(
            f"--patch-from needs a text of as many tokens as the other, {tokens.shape[1]}; it has {other.shape[1]}"
        )
    source = interpret.trace(one.model, one.params, other, sites=asked.patch)
    return interpret.patch(source, positions=asked.positions or None)


def answers(one: Subject, tokens, before, after) -> list[str]:
    """The most probable next tokens, and the losses of the text, side by side."""
    columns = [top(one, logits, SHOWN) for logits in (before, after) if logits is not None]
    titles = ["next token", "after the intervention"][: len(columns)]
    rows = [titles, *zip(*columns, strict=True)]
    losses = [loss(logits, tokens) for logits in (before, after) if logits is not None]
    rows.append([f"loss {x:.3f} nats a token" for x in losses])
    return ["  ".join(cell.ljust(28) for cell in row).rstrip() for row in rows]


def top(one: Subject, logits, count: int) -> list[str]:
    """The most probable tokens after the last position, with their probabilities."""
    import jax
    import numpy as np

    probabilities = np.asarray(jax.nn.softmax(logits[0, -1].astype("float32")))
    best = np.argsort(-probabilities)[:count]
    return [f"{one.word(int(i))!r} {probabilities[i]:.3f}" for i in best]


def loss(logits, tokens) -> float:
    """The mean loss of all tokens but the first, in nats."""
    import jax
    import jax.numpy as jnp

    log_p = jax.nn.log_softmax(logits[:, :-1].astype(jnp.float32))
    return float(-jnp.take_along_axis(log_p, tokens[:, 1:, None], axis=2).mean())


def lens(one: Subject, tokens, kind: str) -> list[str]:
    """What a lens reads after the last token in each layer."""
    from attention_jax import interpret

    read = {"logit": interpret.logit_lens, "jacobian": interpret.jacobian_lens}[kind]
    found = read(one.model, one.params, tokens)
    rows = [f"{site:28}  {'  '.join(top(one, logits, LENS))}" for site, logits in found.items()]
    return [f"{kind} lens, after the last token", *rows]


def heads(one: Subject) -> list[str]:
    """The heads with the highest scores of each kind, on random tokens that are repeated."""
    import jax
    import jax.numpy as jnp
    import numpy as np

    from attention_jax import interpret

    tokens = interpret.repeated_tokens(jax.random.key(0), one.model.vocab, RANDOM)
    seen = interpret.trace(one.model, one.params, tokens, sites="decoder.*.weights")
    found = interpret.head_scores(jnp.stack(list(seen.values()), axis=1), tokens)
    return [
        f"heads by score, on {RANDOM} random tokens twice",
        *(row(kind, np.asarray(x)) for kind, x in found.items()),
    ]


def row(kind: str, scores) -> str:
    """The heads with the highest scores [layers, heads]."""
    best = sorted(((-x, at) for at, x in _enumerated(scores)))[:SHOWN]
    return f"{kind:16}  " + "  ".join(f"decoder.{layer}.head.{head} {-x:.2f}" for x, (layer, head) in best)


def _enumerated(scores) -> Sequence[tuple[tuple[int, int], float]]:
    import numpy as np

    return [(tuple(map(int, at)), float(x)) for at, x in np.ndenumerate(scores)]
