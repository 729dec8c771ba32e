"""Mutants of attention_jax/models."""

from mutants.mutant import Mutant

TRANSLATOR = ("tests/models/test_translator.py",)
TRANSFORMER = ("tests/models/test_transformer.py", "tests/models/test_parts.py")
VISION = ("tests/models/test_vision.py",)

MUTANTS = (
    Mutant(
        "bottom-layer-queries-the-source",
        "attention_jax/models/bahdanau.py",
        "w.align(states[-1][0])",
        "w.align(states[0][0])",
        ("tests/models/test_translator.py::test_bahdanau_step_by_hand", *TRANSLATOR),
    ),
    Mutant(
        "mean-state-over-the-padding",
        "attention_jax/models/translator.py",
        "count = jnp.maximum(length, 1).astype(hidden.dtype)[:, None]",
        "count = jnp.full_like(hidden[:, 0, :1], hidden.shape[1])",
        ("tests/models/test_translator.py::test_contract", *TRANSLATOR),
    ),
    Mutant(
        "local-window-one-position-late",
        "attention_jax/models/luong.py",
        "distance = jnp.arange(self.key.shape[1])[None] - time[:, None]",
        "distance = jnp.arange(self.key.shape[1])[None] - time[:, None] - 1",
        ("tests/models/test_translator.py::test_windows", *TRANSLATOR),
    ),
    Mutant(
        "local-gaussian-twice-as-wide",
        "attention_jax/models/luong.py",
        "(self.reach / 2.0) ** 2",
        "self.reach**2.0",
        ("tests/models/test_translator.py::test_windows", *TRANSLATOR),
    ),
    Mutant(
        "input-feeding-forgets-the-time",
        "attention_jax/models/luong.py",
        "return InputFeedingState(states, fed, state.time + 1)",
        "return InputFeedingState(states, fed, state.time)",
        ("tests/models/test_translator.py::test_windows", *TRANSLATOR),
    ),
    Mutant(
        "backward-states-stay-reversed",
        "attention_jax/models/encoder.py",
        "hidden = merge_directions(hidden, reverse(backward_states[0]), self.merge)",
        "hidden = merge_directions(hidden, backward_states[0], self.merge)",
        (*TRANSLATOR, "tests/models/test_book.py"),
    ),
    Mutant(
        "layer-dropout-after-the-last-layer",
        "attention_jax/models/encoder.py",
        "if i + 1 < self.layers:",
        "if i < self.layers:",
        TRANSLATOR,
    ),
    Mutant(
        "swiglu-gates-the-other-half",
        "attention_jax/models/blocks.py",
        'gate = ACTIVATIONS[self.gate_activation](linear("gate", self.block.mlp_dim)(x))\n'
        '        x = tap(self, "mlp_hidden", gate * linear("hidden", self.block.mlp_dim)(x))',
        'gate = linear("gate", self.block.mlp_dim)(x)\n'
        '        x = gate * ACTIVATIONS[self.gate_activation](linear("hidden", self.block.mlp_dim)(x))',
        ("tests/models/test_parts.py::test_every_part_is_that_of_a_slow_transformer", *TRANSFORMER),
    ),
    Mutant(
        "embeddings-not-scaled",
        "attention_jax/models/transformer.py",
        "x = x * self.block.hidden_size**0.5 if self.scale else x",
        "x = x * self.block.hidden_size if self.scale else x",
        TRANSFORMER,
    ),
    Mutant(
        "packed-target-attends-to-other-sources",
        "attention_jax/models/transformer.py",
        "self_mask & segments(segment, segment), segments(segment, memory.segment)",
        "self_mask & segments(segment, segment), lengths(memory.source_length)",
        (*TRANSFORMER, "tests/data/test_pairs.py"),
    ),
    Mutant(
        "cached-key-at-the-position-before",
        "attention_jax/models/blocks.py",
        "self.attention.project_kv(h, h, position))",
        "self.attention.project_kv(h, h, position - 1))",
        (
            "tests/models/test_transformer.py::test_cached_steps_equal_teacher_forcing_for_beams",
            *TRANSFORMER,
        ),
    ),
    Mutant(
        "cached-bias-of-the-wrong-position",
        "attention_jax/models/blocks.py",
        "key_positions // self.hypotheses)",
        "key_positions)",
        (
            "tests/models/test_transformer.py::test_beam_scores_equal_teacher_forced_log_probabilities",
            *TRANSFORMER,
            "tests/test_decode.py",
        ),
    ),
    Mutant(
        "stochastic-depth-drops-tokens",
        "attention_jax/models/vit.py",
        "dropout(jnp.ones((x.shape[0], 1, 1), x.dtype), rate, rng)",
        "dropout(jnp.ones((x.shape[0], x.shape[1], 1), x.dtype), rate, rng)",
        ("tests/models/test_vision.py::test_stochastic_depth_drops_examples_keeps_mean", *VISION),
    ),
    Mutant(
        "mean-pool-reads-the-first-token",
        "attention_jax/models/vit.py",
        'pooled = x[:, 0] if self.pool == "token" else x.mean(axis=1)',
        "pooled = x[:, 0]",
        VISION,
    ),
    Mutant(
        "graph-attention-keeps-its-dropout-in-evaluation",
        "experiments/papers/graph_attention.py",
        'hidden = dropout(hidden, o.dropout, self.make_rng("dropout") if train else None)',
        "hidden = dropout(hidden, o.dropout, jax.random.key(0))",
        ("tests/papers/test_graph_attention.py", "tests/papers/test_nodes.py"),
    ),
    Mutant(
        "memory-read-before-it-is-written",
        "attention_jax/models/ntm.py",
        "read_memory = state.memory if read_first else memory",
        "read_memory = state.memory",
        ("tests/models/test_ntm.py",),
    ),
    Mutant(
        "pointer-feeds-the-wrong-input",
        "experiments/papers/pointer.py",
        "jnp.take_along_axis(cache.memory.inputs, previous[:, None, None], axis=1)[:, 0]",
        "jnp.take_along_axis(cache.memory.inputs, previous[:, None, None] - 1, axis=1)[:, 0]",
        ("tests/papers/test_pointer.py", "tests/papers/test_pointing.py"),
    ),
    Mutant(
        "entropy-over-masked-queries-too",
        "attention_jax/models/multihead.py",
        "jnp.maximum(sums[:, 2:], 1)",
        "(query.shape[0] * query.shape[2])",
        ("tests/train/test_attention_log.py",),
    ),
    Mutant(
        "first-token-share-of-the-last-key",
        "attention_jax/models/multihead.py",
        "jnp.eye(key.shape[0], 1, dtype",
        "jnp.eye(key.shape[0], 1, 1 - key.shape[0], dtype",
        ("tests/train/test_attention_log.py",),
    ),
    Mutant(
        "prefill-reads-the-padding-last",
        "attention_jax/models/language_model.py",
        "jnp.take_along_axis(x, (lengths - 1)[:, None, None], axis=1)",
        "x[:, -1:]",
        ("tests/models/test_layer_stack.py", "tests/test_generate.py"),
    ),
    Mutant(
        "scanned-kernels-stay-transposed",
        "attention_jax/models/layer_stack.py",
        "flip_kernels(jax.tree.map(lambda x, i=i: x[i], value))",
        "jax.tree.map(lambda x, i=i: x[i], value)",
        ("tests/models/test_layer_stack.py",),
    ),
    Mutant(
        "a-run-of-layers-begins-at-its-number",
        "attention_jax/models/layer_stack.py",
        "return [(group[0], len(group)) for group in groups]",
        "return [(i, len(group)) for i, group in enumerate(groups)]",
        ("tests/models/test_layer_stack.py",),
    ),
    Mutant(
        "last-layer-of-a-range-left-out",
        "attention_jax/config/per_layer.py",
        "int(match[2] or match[1]) + 1)",
        "int(match[2] or int(match[1]) + 1))",
        ("tests/models/test_layer_stack.py",),
    ),
)
