"""`python launch.py bench translation`: one training step of the Bahdanau model, ours and a plain PyTorch one.

Both: 128 pairs of 16 + 16 tokens, bidirectional GRU encoder and GRU decoder of 512 units, embeddings of 256,
additive attention with the previous state as query, maxout readout of 512, vocabularies of 8,000, gradients
clipped to norm 1, Adam. Then both again with products in bfloat16: ours with --train.matmul-precision
bfloat16, theirs under torch.autocast.
"""

import jax
import jax.numpy as jnp
import numpy as np

from attention_jax import config
from attention_jax.config import Optim
from attention_jax.models.bahdanau import Bahdanau
from attention_jax.ops.losses import linear_cross_entropy
from attention_jax.train.optimizer import optimizer
from benchmarks._rounds import compare, import_torch, training

BATCH, LENGTH, VOCAB, HIDDEN, EMBED = 128, 16, 8_000, 512, 256
STEPS = 2
"""Training steps per call."""


def jax_program(source, target, matmul_precision: str = "default"):
    """A function that makes STEPS training steps and waits for them."""
    model = Bahdanau(config.BahdanauConfig(HIDDEN, EMBED, readout_size=HIDDEN), VOCAB, VOCAB)
    length = jnp.full(BATCH, LENGTH)

    def loss(params, batch, rng):
        target = batch["target"]
        memory = model.apply(params, batch["source"], length, method="encode")
        hidden, _ = model.apply(params, memory, target[:, :-1], method="decode")
        hidden, labels = hidden.reshape(-1, hidden.shape[-1]), target[:, 1:].reshape(-1)
        return *linear_cross_entropy(hidden, *model.apply(params, method="output"), labels, jnp.ones(labels.shape)), {}

    adam = optimizer(Optim(clip_norm=1.0), 1)
    init = jax.jit(lambda rng: model.init(rng, source, length, target))
    data = {"source": source, "target": target}
    loss_flops = 6 * BATCH * LENGTH * HIDDEN * VOCAB  # logits, and the gradients of both factors
    return training(loss, adam, init, data, np.arange(BATCH), STEPS, matmul_precision, loss_flops)


def torch_program(torch, source, target, rounded: bool = False):
    """The same step with nn.GRU, nn.GRUCell, autograd and torch.optim.Adam; `rounded` is
    torch's mixed precision, bfloat16."""
    nn, softmax = torch.nn, torch.nn.functional.softmax

    class Model(nn.Module):
        def __init__(self):
            super().__init__()
            self.embed_source, self.embed_target = nn.Embedding(VOCAB, EMBED), nn.Embedding(VOCAB, EMBED)
            self.encoder = nn.GRU(EMBED, HIDDEN, batch_first=True, bidirectional=True)
            self.bridge = nn.Linear(2 * HIDDEN, HIDDEN)
            self.key, self.query = nn.Linear(2 * HIDDEN, HIDDEN, bias=False), nn.Linear(HIDDEN, HIDDEN, bias=False)
            self.vector = nn.Linear(HIDDEN, 1, bias=False)
            self.cell = nn.GRUCell(EMBED + 2 * HIDDEN, HIDDEN)
            self.readout = nn.Linear(3 * HIDDEN + EMBED, 2 * HIDDEN)
            self.output = nn.Linear(HIDDEN, VOCAB)

        def forward(self, source, target):
            memory, last = self.encoder(self.embed_source(source))
            state = torch.tanh(self.bridge(torch.cat([last[0], last[1]], dim=-1)))
            keys, embedded, readouts = self.key(memory), self.embed_target(target), []
            for t in range(target.shape[1]):
                scores = self.vector(torch.tanh(self.query(state)[:, None] + keys))
                context = (softmax(scores, dim=1).transpose(1, 2) @ memory)[:, 0]
                state = self.cell(torch.cat([embedded[:, t], context], dim=-1), state)
                readouts.append(torch.cat([state, context, embedded[:, t]], dim=-1))
            wide = self.readout(torch.stack(readouts, dim=1))
            return self.output(wide.unflatten(-1, (HIDDEN, 2)).amax(dim=-1))

    model = Model()
    adam = torch.optim.Adam(model.parameters(), lr=1e-3)
    source, target = torch.from_numpy(np.array(source)).long(), torch.from_numpy(np.array(target)).long()

    def run():
        for _ in range(STEPS):
            adam.zero_grad()
            with torch.autocast("cpu", torch.bfloat16, enabled=rounded):
                logits = model(source, target[:, :-1])
            torch.nn.functional.cross_entropy(logits.float().reshape(-1, VOCAB), target[:, 1:].reshape(-1)).backward()
            torch.nn.utils.clip_grad_norm_(model.parameters(), 1.0)
            adam.step()

    return run


def main(anyway: bool = False) -> dict[str, list[float]]:
    """Measure, print the table, and return the seconds per step of every round.

    Args:
        anyway: Print ratios even where other processes or the spread of the rounds make them meaningless.
    """
    torch = import_torch()
    draw = np.random.default_rng(0).integers
    source, target = jnp.asarray(draw(VOCAB, size=(BATCH, LENGTH))), jnp.asarray(draw(VOCAB, size=(BATCH, LENGTH + 1)))
    programs = {
        f"torch {torch.__version__.split('+')[0]}": torch_program(torch, source, target),
        "attention_jax": jax_program(source, target),
    }
    programs |= {
        "torch, bfloat16": torch_program(torch, source, target, True),
        "ours, bfloat16": jax_program(source, target, "bfloat16"),
    }
    title = f"Bahdanau model, one training step of {BATCH} pairs"
    return compare(title, programs, BATCH, "pairs", steps=STEPS, rounds=5, anyway=anyway)
