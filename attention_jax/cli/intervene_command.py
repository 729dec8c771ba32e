"""`launch.py intervene`: what a language model says of a text with some of its activations replaced."""

from collections.abc import Callable, Sequence
from typing import Any, NamedTuple

from attention_jax.cli.command_options import Intervene
from attention_jax.errors import InputError
from attention_jax.printing import escape_control

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


def load_subject(args: Intervene) -> Subject:
    """The language model of a run or of a pretrained model."""
    from attention_jax import load_run, models

    model_or_run = load_run(args.run, trust_code=args.trust_code)
    tokenizer = getattr(model_or_run, "tokenizer", None)
    model = model_or_run.model if hasattr(model_or_run, "model") else getattr(model_or_run.view, "model", None)
    if not isinstance(model, models.LanguageModel):
        raise InputError(
            f"intervene needs a LanguageModel, {args.run} has a {type(model).__name__}: call attention_jax.interpret"
        )
    if tokenizer is not None:
        return Subject(model, model_or_run.params, tokenizer.encode, lambda number: tokenizer.decode([number]))
    view = model_or_run.view
    if not hasattr(view.data, "tokenizer"):
        raise InputError(f"{args.run} was not trained on texts: call attention_jax.interpret with its tokens")
    word = lambda number: view.data.tokenizer.text(view.data.vocabulary.decode([number]))
    return Subject(model, model_or_run.params, lambda text: view.encode(text)[0].tolist(), word)


def print_results(args: Intervene):
    """Print the most probable tokens and the loss before and after, the rows of a lens, and scores of heads."""
    from attention_jax import interpret

    if bool(args.patch) != bool(args.patch_from):
        raise InputError('patching needs both --patch SITE ... and --patch-from "another text"')
    if args.positions and not (args.patch or args.ablate):
        raise InputError("--positions applies to --ablate and --patch: add one of them, or leave it out")
    subject = load_subject(args)
    tokens = subject.tokens(args.text)
    edits = interpret.ablate(args.ablate, positions=args.positions or None)
    if args.patch:
        edits = edits | patch_edits(subject, tokens, args)
    clean_logits = interpret.run(subject.model, subject.params, tokens)[0]
    edited_logits = interpret.run(subject.model, subject.params, tokens, set=edits)[0] if edits else None
    print("\n".join(map(escape_control, answer_lines(subject, tokens, clean_logits, edited_logits))))
    if args.lens != "none":
        print("\n".join(map(escape_control, ["", *lens_lines(subject, tokens, args.lens)])))
    if args.heads:
        print("\n".join(["", *head_lines(subject)]))


def patch_edits(subject: Subject, tokens, args: Intervene) -> dict:
    """Return the edits that set the sites of --patch to their activations for the text of --patch-from."""
    from attention_jax import interpret

    source = subject.tokens(args.patch_from)
    if source.shape != tokens.shape:
        raise InputError(
            f"--patch-from needs a text of as many tokens as the other, {tokens.shape[1]}; it has {source.shape[1]}"
        )
    trace = interpret.trace(subject.model, subject.params, source, sites=args.patch)
    return interpret.patch(trace, positions=args.positions or None)


def answer_lines(subject: Subject, tokens, clean_logits, edited_logits) -> list[str]:
    """The most probable next tokens, and the losses of the text, side by side."""
    columns = [top_tokens(subject, logits, SHOWN) for logits in (clean_logits, edited_logits) if logits is not None]
    titles = ["next token", "after the intervention"][: len(columns)]
    rows = [titles, *zip(*columns, strict=True)]
    losses = [mean_loss(logits, tokens) for logits in (clean_logits, edited_logits) if logits is not None]
    rows.append([f"loss {x:.3f} nats a token" for x in losses])
    return ["  ".join(cell.ljust(28) for cell in row).rstrip() for row in rows]


def top_tokens(subject: Subject, logits, count: int) -> list[str]:
    """The most probable tokens after the last position, with their probabilities."""
    import jax
    import numpy as np

    probabilities = np.asarray(jax.nn.softmax(logits[0, -1].astype("float32")))
    best = np.argsort(-probabilities)[:count]
    return [f"{subject.word(int(i))!r} {probabilities[i]:.3f}" for i in best]


def mean_loss(logits, tokens) -> float:
    """The mean loss of all tokens but the first, in nats."""
    import jax
    import jax.numpy as jnp

    log_p = jax.nn.log_softmax(logits[:, :-1].astype(jnp.float32))
    return float(-jnp.take_along_axis(log_p, tokens[:, 1:, None], axis=2).mean())


def lens_lines(subject: Subject, tokens, kind: str) -> list[str]:
    """Lines with the most probable tokens that a lens reads at the last position, one for each layer."""
    from attention_jax import interpret

    apply_lens = {"logit": interpret.logit_lens, "jacobian": interpret.jacobian_lens}[kind]
    logits_by_site = apply_lens(subject.model, subject.params, tokens)
    rows = [f"{site:28}  {'  '.join(top_tokens(subject, logits, LENS))}" for site, logits in logits_by_site.items()]
    return [f"{kind} lens, after the last token", *rows]


def head_lines(subject: Subject) -> list[str]:
    """The heads with the highest scores of each kind, on random tokens that are repeated."""
    import jax
    import jax.numpy as jnp
    import numpy as np

    from attention_jax import interpret

    tokens = interpret.repeated_tokens(jax.random.key(0), subject.model.vocab, RANDOM)
    weights = interpret.trace(subject.model, subject.params, tokens, sites="decoder.*.weights")
    scores = interpret.head_scores(jnp.stack(list(weights.values()), axis=1), tokens)
    return [
        f"heads by score, on {RANDOM} random tokens twice",
        *(format_scores(kind, np.asarray(x)) for kind, x in scores.items()),
    ]


def format_scores(kind: str, scores) -> str:
    """The heads with the highest scores [layers, heads]."""
    best = sorted(((-x, at) for at, x in _enumerate_scores(scores)))[:SHOWN]
    return f"{kind:16}  " + "  ".join(f"decoder.{layer}.head.{head} {-x:.2f}" for x, (layer, head) in best)


def _enumerate_scores(scores) -> Sequence[tuple[tuple[int, int], float]]:
    import numpy as np

    return [(tuple(map(int, at)), float(x)) for at, x in np.ndenumerate(scores)]
