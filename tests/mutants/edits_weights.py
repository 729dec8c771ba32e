"""Mutants of attention_jax/weights."""

from mutants.mutant import Mutant

EXCHANGE = ("tests/weights/test_exchange.py", "tests/weights/test_libraries.py")

MUTANTS = (
    Mutant(
        "qkv-of-timm-interleaved-by-head",
        "attention_jax/weights/vit_names.py",
        'Row("blocks.*.attn.qkv.weight", "(s h e) d"',
        'Row("blocks.*.attn.qkv.weight", "(h s e) d"',
        EXCHANGE,
    ),
    Mutant(
        "patches-of-timm-transposed",
        "attention_jax/weights/vit_names.py",
        'Row("patch_embed.proj.weight", "d c p q"',
        'Row("patch_embed.proj.weight", "d c q p"',
        EXCHANGE,
    ),
    Mutant(
        "query-and-key-of-hugging-face-swapped",
        "attention_jax/weights/vit_names.py",
        'Row(f"{THEIR_ATTENTION}.query.weight", "(h e) d", f"{ATTENTION}/query/kernel"',
        'Row(f"{THEIR_ATTENTION}.query.weight", "(e h) d", f"{ATTENTION}/query/kernel"',
        EXCHANGE,
    ),
    Mutant(
        "marian-positions-not-interleaved",
        "attention_jax/weights/marian_names.py",
        'THERE, HERE = "(t f)", "(f t)"',
        'THERE, HERE = "(f t)", "(f t)"',
        ("tests/views/test_huggingface.py", *EXCHANGE),
    ),
    Mutant(
        "export-transposed",
        "attention_jax/weights/layouts.py",
        "rearrange(array, row.param_layout, row.tensor_layout, sizes)",
        "rearrange(array, row.param_layout, row.tensor_layout, sizes).T",
        EXCHANGE,
    ),
    Mutant(
        "color-patches-of-gray-weights-not-divided",
        "attention_jax/weights/adopt.py",
        "kernel = np.repeat(kernel, new_channels, axis=1) / new_channels",
        "kernel = np.repeat(kernel, new_channels, axis=1)",
        ("tests/weights/test_adopt.py",),
    ),
    Mutant(
        "class-position-resampled-with-the-grid",
        "attention_jax/weights/adopt.py",
        "np.concatenate([old[:prefix], interpolate(jnp.asarray(old[prefix:]), new_side)])",
        "np.concatenate([old[-1:].repeat(prefix, 0), interpolate(jnp.asarray(old[prefix:]), new_side)])",
        ("tests/weights/test_adopt.py",),
    ),
    Mutant(
        "training-options-of-the-weights-kept",
        "attention_jax/weights/adopt.py",
        "return dataclasses.replace(weights.options, **training_options)",
        "return weights.options",
        (
            "tests/weights/test_adopt.py::test_training_options_are_those_of_experiment",
            "tests/weights/test_adopt.py",
        ),
    ),
    Mutant(
        "pickle-in-a-zip-is-opened",
        "attention_jax/weights/tensors.py",
        'or any(name.endswith(".pkl") for name in names)',
        "",
        ("tests/weights/test_tensors.py",),
    ),
    Mutant(
        "gpt2-settings-not-checked",
        "attention_jax/weights/gpt2_names.py",
        'facts.require("GPT-2", REQUIRED)',
        'facts.require("GPT-2", {})',
        (
            "tests/weights/test_exchange.py::test_a_gpt2_that_computes_otherwise_is_refused",
            "tests/weights/test_exchange.py",
            "tests/views/test_huggingface.py",
            "tests/weights/test_libraries.py",
        ),
    ),
    Mutant(
        "program-pads-the-source-with-tokens",
        "attention_jax/weights/stablehlo.py",
        'recipe = text_recipe(encode, "source", source, begin=begin, end=True)',
        'recipe = text_recipe(encode, "source", source, begin=begin)',
        ("tests/weights/test_stablehlo.py",),
    ),
    Mutant(
        "gguf-norm-of-gemma-not-less-one",
        "attention_jax/weights/gguf.py",
        "change = lambda x: x - 1",
        "change = lambda x: x",
        ("tests/weights/test_gguf.py",),
    ),
    Mutant(
        "gguf-keys-rotated-by-the-query-heads",
        "attention_jax/weights/gguf.py",
        '"k_proj": "num_key_value_heads"',
        '"k_proj": "num_attention_heads"',
        ("tests/weights/test_gguf.py",),
    ),
    Mutant(
        "gguf-tensors-not-aligned",
        "attention_jax/weights/gguf.py",
        "-(-file.tell() // alignment) * alignment",
        "file.tell() // alignment * alignment",
        ("tests/weights/test_gguf.py",),
    ),
    Mutant(
        "window-of-theirs-one-key-wider",
        "attention_jax/weights/llama_names.py",
        'f"window({int(keys) - 1})"',
        'f"window({int(keys)})"',
        ("tests/weights/test_families.py",),
    ),
    Mutant(
        "rotary-base-of-a-new-config-ignored",
        "attention_jax/weights/llama_names.py",
        'float(entry.get("rope_theta", theta))',
        "float(theta)",
        ("tests/weights/test_families.py",),
    ),
    Mutant(
        "untied-head-taken-for-tied",
        "attention_jax/weights/llama_names.py",
        "if not np.array_equal(state_dict[HEAD], state_dict[TOKENS]):",
        "if state_dict[HEAD].shape != state_dict[TOKENS].shape:",
        ("tests/runs/test_pretrained.py::test_a_damaged_directory_is_one_line",),
    ),
    Mutant(
        "sentencepiece-merges-from-the-rarest",
        "attention_jax/weights/tokenizer.py",
        "(-merge[0], -merge[1])",
        "(merge[0], -merge[1])",
        ("tests/weights/test_tokenizer.py",),
    ),
    Mutant(
        "begin-token-left-out",
        "attention_jax/weights/tokenizer.py",
        """prefix = [special["bos"]] if fields.get("tokenizer.ggml.add_bos_token", usual)""",
        """prefix = [special["bos"]] if fields.get("tokenizer.ggml.add_bos_token", False)""",
        ("tests/weights/test_tokenizer.py",),
    ),
)
