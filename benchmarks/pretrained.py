"""`python launch.py bench pretrained --file MODEL.gguf`: a pretrained decoder here and in transformers (torch, SDPA).

Float32 on all cores: the logits of 512 tokens; the prefill of 512, which fills the cache and writes the logits of the
last one; the gradient of the loss of 256; and 64 tokens written greedily after 16. The tokens are random numbers. Needs
`pip install transformers accelerate gguf` and PyTorch.
"""

import functools
from pathlib import Path

import jax
import jax.numpy as jnp
import numpy as np

from attention_jax import config, load_pretrained
from attention_jax.errors import InputError
from attention_jax.sampling import generate
from attention_jax.tasks.objectives import readout_loss
from benchmarks._rounds import compare, import_torch

TOKENS, TRAINED, PROMPT, WRITTEN = 512, 256, 16, 64
UNITS = {"forward": TOKENS, "prefill": TOKENS, "gradient": TRAINED, "generate": WRITTEN}


def jax_programs(path: str, tokens: np.ndarray) -> dict:
    """Functions without arguments, by what they measure."""
    pretrained = load_pretrained(path)
    model, params, ids = pretrained.model, pretrained.params, jnp.asarray(tokens, jnp.int32)  # [1, T]

    def loss(params, x):
        hidden, (kernel, bias) = model.apply(
            {"params": params}, method=lambda module: (module.hidden(x[:, :-1])[0], module.output())
        )
        target = x[:, 1:].reshape(-1)  # [B T]
        hidden = hidden.reshape(-1, hidden.shape[-1])  # [B T, D]
        total, count = readout_loss(config.Train(), hidden, kernel, bias, target, jnp.ones_like(target, bool))[:2]
        return total / count

    programs = {
        "forward": lambda params: model.apply({"params": params}, ids)[0],
        "prefill": lambda params: model.apply(
            {"params": params}, ids, jnp.array([TOKENS]), TOKENS + WRITTEN, method="prefill"
        ),
        "gradient": lambda params: jax.value_and_grad(loss)(params, ids[:, : TRAINED + 1]),
        "generate": lambda params: generate(
            model, params, ids[:, :PROMPT], jnp.array([PROMPT]), WRITTEN, eos=None, temperature=0.0
        ),
    }
    waiting = lambda program: lambda: jax.block_until_ready(program(params))
    return {name: waiting(jax.jit(program)) for name, program in programs.items()}


def torch_programs(torch, path: str, tokens: np.ndarray) -> dict:
    """The same in transformers."""
    try:
        import transformers
    except ImportError:
        raise InputError("this comparison needs transformers: pip install transformers accelerate gguf") from None
    file = Path(path)
    place = (file.parent, {"gguf_file": file.name}) if file.suffix == ".gguf" else (file, {})
    load = functools.partial(transformers.AutoModelForCausalLM.from_pretrained, place[0], **place[1])
    model, ids = load(dtype=torch.float32, attn_implementation="sdpa").eval(), torch.tensor(tokens)
    prompt = ids[:, :PROMPT]

    def gradient():
        model.zero_grad()
        model(ids[:, : TRAINED + 1], labels=ids[:, : TRAINED + 1], use_cache=False).loss.backward()

    writing = {"max_new_tokens": WRITTEN, "min_new_tokens": WRITTEN, "do_sample": False, "pad_token_id": 0}
    return {
        "forward": torch.no_grad()(lambda: model(ids, use_cache=False)),
        "prefill": torch.no_grad()(lambda: model(ids, use_cache=True, logits_to_keep=1)),
        "gradient": gradient,
        "generate": lambda: model.generate(prompt, attention_mask=torch.ones_like(prompt), **writing),
    }


def main(file: str, anyway: bool = False) -> dict[str, dict[str, list[float]]]:
    """Measure, print the tables, and return the seconds of every round.

    Args:
        file: A .gguf file, or a directory as transformers writes it.
        anyway: Print ratios even where other processes or the spread of the rounds make them meaningless.
    """
    torch = import_torch()
    tokens = np.random.default_rng(0).integers(100, 10_000, (1, TOKENS))
    jax_calls, torch_calls, seconds = jax_programs(file, tokens), torch_programs(torch, file, tokens), {}
    for name, units in UNITS.items():
        programs = {f"torch {torch.__version__.split('+')[0]}": torch_calls[name], "attention_jax": jax_calls[name]}
        seconds[name] = compare(f"{name}, {units} tokens", programs, units, "tokens", rounds=5, anyway=anyway)
        print()
    return seconds
