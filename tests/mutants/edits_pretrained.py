"""Mutants of attention_jax/pretrained."""

from mutants.mutant import Mutant

EXCHANGE = ("tests/pretrained/test_exchange.py", "tests/pretrained/test_libraries.py")

MUTANTS = (
    Mutant(
        "qkv-of-timm-interleaved-by-head",
        "attention_jax/pretrained/vit_names.py",
        'Row("blocks.*.attn.qkv.weight", "(s h e) d"',
        'Row("blocks.*.attn.qkv.weight", "(h s e) d"',
        EXCHANGE,
    ),
    Mutant(
        "patches-of-timm-transposed",
        "attention_jax/pretrained/vit_names.py",
        'Row("patch_embed.proj.weight", "d c p q"',
        'Row("patch_embed.proj.weight", "d c q p"',
        EXCHANGE,
    ),
    Mutant(
        "query-and-key-of-hugging-face-swapped",
        "attention_jax/pretrained/vit_names.py",
        '"attention/query": "attention.attention.query"',
        '"attention/query": "attention.attention.key"',
        EXCHANGE,
    ),
    Mutant(
        "marian-positions-not-interleaved",
        "attention_jax/pretrained/translator_names.py",
        'row.tensor_layout.replace("d", "(t f)")',
        'row.tensor_layout.replace("d", "(f t)")',
        ("tests/pretrained/test_task_models.py", *EXCHANGE),
    ),
    Mutant(
        "export-transposed",
        "attention_jax/pretrained/naming.py",
        "rearrange(array, row.param_layout, row.tensor_layout, sizes)",
        "rearrange(array, row.param_layout, row.tensor_layout, sizes).T",
        EXCHANGE,
    ),
    Mutant(
        "color-patches-of-gray-weights-not-divided",
        "attention_jax/pretrained/adopt.py",
        "kernel = np.repeat(kernel, new_channels, axis=1) / new_channels",
        "kernel = np.repeat(kernel, new_channels, axis=1)",
        ("tests/pretrained/test_adopt.py",),
    ),
    Mutant(
        "class-position-resampled-with-the-grid",
        "attention_jax/pretrained/adopt.py",
        "np.concatenate([old[:prefix], interpolate(jnp.asarray(old[prefix:]), new_side)])",
        "np.concatenate([old[-1:].repeat(prefix, 0), interpolate(jnp.asarray(old[prefix:]), new_side)])",
        ("tests/pretrained/test_adopt.py",),
    ),
    Mutant(
        "training-options-of-the-weights-kept",
        "attention_jax/pretrained/adopt.py",
        "return dataclasses.replace(weights.options, **training_options)",
        "return weights.options",
        (
            "tests/pretrained/test_adopt.py::test_training_options_are_those_of_experiment",
            "tests/pretrained/test_adopt.py",
        ),
    ),
    Mutant(
        "pickle-in-a-zip-is-opened",
        "attention_jax/pretrained/tensors.py",
        'or any(name.endswith(".pkl") for name in names)',
        "",
        ("tests/pretrained/test_tensors.py",),
    ),
    Mutant(
        "gpt2-settings-not-checked",
        "attention_jax/pretrained/decoder_names.py",
        'facts.require("GPT-2", GPT2_CONFIG)',
        'facts.require("GPT-2", {})',
        (
            "tests/pretrained/test_exchange.py::test_a_gpt2_that_computes_otherwise_is_refused",
            "tests/pretrained/test_exchange.py",
            "tests/pretrained/test_task_models.py",
            "tests/pretrained/test_libraries.py",
        ),
    ),
    Mutant(
        "program-pads-the-source-with-tokens",
        "attention_jax/compile/stablehlo.py",
        'recipe = text_recipe(encode, "source", source, begin=begin, end=True)',
        'recipe = text_recipe(encode, "source", source, begin=begin)',
        ("tests/compile/test_stablehlo.py",),
    ),
    Mutant(
        "gguf-norm-of-gemma-not-less-one",
        "attention_jax/pretrained/gguf.py",
        "change = lambda x: x - 1",
        "change = lambda x: x",
        ("tests/pretrained/test_gguf.py",),
    ),
    Mutant(
        "gguf-keys-rotated-by-the-query-heads",
        "attention_jax/pretrained/gguf.py",
        '"k_proj": "num_key_value_heads"',
        '"k_proj": "num_attention_heads"',
        ("tests/pretrained/test_gguf.py",),
    ),
    Mutant(
        "gguf-tensors-not-aligned",
        "attention_jax/pretrained/gguf.py",
        "-(-file.tell() // alignment) * alignment",
        "file.tell() // alignment * alignment",
        ("tests/pretrained/test_gguf.py",),
    ),
    Mutant(
        "window-of-theirs-one-key-wider",
        "attention_jax/pretrained/decoder_names.py",
        'f"window({int(keys) - 1})"',
        'f"window({int(keys)})"',
        ("tests/pretrained/test_families.py",),
    ),
    Mutant(
        "rotary-base-of-a-new-config-ignored",
        "attention_jax/pretrained/decoder_names.py",
        'float(entry.get("rope_theta", theta))',
        "float(theta)",
        ("tests/pretrained/test_families.py",),
    ),
    Mutant(
        "untied-head-taken-for-tied",
        "attention_jax/pretrained/decoder_names.py",
        "if not np.array_equal(state_dict[HEAD], state_dict[TOKENS]):",
        "if state_dict[HEAD].shape != state_dict[TOKENS].shape:",
        ("tests/pretrained/test_load.py::test_a_damaged_directory_is_one_line",),
    ),
    Mutant(
        "sentencepiece-merges-from-the-rarest",
        "attention_jax/pretrained/tokenizer.py",
        "(-merge[0], -merge[1])",
        "(merge[0], -merge[1])",
        ("tests/pretrained/test_tokenizer.py",),
    ),
    Mutant(
        "begin-token-left-out",
        "attention_jax/pretrained/tokenizer.py",
        """prefix = [special["bos"]] if fields.get("tokenizer.ggml.add_bos_token", usual)""",
        """prefix = [special["bos"]] if fields.get("tokenizer.ggml.add_bos_token", False)""",
        ("tests/pretrained/test_tokenizer.py",),
    ),
)
