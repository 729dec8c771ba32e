"""What `bench card` measures beside attention, each function in a process of its own, and the sizes of everything."""

import math
import os
import re
import signal
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any, NamedTuple

from benchmarks._attention_cell import seconds

import jax  # isort: skip
import jax.numpy as jnp  # isort: skip
import numpy as np  # isort: skip

from attention_jax import config
from attention_jax.models.language_model import LanguageModel
from attention_jax.models.vit import ViT
from attention_jax.ops.losses import linear_cross_entropy, masked_cross_entropy
from attention_jax.sampling import generate
from attention_jax.train.optimizer import optimizer
from attention_jax.train.placement import Program
from attention_jax.train.step import init_state
from benchmarks._attention_check import kernel_error
from benchmarks._rounds import import_torch

ROOT = Path(__file__).resolve().parents[1]
DTYPE = "bfloat16"


class Sizes(NamedTuple):
    """The sizes of all measurements, those of a card by default."""

    matmul: int = 8192
    copied: int = 2**28
    """Numbers in float32."""
    cases: tuple[str, ...] = (
        "causal",
        "window",
        "gaussian",
        "alibi",
        "soft_cap",
        "sigmoid",
        "sparsemax",
        "entmax",
        "l1",
        "additive",
    )
    """Of attention."""
    calls: tuple[tuple[int, int], ...] = ((8, 2048), (2, 8192))
    """(batch, length) of attention."""
    heads: int = 16
    width: int = 64
    """Of a head."""
    more_widths: tuple[int, ...] = (72, 128)
    """Further head sizes of cuDNN."""
    gpt2: tuple[int, int, int] = (12, 768, 12)
    """Layers, width and heads; the feed-forward layers are four times as wide."""
    vocabulary: int = 50_257
    """Of GPT-2."""
    tokens: tuple[int, int] = (16, 1024)
    """Batch and length of GPT-2's training."""
    vit: tuple[int, int, int] = (12, 384, 6)
    images: tuple[int, int] = (256, 224)
    """Batch, and pixels of a side."""
    llama: tuple[int, int, int, int, int, int] = (30, 576, 9, 3, 1536, 49_152)
    """Layers, width, heads, heads of keys and values, width of the feed-forward layers, and vocabulary."""
    written: int = 128
    """Tokens that are decoded after a prompt of PROMPT."""
    launch: tuple[str, ...] = ()
    """Arguments of launch.py; without any it trains the default experiment."""
    tests_seconds: float = 60.0


FULL = Sizes()
TINY = Sizes(
    matmul=128, copied=2**10, cases=("causal", "alibi"), calls=((2, 32),), heads=2, width=8, more_widths=(),
    gpt2=(1, 16, 2), vocabulary=64, tokens=(2, 32), vit=(1, 16, 2), images=(2, 32), llama=(1, 16, 2, 1, 32, 64),
    written=4, launch=("list",),
)  # fmt: skip
PROMPT = 16


def rates(sizes: Sizes) -> dict:
    """Matrix products in bfloat16 and float32, and copies: upper limits of everything else."""
    x = jax.random.normal(jax.random.key(0), (sizes.matmul, sizes.matmul))
    product, copy = jax.jit(lambda x: x @ x), jax.jit(lambda x: x + 1)
    typical = lambda function, x: statistics.median(seconds(lambda: function(x), jax.block_until_ready))
    flops = {f"{dtype}_flops": 2 * sizes.matmul**3 / typical(product, x.astype(dtype)) for dtype in (DTYPE, "float32")}
    numbers = jnp.ones(sizes.copied)
    return flops | {"copy_bytes": 2 * numbers.nbytes / typical(copy, numbers)}  # read and written, per second


def kernel(name: str, tokens: int) -> dict:
    """How far a generated kernel is from "plain"; a failure where rounding does not explain it."""
    error = kernel_error(name, tokens)
    if not error < 1e-4:
        raise RuntimeError(f"off by {error:.1e} of the largest value")
    return {"error": error}


def gpu_tests(sizes: Sizes) -> dict:
    """The counts of `pytest -m gpu`, which is interrupted when its time is over."""
    command = [sys.executable, "-m", "pytest", "-m", "gpu", "tests/test_gpu.py"]
    with subprocess.Popen(command, cwd=ROOT, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True) as process:
        try:
            output, finished = process.communicate(timeout=sizes.tests_seconds)[0], True
        except subprocess.TimeoutExpired:
            process.send_signal(signal.SIGINT)
            output, finished = process.communicate()[0], False
    last = ([line for line in output.splitlines() if re.search(r" in \d+\.\d+s", line)] or [output.strip()])[-1]
    counts = {word: int(count) for count, word in re.findall(r"(\d+) (passed|failed|skipped|error)", last)}
    if not counts or (jax.default_backend() == "gpu" and not counts.get("passed")):
        raise RuntimeError(f"no test has passed: {last[-100:]}")
    failures = re.findall(r"^(?:FAILED|ERROR) (?:\S+::)?(\S+)", output, re.M)
    return {"counts": counts, "finished": finished, "failures": failures}


def compile_timed(function, *arguments) -> tuple[Any, dict]:
    """Compile a jitted function without JAX's cache: the program, its seconds and its temporary bytes."""
    jax.config.update("jax_enable_compilation_cache", False)
    begin = time.perf_counter()
    compiled = function.lower(*arguments).compile()
    took = time.perf_counter() - begin
    return compiled, {"compile_seconds": took, "temporary_bytes": compiled.memory_analysis().temp_size_in_bytes}


def draw(sizes: Sizes, model: str) -> dict[str, np.ndarray]:
    """Tokens [B, T + 1], or images [B, S, S, 3] and labels [B]."""
    rng = np.random.default_rng(0)
    if model == "gpt2":
        batch, length = sizes.tokens
        return {"tokens": rng.integers(sizes.vocabulary, size=(batch, length + 1)).astype(np.int32)}
    batch, pixels = sizes.images
    images = rng.standard_normal((batch, pixels, pixels, 3), np.float32)
    return {"image": images, "label": rng.integers(1000, size=batch).astype(np.int32)}


def train(sizes: Sizes, model: str) -> dict:
    """A training step of this package: AdamW, no dropout."""
    data, adamw = draw(sizes, model), optimizer(config.Optim("adamw"), 1)
    loss, init = (gpt2 if model == "gpt2" else vit)(sizes, data)
    program, rows = Program(loss, adamw), len(next(iter(data.values())))
    state = program.put_state(init_state(init, adamw, 0))
    batch = jax.device_put((data, np.arange(rows, dtype=np.int32)[None], np.ones((1, rows), np.float32)))
    compiled, row = compile_timed(program.compiled, state, *batch)

    def step():
        nonlocal state
        state, metrics = compiled(state, *batch)
        return metrics

    return row | {"step_seconds": seconds(step, jax.block_until_ready), "examples": examples(sizes, model)}


def examples(sizes: Sizes, model: str) -> int:
    """Tokens or images of a step."""
    return math.prod(sizes.tokens) if model == "gpt2" else sizes.images[0]


def gpt2(sizes: Sizes, data: dict) -> tuple[Callable, Callable]:
    """The loss and the initialization of GPT-2 (Radford et al. 2019)."""
    layers, width, heads = sizes.gpt2
    options = config.LanguageModelConfig(
        layers, width, heads, 4 * width, activation="gelu_tanh", position_embedding="learned", scale_embeddings=False,
        output_bias=False, max_length=sizes.tokens[1], dropout=0.0, attention_dropout=0.0, dtype=DTYPE,
    )  # fmt: skip
    model = LanguageModel(options, sizes.vocabulary)

    def loss(params, batch, rng):
        tokens, target = batch["tokens"][:, :-1], batch["tokens"][:, 1:].reshape(-1)  # [B, T], [B T]
        run = lambda module: (module.hidden(tokens, train=True)[0], module.output())
        hidden, output = model.apply(params, method=run)
        hidden = hidden.reshape(-1, width)  # [B T, D]
        return *linear_cross_entropy(hidden, *output, target, jnp.ones_like(target, bool)), {}

    return loss, lambda rng: model.init(rng, data["tokens"][:1, :-1])


def vit(sizes: Sizes, data: dict) -> tuple[Callable, Callable]:
    """The loss and the initialization of ViT-S/16 (Dosovitskiy et al. 2021; Touvron et al. 2021)."""
    layers, width, heads = sizes.vit
    options = config.ViTConfig(16, width, 4 * width, layers, heads, dtype=DTYPE)
    model = ViT(options, 1000, sizes.images[1])

    def loss(params, batch, rng):
        logits, _ = model.apply(params, batch["image"], train=True)
        return *masked_cross_entropy(logits, batch["label"], batch["weight"]), {}

    return loss, lambda rng: model.init(rng, data["image"][:1])


def train_transformers(sizes: Sizes, model: str) -> dict:
    """The same step by transformers: torch.compile (not on a CPU), autocast to bfloat16, fused AdamW, no dropout."""
    torch, device, wait = torch_device()
    import transformers

    data = {name: torch.from_numpy(x).to(device) for name, x in draw(sizes, model).items()}
    if model == "gpt2":
        layers, width, heads = sizes.gpt2
        size = {"n_layer": layers, "n_embd": width, "n_head": heads, "n_positions": sizes.tokens[1]}
        none = dict.fromkeys(("resid_pdrop", "embd_pdrop", "attn_pdrop"), 0.0)
        options = transformers.GPT2Config(vocab_size=sizes.vocabulary, use_cache=False, **size, **none)
        network, tokens = transformers.GPT2LMHeadModel(options), data["tokens"][:, :-1].long()
        batch = {"input_ids": tokens, "labels": tokens}
    else:
        layers, width, heads = sizes.vit
        size = {"num_hidden_layers": layers, "hidden_size": width, "num_attention_heads": heads}
        none = dict.fromkeys(("hidden_dropout_prob", "attention_probs_dropout_prob"), 0.0)
        options = transformers.ViTConfig(
            intermediate_size=4 * width, image_size=sizes.images[1], num_labels=1000, **size, **none
        )
        network = transformers.ViTForImageClassification(options)
        batch = {"pixel_values": data["image"].permute(0, 3, 1, 2).contiguous(), "labels": data["label"].long()}
    network = network.to(device).train()
    adamw, compiled = (
        torch.optim.AdamW(network.parameters(), lr=1e-3, fused=True),
        torch.compile(network, disable=device == "cpu"),
    )

    def step():
        adamw.zero_grad(set_to_none=True)
        with torch.autocast(device, torch.bfloat16):
            loss = compiled(**batch).loss
        loss.backward()
        adamw.step()

    begin = time.perf_counter()
    wait(step())
    row = {"compile_seconds": time.perf_counter() - begin}
    return row | {"step_seconds": seconds(step, wait), "examples": examples(sizes, model)}


def torch_device() -> tuple:
    """PyTorch, its device where JAX has its own, and a function that waits for it."""
    torch = import_torch()
    if jax.default_backend() == "cpu":
        return torch, "cpu", lambda _: None
    return torch, "cuda", lambda _: torch.cuda.synchronize()


def llama(sizes: Sizes) -> LanguageModel:
    """A Llama of SmolLM2-135M's shape."""
    layers, width, heads, groups, hidden, vocabulary = sizes.llama
    options = config.LanguageModelConfig(
        layers, width, heads, hidden, num_kv_heads=groups, norm_layer="rms", mlp_layer="swiglu", use_bias=False,
        scale_embeddings=False, output_bias=False, dropout=0.0, attention_dropout=0.0, dtype=DTYPE,
    )  # fmt: skip
    return LanguageModel(options, vocabulary)


def decode(sizes: Sizes, batch: int) -> dict:
    """Greedy decoding of the Llama, all in bfloat16."""
    model = llama(sizes)
    prompt, lengths = jnp.ones((batch, PROMPT), jnp.int32), jnp.full(batch, PROMPT)
    init = lambda rng: jax.tree.map(lambda x: x.astype(DTYPE), model.init(rng, prompt[:1])["params"])
    params = jax.jit(init)(jax.random.key(0))
    write = lambda *inputs: generate(model, *inputs, sizes.written, temperature=0.0)
    compiled, row = compile_timed(jax.jit(write), params, prompt, lengths)
    times = seconds(lambda: compiled(params, prompt, lengths), jax.block_until_ready)
    return row | {"step_seconds": times, "examples": batch * sizes.written}


def decode_transformers(sizes: Sizes, batch: int, cache: str) -> dict:
    """The same by `generate` of transformers, with its dynamic cache or the static one, for which it compiles."""
    torch, device, wait = torch_device()
    import transformers

    layers, width, heads, groups, hidden, vocabulary = sizes.llama
    options = transformers.LlamaConfig(
        vocab_size=vocabulary, num_hidden_layers=layers, hidden_size=width, num_attention_heads=heads,
        num_key_value_heads=groups, intermediate_size=hidden, tie_word_embeddings=True, eos_token_id=None,
    )  # fmt: skip
    model = transformers.LlamaForCausalLM(options).to(device, torch.bfloat16).eval()
    prompt = torch.ones((batch, PROMPT), dtype=torch.long, device=device)
    call = {"max_new_tokens": sizes.written, "min_new_tokens": sizes.written, "do_sample": False, "pad_token_id": 0}
    call |= {"attention_mask": torch.ones_like(prompt)} | ({"cache_implementation": cache} if cache == "static" else {})
    write = lambda: model.generate(prompt, **call)
    begin = time.perf_counter()
    wait(write())
    row = {"compile_seconds": time.perf_counter() - begin}
    return row | {"step_seconds": seconds(write, wait), "examples": batch * sizes.written}


def launch(sizes: Sizes) -> dict:
    """Seconds of `python launch.py` in an empty directory, without compiled programs; its data may be there already."""
    with tempfile.TemporaryDirectory() as directory:
        environment = os.environ | {"JAX_ENABLE_COMPILATION_CACHE": "false"}
        command, begin = [sys.executable, str(ROOT / "launch.py"), *sizes.launch], time.perf_counter()
        completed = subprocess.run(command, cwd=directory, env=environment, capture_output=True, text=True, check=False)
        if completed.returncode:
            raise RuntimeError((completed.stderr.strip().splitlines() or ["no message"])[-1])
        return {"step_seconds": [time.perf_counter() - begin]}
