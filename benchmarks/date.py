"""`python launch.py bench date`: one training step of the date attention model, ours and a straightforward PyTorch one.

Both: 128 examples of 29 + 10 steps, LSTM of 256 units, vocabulary 59, dot-product attention,
  gradients clipped to norm 5, Adam.
"""

import jax
import jax.numpy as jnp
import numpy as np

from attention_jax import config
from attention_jax.config import Optim
from attention_jax.models.book import AttentionSeq2seq
from attention_jax.ops.losses import masked_cross_entropy
from attention_jax.train.optimizer import optimizer
from benchmarks._rounds import compare, import_torch, training

BATCH, SOURCE, TARGET, VOCAB, HIDDEN, EMBED = 128, 29, 11, 59, 256, 16
STEPS = 16
"""Training steps per call."""


def jax_program(source, target):
    """A function that makes STEPS training steps and waits for them."""
    model = AttentionSeq2seq(config.AttentionSeq2seqConfig(hidden_size=HIDDEN, embed_size=EMBED), VOCAB, VOCAB)
    length = jnp.full(BATCH, SOURCE)

    def loss(params, batch, rng):
        source, target = batch["source"], batch["target"]
        memory = model.apply(params, source, length, method="encode")
        hidden, _ = model.apply(params, memory, target[:, :-1], method="decode")
        kernel, bias = model.apply(params, method="output")
        total, count = masked_cross_entropy(
            hidden @ kernel + bias[None, None], target[:, 1:], jnp.ones((BATCH, TARGET - 1))
        )
        return total, count, {}

    init = jax.jit(lambda rng: model.init(rng, source, length, target))
    data = {"source": source, "target": target}
    return training(loss, optimizer(Optim(clip_norm=5.0), 1), init, data, np.arange(BATCH), STEPS)


def torch_program(torch, source, target):
    """The same step with nn.LSTM, autograd and torch.optim.Adam."""

    class Model(torch.nn.Module):
        def __init__(self):
            super().__init__()
            self.embed_source, self.embed_target = torch.nn.Embedding(VOCAB, EMBED), torch.nn.Embedding(VOCAB, EMBED)
            self.encoder = torch.nn.LSTM(EMBED, HIDDEN, batch_first=True)
            self.decoder = torch.nn.LSTM(EMBED, HIDDEN, batch_first=True)
            self.output = torch.nn.Linear(2 * HIDDEN, VOCAB)

        def forward(self, source, target):
            memory, (h, c) = self.encoder(self.embed_source(source))
            hidden, _ = self.decoder(self.embed_target(target), (h, torch.zeros_like(c)))
            weights = torch.softmax(hidden @ memory.transpose(1, 2), dim=-1)
            return self.output(torch.cat([weights @ memory, hidden], dim=-1))

    model = Model()
    adam = torch.optim.Adam(model.parameters(), lr=1e-3)
    source, target = torch.from_numpy(np.array(source)).long(), torch.from_numpy(np.array(target)).long()

    def run():
        for _ in range(STEPS):
            adam.zero_grad()
            logits = model(source, target[:, :-1])
            torch.nn.functional.cross_entropy(logits.reshape(-1, VOCAB), target[:, 1:].reshape(-1)).backward()
            torch.nn.utils.clip_grad_norm_(model.parameters(), 5.0)
            adam.step()

    return run


def main(anyway: bool = False) -> dict[str, list[float]]:
    """Measure, print the table, and return the seconds per step of every round.

    Args:
        anyway: Print ratios even where other processes or the spread of the rounds make them meaningless.
    """
    torch = import_torch()
    draw = np.random.default_rng(0).integers
    source, target = jnp.asarray(draw(VOCAB, size=(BATCH, SOURCE))), jnp.asarray(draw(VOCAB, size=(BATCH, TARGET)))
    programs = {
        f"torch {torch.__version__.split('+')[0]}": torch_program(torch, source, target),
        "attention_jax": jax_program(source, target),
    }
    title = f"date attention, one training step of {BATCH} examples"
    return compare(title, programs, BATCH, "examples", steps=STEPS, rounds=12, anyway=anyway)
