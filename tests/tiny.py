"""Every score and every model, as small as they can be, for the tests that go over all of them."""

import inspect
from pathlib import Path

import jax

from attention_jax import config as configs, tasks
from attention_jax.ops import scores
from experiments.papers import options


def every_score(width: int = 8) -> dict[str, scores.Score]:
    """Each score once, small: those with parameters by `init`."""
    classes = [c for _, c in inspect.getmembers(scores, inspect.isclass) if issubclass(c, scores.Score)]
    instances = {}
    for c in classes:
        if c is not scores.Score:
            instances[c.__name__] = c.init(jax.random.key(0), width, width, 4) if hasattr(c, "init") else c()
    return instances


TRANSLATOR = {"hidden_size": 8, "embed_size": 4, "readout_size": 8}
MODELS = (
    configs.Seq2seqConfig(hidden_size=8, embed_size=4),
    configs.PeekySeq2seqConfig(hidden_size=8, embed_size=4),
    configs.AttentionSeq2seqConfig(hidden_size=8, embed_size=4),
    configs.LuongSeq2seqConfig(hidden_size=8, embed_size=4),
    options.SutskeverConfig(**TRANSLATOR),
    configs.BahdanauConfig(**TRANSLATOR),
    options.ConditionalGRUConfig(**TRANSLATOR),
    configs.LuongConfig(**TRANSLATOR),
    configs.GNMTConfig(**TRANSLATOR),
    options.ConvolutionalConfig(8, 4, num_layers=2),
    configs.TransformerConfig(1, 1, hidden_size=8, num_heads=2, mlp_dim=8),
    configs.LanguageModelConfig(1, 8, 2, 8),
    configs.RecurrentLanguageModelConfig(hidden_size=8),
    configs.TextClassifierConfig(1, 8, 2, 8),
    configs.NTMConfig(hidden_size=8, num_locations=8, word_size=4),
    configs.StackedLSTMConfig(num_layers=1, hidden_size=8),
    configs.ViTConfig(2, 16, 16, 1, 2),
    options.CCTConfig(hidden_size=16, mlp_dim=16, num_layers=1),
    options.ResNetConfig(widths=(8, 8), blocks_per_stage=1, num_groups=4),
    options.PointerNetworkConfig(hidden_size=8),
    options.GraphAttentionConfig(num_heads=2, hidden_size=4),
)


def builder(place: Path):
    """`build(model options, **changes)`: the model's task on a few rows of data, which are written to `place`."""
    (place / "timemachine.txt").write_text("abc " * 100)
    (place / "pairs.tsv").write_text("".join(f"{'a b c d'[: 1 + i % 7]} {i}\t{i} a b .\n" for i in range(20)))
    data = {
        "seq2seq": configs.Corpus(tsv_file=str(place / "pairs.tsv"), held_out_fraction=0.2, max_length=12),
        "language": configs.TimeMachine(str(place / "timemachine.txt"), 16, 40, 8),
        "text_classification": configs.LabeledFile(examples=60, held_out_fraction=0.2),
        "memory": configs.Algorithmic(sequences=8, epoch_sequences=8, valid_sequences=4),
        "vision": configs.Images(examples=32),
        "pointer": options.ConvexHulls(max_points=6, examples=8, held_out=4),
        "graph_attention": options.Citations(num_nodes=70),
    }

    def build(model, **changes):
        kind = model.task.rpartition(".")[2].partition(":")[0]
        decode = configs.Sampling(length=6) if kind == "language" else configs.Decode(max_length=6)
        config = configs.Config("tiny", data[kind], model, train=configs.Train(batch_size=4), decode=decode)
        return tasks.build(configs.replace(config, **changes))

    return build
