"""Every score and every model, as small as they can be, for the tests that go over all of them."""

import inspect
from pathlib import Path

import jax

from attention_jax import config as configs, tasks
from attention_jax.ops import scores


def every_score(width: int = 8) -> dict[str, scores.Score]:
    """Each score once, small: those with parameters by `init`."""
    classes = [c for _, c in inspect.getmembers(scores, inspect.isclass) if issubclass(c, scores.Score)]
    made = {}
    for c in classes:
        if c is not scores.Score:
            made[c.__name__] = c.init(jax.random.key(0), width, width, 4) if hasattr(c, "init") else c()
    return made


TRANSLATOR = {"hidden_size": 8, "embed_size": 4, "readout_size": 8}
MODELS = (
    configs.Seq2seq(hidden_size=8, embed_size=4),
    configs.PeekySeq2seq(hidden_size=8, embed_size=4),
    configs.AttentionSeq2seq(hidden_size=8, embed_size=4),
    configs.LuongSeq2seq(hidden_size=8, embed_size=4),
    configs.Sutskever(**TRANSLATOR),
    configs.Bahdanau(**TRANSLATOR),
    configs.ConditionalGru(**TRANSLATOR),
    configs.Luong(**TRANSLATOR),
    configs.Gnmt(**TRANSLATOR),
    configs.Convolutional(8, 4, num_layers=2),
    configs.Transformer(1, 1, hidden_size=8, num_heads=2, mlp_dim=8),
    configs.LanguageModel(1, 8, 2, 8),
    configs.RecurrentLanguageModel(hidden_size=8),
    configs.TextClassifier(1, 8, 2, 8),
    configs.NTM(hidden_size=8, num_locations=8, word_size=4),
    configs.StackedLSTM(num_layers=1, hidden_size=8),
    configs.Vit(2, 16, 16, 1, 2),
    configs.Cct(hidden_size=16, mlp_dim=16, num_layers=1),
    configs.ResNet(widths=(8, 8), blocks_per_stage=1, num_groups=4),
    configs.PointerNetwork(hidden_size=8),
    configs.GraphAttention(num_heads=2, hidden_size=4),
)


def builder(place: Path):
    """`build(model options, **changes)`: the model's task on a few rows of data, which are written to `place`."""
    (place / "timemachine.txt").write_text("abc " * 100)
    (place / "pairs.tsv").write_text("".join(f"{'a b c d'[: 1 + i % 7]} {i}\t{i} a b .\n" for i in range(20)))
    data = {
        "seq2seq": configs.Corpus(tsv_file=str(place / "pairs.tsv"), held_out_fraction=0.2, max_length=12),
        "language": configs.TimeMachine(str(place / "timemachine.txt"), 16, 40, 8),
        "text_classification": configs.LabelledFile(examples=60, held_out_fraction=0.2),
        "memory": configs.Algorithmic(sequences=8, epoch_sequences=8, valid_sequences=4),
        "vision": configs.Images(examples=32),
        "pointing": configs.ConvexHulls(max_points=6, examples=8, held_out=4),
        "nodes": configs.Citations(num_nodes=70),
    }

    def build(model, **changes):
        kind = model.task.rpartition(".")[2].partition(":")[0]
        decode = configs.Sampling(length=6) if kind == "language" else configs.Decode(max_length=6)
        config = configs.Config("tiny", data[kind], model, train=configs.Train(batch_size=4), decode=decode)
        return tasks.build(configs.replace(config, **changes))

    return build
