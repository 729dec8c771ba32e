"""Mutants of attention_jax/views."""

from mutants.mutant import Mutant

MAPS = ("tests/views/test_attention_maps.py",)
HUGGINGFACE = ("tests/pretrained/test_task_models.py",)

MUTANTS = (
    Mutant(
        "ablation-of-the-wrong-rows",
        "attention_jax/views/attention_maps.py",
        "reshape(heads, -1, kernel.shape[-1]).at[head].set(0)",
        "reshape(-1, heads, kernel.shape[-1]).at[:, head].set(0)",
        MAPS,
    ),
    Mutant(
        "ablation-of-one-of-the-shared-layers",
        "attention_jax/views/attention_maps.py",
        "ablations[name][:, layer::distinct, head]",
        "ablations[name][:, layer : layer + 1, head]",
        ("tests/views/test_attention_maps.py::test_ablated_head_of_shared_layer_is_off_everywhere", *MAPS),
    ),
    Mutant(
        "alignment-reversed-on-the-wrong-axis",
        "attention_jax/views/attention_maps.py",
        'x[..., :: -1 if "q" in reverse else 1, :: -1 if "k" in reverse else 1]',
        'x[..., :: -1 if "k" in reverse else 1, :: -1 if "q" in reverse else 1]',
        (
            "tests/views/test_attention_maps.py::test_reversed_source_is_shown_in_reading_order",
            *MAPS,
        ),
    ),
    Mutant(
        "removed-key-of-a-sigmoid-renormalizes",
        "attention_jax/views/attention_maps.py",
        "if issubclass(kind, Ratio):",
        "if issubclass(kind, Ratio | Pointwise):",
        MAPS,
    ),
    Mutant(
        "least-probable-class-first",
        "attention_jax/views/vision.py",
        "best = np.argsort(-probabilities, axis=1)[:, :3]",
        "best = np.argsort(probabilities, axis=1)[:, :3]",
        ("tests/tasks/test_vision.py", "tests/runs/test_pack.py", "tests/test_own_data.py", "tests/runs/test_saved.py"),
    ),
    Mutant(
        "channels-normalized-by-mean-for-deviation",
        "attention_jax/pretrained/task_models.py",
        "for x in (recipe.mean, recipe.deviation))",
        "for x in (recipe.deviation, recipe.mean))",
        ("tests/pretrained/test_task_models.py::test_a_vision_transformer_sees_the_normalized_image", *HUGGINGFACE),
    ),
    Mutant(
        "their-beam-size-ignored",
        "attention_jax/pretrained/generation_config.py",
        'number("num_beams", 1)',
        "1",
        HUGGINGFACE,
    ),
    Mutant(
        "padding-may-be-written",
        "attention_jax/pretrained/task_models.py",
        'weights.arrays["bias"][pad] = -1e9',
        'weights.arrays["bias"][pad] = 0',
        HUGGINGFACE,
    ),
    Mutant(
        "hypothesis-of-another-source",
        "attention_jax/views/seq2seq.py",
        "np.repeat(array, count, axis=0)",
        "np.concatenate([array] * count)",
        ("tests/views/test_attention_maps.py::test_each_hypothesis_has_its_own_weights", *MAPS),
    ),
    Mutant(
        "prompt-keeps-its-first-tokens",
        "attention_jax/views/language.py",
        "return slice(None if limit is None else self.task.sampling.length - limit, None)",
        "return slice(None, None if limit is None else limit - self.task.sampling.length)",
        ("tests/tasks/test_language.py", "tests/models/test_language_model.py", *MAPS),
    ),
    Mutant(
        "image-maps-of-the-first-layer",
        "attention_jax/views/pictures.py",
        "heads, through = attention[:, -1, :, 0, prefix:], flow[:, 0, prefix:]",
        "heads, through = attention[:, 0, :, 0, prefix:], flow[:, 0, prefix:]",
        (
            "tests/tasks/test_vision.py::test_what_the_class_token_looks_at",
            "tests/tasks/test_vision.py",
            "tests/models/test_vision.py",
            *MAPS,
        ),
    ),
)
