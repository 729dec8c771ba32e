"""`python launch.py bench ntm`: training sequences per second of a Neural Turing Machine, ours and a plain PyTorch one.

Both: the copy task at length 20 (41 steps), one sequence at a time, LSTM controller of 100 units, one read and one
write head, memory of 128 x 20, gradients clipped by global norm, centered RMSProp with momentum 0.9.
"""

import jax
import jax.numpy as jnp
import numpy as np

from attention_jax import config
from attention_jax.config import Optim
from attention_jax.data.algorithmic import copy
from attention_jax.models.ntm import NTM
from attention_jax.train.optimizer import optimizer
from benchmarks._rounds import compare, import_torch, training

LENGTH, BITS, HIDDEN, LOCATIONS, WIDTH = 20, 8, 100, 128, 20
STEPS = 10
"""Training steps per call."""


def jax_program(inputs, targets, mask):
    """A function that makes STEPS training steps and waits for them."""
    model = NTM(config.NTMConfig(hidden_size=HIDDEN, num_locations=LOCATIONS, word_size=WIDTH), BITS)

    def loss(params, batch, rng):
        logits = model.apply(params, batch["inputs"])[0]
        cost = jax.nn.softplus(logits) - batch["targets"] * logits
        return (cost * batch["mask"][..., None]).sum(), jnp.sum(batch["weight"]), {}

    rmsprop = optimizer(Optim("rmsprop", 1e-4, momentum=0.9, b2=0.95, eps=1e-4, clip_norm=10.0), 1)
    init = jax.jit(lambda rng: model.init(rng, inputs[:1]))
    data = {"inputs": inputs, "targets": targets, "mask": mask}
    return training(loss, rmsprop, init, data, np.arange(STEPS)[:, None], STEPS)


def plain_torch(torch):
    """The same machine as a PyTorch module that loops over time: [T, I] -> logits [T, O]."""
    nn, F = torch.nn, torch.nn.functional
    heads, per_head = 2, WIDTH + 6

    class Machine(nn.Module):
        def __init__(self):
            super().__init__()
            self.controller = nn.LSTMCell(BITS + 1 + WIDTH, HIDDEN)
            self.interface = nn.Linear(HIDDEN, heads * per_head + 2 * WIDTH)
            self.output = nn.Linear(HIDDEN + WIDTH, BITS)
            self.start = nn.ParameterList(
                [nn.Parameter(0.01 * torch.randn(1, size)) for size in (HIDDEN, HIDDEN, WIDTH)]
            )

        def forward(self, inputs):
            hidden, cell, read = self.start
            memory = torch.full((LOCATIONS, WIDTH), 1e-6)
            weights = torch.zeros(heads, LOCATIONS)
            weights[:, 0] = 1.0
            outputs = []
            for x in inputs:
                hidden, cell = self.controller(torch.cat([x[None], read], 1), (hidden, cell))
                emitted = self.interface(hidden)[0]
                head, (erase, add) = (
                    emitted[: heads * per_head].view(heads, per_head),
                    emitted[heads * per_head :].view(2, WIDTH),
                )
                key, (beta, gate, gamma) = torch.tanh(head[:, :WIDTH]), head[:, WIDTH : WIDTH + 3].T[..., None]
                shifts = torch.softmax(head[:, WIDTH + 3 :], 1)
                similarity = F.cosine_similarity(key[:, None], memory[None], dim=2)
                content = torch.softmax(F.softplus(beta) * similarity, 1)
                gated = torch.sigmoid(gate) * content + (1 - torch.sigmoid(gate)) * weights
                shifted = sum(shifts[:, j, None] * gated.roll(j - 1, 1) for j in range(3))
                weights = torch.softmax((1 + F.softplus(gamma)) * torch.log(shifted + 1e-12), 1)
                written = weights[0][:, None]
                memory = memory * (1 - written * torch.sigmoid(erase)[None]) + written * torch.tanh(add)[None]
                read = weights[1:] @ memory
                outputs.append(torch.cat([hidden, read], 1))
            return self.output(torch.cat(outputs))

    return Machine()


def torch_program(torch, inputs, targets, mask):
    """A function that makes STEPS training steps with autograd and torch.optim.RMSprop."""
    model = plain_torch(torch)
    rmsprop = torch.optim.RMSprop(model.parameters(), 1e-4, alpha=0.95, eps=1e-4, momentum=0.9, centered=True)
    inputs, targets, mask = (torch.from_numpy(np.array(x)) for x in (inputs, targets, mask))

    def run():
        for row in range(STEPS):
            rmsprop.zero_grad()
            cost = torch.nn.functional.binary_cross_entropy_with_logits(
                model(inputs[row]), targets[row], reduction="none"
            )
            (cost * mask[row][:, None]).sum().backward()
            torch.nn.utils.clip_grad_norm_(model.parameters(), 10.0)
            rmsprop.step()

    return run


def main(anyway: bool = False) -> dict[str, list[float]]:
    """Measure, print the table, and return the seconds per sequence of every round.

    Args:
        anyway: Print ratios even where other processes or the spread of the rounds make them meaningless.
    """
    torch = import_torch()
    data = copy(np.random.default_rng(0), STEPS, LENGTH, LENGTH, BITS)
    arrays = data.inputs, data.targets.astype(np.float32), data.mask.astype(np.float32)
    programs = {
        f"torch {torch.__version__.split('+')[0]}": torch_program(torch, *arrays),
        "attention_jax": jax_program(*map(jnp.asarray, arrays)),
    }
    title = f"NTM, training on one sequence of {2 * LENGTH + 1} steps"
    return compare(title, programs, 1, "sequences", steps=STEPS, rounds=5, anyway=anyway)
