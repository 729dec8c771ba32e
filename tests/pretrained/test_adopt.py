"""Weights given to another model: what is taken, resampled, left out, and said."""

import json

import jax
import numpy as np
import pytest
import their_weights as reference
from their_weights import TIMM, VIT, write_weights

from attention_jax import config as configs, load_run, tasks
from attention_jax.errors import InputError
from attention_jax.models.vit import interpolate
from attention_jax.pretrained import adopt, exchange
from attention_jax.runs import lifecycle, saved

OPTIONS = configs.ViTConfig(2, 16, 24, 2, 2, norm_epsilon=1e-6)


def read(path):
    pytest.importorskip("safetensors")
    return exchange.read(write_weights(path / "model.safetensors", reference.timm(), TIMM))


def shapes(**changes) -> dict:
    """The parameters of a model for other data."""
    return exchange.nested({name: np.zeros(shape, np.float32) for name, shape in changes.items()})


def test_positions_colors_and_head_are_adapted(tmp_path):
    weights = read(tmp_path)
    like = {path: array.shape for path, array in weights.arrays.items()}
    like |= {"positions": (17, 16), "patch_embedding/kernel": (4, 16)}
    like |= {"trunk/head/kernel": (16, 10), "trunk/head/bias": (10,)}
    fresh = shapes(**like)
    adopted = adopt.adopt_params(weights, fresh)
    assert adopted.summary == (
        f"from {weights.source}: 36 of 40 arrays taken; positions resampled from 3 x 3 to 4 x 4; "
        "patches of 3 channels read as 1; the head re-initialized for 10 classes"
    )
    params = exchange.flat(adopted.into(fresh))
    assert {path: array.shape for path, array in params.items()} == like
    table = weights.arrays["positions"]
    np.testing.assert_array_equal(params["positions"][0], table[0])
    np.testing.assert_array_equal(params["positions"][1:], interpolate(table[1:], 4))
    assert not params["trunk/head/kernel"].any()
    image = np.random.default_rng(0).standard_normal((2, 2, 1)).astype(np.float32)  # a patch, and its copies in color
    in_color = np.repeat(image, 3, axis=2).reshape(-1) @ weights.arrays["patch_embedding/kernel"]
    np.testing.assert_allclose(image.reshape(-1) @ params["patch_embedding/kernel"], in_color, atol=1e-6)


def test_gray_weights_handle_color_images():
    gray = exchange.Weights(OPTIONS, reference.draw({"patch_embedding/kernel": (4, 16)}), "gray")
    kernel = adopt.adopt_params(gray, shapes(**{"patch_embedding/kernel": (12, 16)})).arrays["patch_embedding/kernel"]
    image = np.random.default_rng(0).standard_normal((2, 2, 1)).astype(np.float32)
    expected = image.reshape(-1) @ gray.arrays["patch_embedding/kernel"]
    np.testing.assert_allclose(np.repeat(image, 3, axis=2).reshape(-1) @ kernel, expected, atol=1e-6)


def test_a_text_classifier_has_no_projection():
    """That of CLIP makes sentence embeddings; its other options are kept."""
    options = configs.MaskedLanguageModelConfig(word_head=False, pool="last", projection_dim=7)
    adopted = adopt.options_from(exchange.Weights(options, {}, ""), configs.TextClassifierConfig())
    assert adopted == configs.replace(options, projection_dim=0)


def test_what_does_not_fit_is_named(tmp_path):
    weights = read(tmp_path)
    like = {path: array.shape for path, array in weights.arrays.items() if "layer_1" not in path}
    like |= {"trunk/norm/scale": (99,)}
    summary = adopt.adopt_params(weights, shapes(**like)).summary
    assert "1 re-initialized (trunk/norm/scale)" in summary
    assert "17 left out (trunk/layer_1/attention/key/bias, trunk/layer_1/attention/key/kernel, " in summary
    with pytest.raises(InputError, match="nothing of .* fits"):
        adopt.adopt_params(weights, shapes(other=(3,)))


def test_training_options_are_those_of_experiment(tmp_path):
    weights = read(tmp_path)
    experiment_options = configs.ViTConfig(dropout=0.3, stochastic_depth=0.2, dtype="bfloat16", hidden_size=8)
    assert adopt.options_from(weights, experiment_options) == configs.replace(
        OPTIONS, dropout=0.3, stochastic_depth=0.2, dtype="bfloat16"
    )
    with pytest.raises(InputError, match="the kind Transformer are needed here; .* are of the kind ViT: "):
        adopt.options_from(weights, configs.TransformerConfig())


def test_the_command_line_refuses_in_one_line(tmp_path):
    from test_launch import error_line

    (tmp_path / "model.bin").write_bytes(b"\x80\x04.")
    out = ("--out", tmp_path / "out")
    assert "is a pickle" in error_line("train", "vit_digits", "--from", tmp_path / "model.bin", *out)
    assert "is a pickle" in error_line("import", "vit_digits", tmp_path / "model.bin", *out)
    assert "is a pickle" in error_line("export", tmp_path / "model.bin", *out)
    assert "there is no" in error_line("export", tmp_path / "nothing")
    path = write_weights(tmp_path / "model.npz", reference.timm(), TIMM)
    message = error_line("train", "date_attention", "--from", path, *out)
    assert "weights of the kind AttentionSeq2seq are needed here; " in message
    assert "is not a directory that can be written" in error_line("export", path)
    assert not (tmp_path / "out").exists()


@pytest.mark.slow
def test_timm_vit_is_imported_and_trained(tmp_path):
    """import, evaluate and predict with it, and train from it for an epoch; then from that run."""
    from test_launch import launch_here

    path = write_weights(tmp_path / "timm" / "model.safetensors", reference.timm(pixels=8), TIMM)
    process = launch_here("import", "vit_digits", path, "--data.examples", 64, "--out", tmp_path / "taken")
    assert process.returncode == 0, process.stderr
    assert "norms with epsilon 1e-6): 37 of 40 arrays taken; patches of 3 channels read as 1" in process.stdout
    assert "the head re-initialized for 10 classes" in process.stdout
    imported = load_run(tmp_path / "taken")
    assert imported.config.model == configs.replace(OPTIONS, dropout=0.1) and imported.result is None
    weights_of_file = exchange.read(path)
    kernel = imported.params["trunk"]["layer_1"]["ffn"]["out"]["kernel"]
    np.testing.assert_array_equal(kernel, weights_of_file.arrays["trunk/layer_1/ffn/out/kernel"])
    assert launch_here("evaluate", tmp_path / "taken").stdout.startswith("test.accuracy")

    words = ("--data.examples", 64, "--train.total-epochs", 1, "--optim.warmup-steps", 0)
    process = launch_here("train", "vit_digits", "--from", path, *words, "--out", tmp_path / "run")
    assert process.returncode == 0 and "the head re-initialized for 10 classes" in process.stdout, process.stderr
    trained = load_run(tmp_path / "run")
    assert trained.config.train.init_weights == str(path)
    moved = trained.params["trunk"]["layer_1"]["ffn"]["out"]["kernel"] - kernel
    assert 0 < abs(moved).max() < 0.05
    weights = saved.weights_of(tmp_path / "run")
    assert "40 of 40 arrays taken" in adopt.adopt_params(weights, trained.params).summary
    process = launch_here("train", "vit_digits", "--from", tmp_path / "timm", "--resume", "--out", tmp_path / "run")
    assert process.returncode == 2 and "has begun; --from" in process.stderr


def test_run_starts_from_weights_only_once(tmp_path, monkeypatch):
    config = configs.Config("tiny", configs.Images(examples=32), configs.replace(OPTIONS, num_layers=1))
    state = {k: v for k, v in reference.timm(pixels=8, channels=1).items() if "blocks.1" not in k}
    path = write_weights(tmp_path / "there" / "model.safetensors", reference.huggingface(state), VIT)
    config = configs.replace(config, **{"train.init_weights": str(path)})
    task = tasks.build(config)
    begin = lifecycle.initial_params(config, task, tmp_path)
    like = jax.eval_shape(task.init, jax.random.PRNGKey(0))
    fresh = jax.tree.map(lambda leaf: np.zeros(leaf.shape, np.float32), like)
    assert np.array_equal(begin(fresh)["trunk"]["norm"]["scale"], state["norm.weight"])
    (tmp_path / "checkpoints" / "12.orbax-checkpoint-tmp").mkdir(parents=True)
    assert begin(fresh) is not fresh and lifecycle.initial_params(config, task, tmp_path)(fresh) is not fresh
    (tmp_path / "checkpoints" / "12").mkdir()
    assert lifecycle.initial_params(config, task, tmp_path)(fresh) is fresh


def test_lost_weights_are_a_note_also_of_a_quiet_run(tmp_path, capsys):
    """Such as a trial of a sweep with --from over the depth."""
    path = write_weights(tmp_path / "timm" / "model.safetensors", reference.timm(pixels=8, channels=1), VIT)
    for depth, note in ((2, ""), (3, "16 re-initialized (trunk/layer_2/")):
        config = configs.Config("tiny", configs.Images(examples=32), configs.replace(OPTIONS, num_layers=depth))
        config = configs.replace(config, **{"train.init_weights": str(path)})
        lifecycle.initial_params(config, tasks.build(config), tmp_path / "run")
        _, printed = capsys.readouterr()
        assert note in printed and printed.count("\n") == bool(note)


def weights_for(config, data=None) -> exchange.Weights:
    """Weights of a model for the data of this configuration, or for `data`."""
    task = tasks.build(config, data)
    shapes = exchange.flat(jax.eval_shape(task.init, jax.random.PRNGKey(0)))
    arrays = reference.draw({path: leaf.shape for path, leaf in shapes.items()})
    return exchange.Weights(config.model, arrays, "weights", data=task.data)


def adopt_from(weights, config, path="weights") -> tuple[str, dict]:
    """The line that a run prints that begins with these weights, and its parameters; all others are 7."""
    task = tasks.build(configs.replace(config, **{"train.init_weights": str(path)}))
    like = jax.eval_shape(task.init, jax.random.PRNGKey(0))
    adopted = adopt.adopt_params(weights, like, *adopt.match_names(weights, task, like))
    fresh = jax.tree.map(lambda leaf: np.full(leaf.shape, 7, np.float32), like)
    return adopted.summary, exchange.flat(adopted.into(fresh))


def test_tokens_of_a_language_model_go_by_name(tmp_path):
    """As many characters, of which one is another: by place, all behind it would be those of another one."""
    model = configs.LanguageModelConfig(num_layers=1, hidden_size=4, mlp_dim=4, num_heads=2, tied_embeddings=False)
    config = configs.Config("tiny", configs.TextFile(sequence_length=4), model, decode=configs.Sampling(length=4))
    configurations = []
    for name, line in (("old", "abcde"), ("new", "xedcb"), ("more", "abcdefgh")):
        (tmp_path / name).write_text((line + "\n") * 60)
        configurations.append(configs.replace(config, **{"data.text_file": str(tmp_path / name)}))
    old, new, larger = configurations
    weights = weights_for(old)
    line, params = adopt_from(weights, new)
    assert "6 of 7 tokens taken by name; 1 of the tokens re-initialized ('x'); 1 of the tokens left out ('a')" in line
    # <unk>, \n, a, b, c, d, e became <unk>, \n, b, c, d, e, x
    rows, initial = np.array([0, 1, 3, 4, 5, 6]), np.full(4, 7.0)
    np.testing.assert_array_equal(
        params["embedding/token/embedding"], [*weights.arrays["embedding/token/embedding"][rows], initial]
    )
    np.testing.assert_array_equal(params["kernel"], np.column_stack([weights.arrays["kernel"][:, rows], initial]))
    np.testing.assert_array_equal(params["bias"], [*weights.arrays["bias"][rows], 7.0])
    line, params = adopt_from(weights, larger)
    assert "7 of 10 tokens taken by name; 3 of the tokens re-initialized ('f', 'g', 'h')" in line
    np.testing.assert_array_equal(params["embedding/token/embedding"][:7], weights.arrays["embedding/token/embedding"])
    line, params = adopt_from(weights, old)
    assert "by name" not in line and "by place" not in line
    np.testing.assert_array_equal(params["bias"], weights.arrays["bias"])


@pytest.mark.slow
def test_both_vocabularies_of_a_translator_go_by_name(tmp_path):
    """The most frequent token comes first: the order of the names is another one on each side."""
    counts = {"old": ("a a a b b c", "u u u v v w"), "new": ("c c c a a d", "v v v w w u")}
    configurations = []
    for name, (source, target) in counts.items():
        (tmp_path / name).write_text("".join(f"{source} {i}\t{target}\n" for i in range(20)))
        data = configs.Corpus(tsv_file=str(tmp_path / name), min_frequency=18, held_out_fraction=0.05, max_buckets=1)
        options = configs.TransformerConfig(1, 1, hidden_size=4, mlp_dim=4, num_heads=2, tied_embeddings="none")
        configurations.append(configs.Config("tiny", data, options, decode=configs.Decode()))
    old, new = configurations
    weights = weights_for(old)
    line, params = adopt_from(weights, new)
    assert tasks.build(new).data.source_vocabulary.tokens == ["<pad>", "<bos>", "<eos>", "<unk>", "c", "a", "d"]
    assert "6 of 7 source tokens taken by name; 1 of the source tokens re-initialized ('d'); " in line
    assert "1 of the source tokens left out ('b'); 7 of 7 target tokens taken by name" in line
    source, target = [0, 1, 2, 3, 6, 4], [0, 1, 2, 3, 5, 6, 4]  # of a, b, c and u, v, w
    name = "source_embedding/token/embedding"
    np.testing.assert_array_equal(params[name], [*weights.arrays[name][source], np.full(4, 7.0)])
    name = "target_embedding/token/embedding"
    np.testing.assert_array_equal(params[name], weights.arrays[name][target])
    np.testing.assert_array_equal(params["kernel"], weights.arrays["kernel"][:, target])


def test_a_marian_brings_its_pieces_by_name(tmp_path):
    """Its decoder begins with padding, ours with <bos>; its </s> is our <eos>."""
    write_weights(tmp_path / "model.safetensors", reference.marian(), reference.MARIAN)
    (tmp_path / "texts").write_text("".join(f"c a a b {i}\tb c c d {i}\n" for i in range(20)))
    tokens = ["</s>", "<unk>", "b", "c", "a", "x", "y", "z", "v", "w", "<pad>"]
    (tmp_path / "vocab.json").write_text(json.dumps({token: i for i, token in enumerate(tokens)}))
    weights = exchange.read(tmp_path)
    data = configs.Corpus(
        tsv_file=str(tmp_path / "texts"), min_frequency=18, held_out_fraction=0.05, max_buckets=1, joint_vocabulary=True
    )
    line, params = adopt_from(weights, configs.Config("tiny", data, weights.options, decode=configs.Decode()), tmp_path)
    # <pad> <bos> <eos> <unk> c a b d
    rows, name = [10, 10, 0, 1, 3, 4, 2], "target_embedding/token/embedding"
    assert "7 of 8 target tokens taken by name; 1 of the target tokens re-initialized ('d')" in line
    np.testing.assert_array_equal(params[name], [*weights.arrays[name][rows], np.full(12, 7.0)])
    np.testing.assert_array_equal(params["bias"], [*weights.arrays["bias"][rows], 7.0])


@pytest.mark.parametrize(
    "labels, rows, note",
    [
        ("positive negative", [1, 0], "2 of 2 classes taken by name"),
        ("neutral POSITIVE negative", [2, None], "1 of 2 classes taken by name; 1 of the classes re-initialized (pos"),
        ("entailment neutral", None, "the head re-initialized for 2 classes; 0 of 2 classes taken by name"),
        ("LABEL_0 LABEL_1", [0, 1], "classes taken by place: their names are generic (LABEL_0, ...)"),
        ("", [0, 1], "classes taken by place: their names are not in the file"),
    ],
)
def test_classes_of_a_text_classifier_go_by_name(tmp_path, labels, rows, note):
    texts = tmp_path / "texts"
    texts.write_text("".join(f"{name}\t{name} {i}\n" for i in range(9) for name in ("positive", "negative")))
    options = configs.MaskedLanguageModelConfig(1, hidden_size=4, mlp_dim=4, num_heads=2, max_length=8, pooler="tanh")
    config = configs.Config("tiny", configs.LabeledFile(str(texts), max_length=8, max_buckets=1), options)
    names = tuple(labels.split()) or ("x", "y")
    weights = weights_for(config, tasks.build(config).data._replace(names=names))
    exchange.write(weights, tmp_path / "bert", "safetensors", "bert")
    if not labels:
        about = json.loads((tmp_path / "bert" / "config.json").read_text())
        (tmp_path / "bert" / "config.json").write_text(json.dumps(about | {"id2label": None}))
    line, params = adopt_from(saved.weights_of(tmp_path / "bert"), config, tmp_path / "bert")
    assert note in line and ("classes taken by" in note) == ("classes taken by" in line)
    assert "tokens taken by place: their names are not in the file" in line
    for name in ("head/kernel", "head/bias"):
        columns = [params[name][..., i] for i in range(2)]
        for column, row in zip(columns, rows or [None, None]):
            expected = np.full(column.shape, 7.0) if row is None else weights.arrays[name][..., row]
            np.testing.assert_array_equal(column, expected)
