"""BERT, RoBERTa (also XLM-RoBERTa and CamemBERT) and DistilBERT as Hugging Face's models have them, alone or with a
head for masked words or for classes, and the pooling of a directory of sentence-transformers.

Layouts: v tokens, n positions, t token types, d width, m hidden units of the feed-forward, h heads of width e, o the
width after a square layer, k classes.
"""

import dataclasses
import json
import re
from pathlib import Path

from attention_jax import config
from attention_jax.errors import InputError
from attention_jax.models.bert import MaskedLanguageModel
from attention_jax.pretrained.facts import Facts, heads_of
from attention_jax.pretrained.layouts import Row, count_layers
from attention_jax.pretrained.naming import LAYERS, Arrays, Naming, differing_flags
from attention_jax.pretrained.vit_names import activation

HERE = "encoder/layer_*"


def norm_rows(tensor: str, param: str) -> list[Row]:
    """Rows of a layer normalization."""
    return [Row(f"{tensor}.weight", "d", f"{param}/scale", "d"), Row(f"{tensor}.bias", "d", f"{param}/bias", "d")]


def linear_rows(tensor: str, param: str, in_axes: str, out_axes: str) -> list[Row]:
    """Rows of a linear layer from the axes `in_axes` to the axes `out_axes`."""
    kernel = Row(f"{tensor}.weight", f"{out_axes} {in_axes}", f"{param}/kernel", f"{in_axes} {out_axes}")
    return [kernel, Row(f"{tensor}.bias", out_axes, f"{param}/bias", out_axes)]


def embedding_rows(tensor: str) -> list[Row]:
    """Rows of the tables of tokens and positions, and of their normalization."""
    tokens = Row(f"{tensor}.word_embeddings.weight", "v d", "embedding/token/embedding", "v d")
    positions = Row(f"{tensor}.position_embeddings.weight", "n d", "embedding/position/embedding", "n d")
    return [tokens, positions, *norm_rows(f"{tensor}.LayerNorm", "embedding/norm")]


def encoder_rows(layer: str, names: dict[str, str]) -> list[Row]:
    """Rows of all layers, with their `names` of our modules."""
    inputs = [(f"{layer}.{names[name]}", f"{HERE}/attention/{name}") for name in ("query", "key", "value")]
    rows = [row for tensor, param in inputs for row in linear_rows(tensor, param, "d", "(h e)")]
    rows += linear_rows(f"{layer}.{names['out']}", f"{HERE}/attention/out", "(h e)", "d")
    rows += norm_rows(f"{layer}.{names['attention_norm']}", f"{HERE}/attention_norm")
    rows += linear_rows(f"{layer}.{names['hidden']}", f"{HERE}/ffn/hidden", "d", "m")
    rows += linear_rows(f"{layer}.{names['ffn_out']}", f"{HERE}/ffn/out", "m", "d")
    return rows + norm_rows(f"{layer}.{names['ffn_norm']}", f"{HERE}/ffn_norm")


def head_rows(words: tuple[str, str, str], pooler: str, classifier: str) -> list[Row]:
    """Rows of the head for words (layer, normalization, bias), of the pooler and of the classifier."""
    dense, normalization, bias = words
    rows = [*linear_rows(dense, "word_head/dense", "d", "o"), *norm_rows(normalization, "word_head/norm")]
    rows += [Row(bias, "v", "word_head/bias", "v"), *linear_rows(pooler, "pooler", "d", "o")]
    return rows + linear_rows(classifier, "head", "d", "k")


BERT_LAYER = {
    "query": "attention.self.query",
    "key": "attention.self.key",
    "value": "attention.self.value",
    "out": "attention.output.dense",
    "attention_norm": "attention.output.LayerNorm",
    "hidden": "intermediate.dense",
    "ffn_out": "output.dense",
    "ffn_norm": "output.LayerNorm",
}
DISTILBERT_LAYER = {
    "query": "attention.q_lin",
    "key": "attention.k_lin",
    "value": "attention.v_lin",
    "out": "attention.out_lin",
    "attention_norm": "sa_layer_norm",
    "hidden": "ffn.lin1",
    "ffn_out": "ffn.lin2",
    "ffn_norm": "output_layer_norm",
}
TYPES = "embeddings.token_type_embeddings.weight", "t d", "embedding/token_type/embedding", "t d"
PREDICTIONS = "cls.predictions"
BERT = (
    *embedding_rows("bert.embeddings"),
    Row(f"bert.{TYPES[0]}", *TYPES[1:]),
    *encoder_rows("bert.encoder.layer.*", BERT_LAYER),
    *head_rows(
        (f"{PREDICTIONS}.transform.dense", f"{PREDICTIONS}.transform.LayerNorm", f"{PREDICTIONS}.bias"),
        "bert.pooler.dense",
        "classifier",
    ),
)
ROBERTA = (
    *embedding_rows("roberta.embeddings"),
    Row(f"roberta.{TYPES[0]}", *TYPES[1:]),
    *encoder_rows("roberta.encoder.layer.*", BERT_LAYER),
    *head_rows(("lm_head.dense", "lm_head.layer_norm", "lm_head.bias"), "classifier.dense", "classifier.out_proj"),
)
DISTILBERT = (
    *embedding_rows("distilbert.embeddings"),
    *encoder_rows("distilbert.transformer.layer.*", DISTILBERT_LAYER),
    *head_rows(("vocab_transform", "vocab_layer_norm", "vocab_projector.bias"), "pre_classifier", "classifier"),
)
OPTIONAL = ("word_head/", "pooler/", "head/", "embedding/token_type/")
EPSILON, POSITIONS = 1e-12, 512
KINDS = ("Model", "ForMaskedLM", "ForPreTraining", "LMHeadModel", "ForSequenceClassification")
"""What a name in `architectures` may end with; the heads of others are for tokens, answers or pairs of choices."""


POOLERS = {
    "bert": "bert.pooler.dense.weight",
    "roberta": "classifier.dense.weight",
    "distilbert": "pre_classifier.weight",
}


POOLS = {"cls_token": "first", "mean_tokens": "mean", "max_tokens": "max"}
"""Poolings of sentence-transformers, pooling_mode_..., with their names here."""


def add_pooling(options: config.MaskedLanguageModelConfig, directory: Path) -> config.MaskedLanguageModelConfig:
    """The options with the sentence embedding that modules.json of sentence-transformers and the directory that it
    names say, which is what such a model is for: not the pooler. Without that file the mean, as there. Raises
    InputError for another pooling."""
    modules = directory / "modules.json"
    if not modules.is_file():
        return options
    steps = [(str(entry["type"]).rpartition(".")[2], str(entry["path"])) for entry in _json(modules)]
    kinds = [kind for kind, _ in steps]
    if kinds not in (["Transformer", "Pooling"], ["Transformer", "Pooling", "Normalize"]):
        raise InputError(f"{modules} must name Transformer, Pooling and at most Normalize, names {', '.join(kinds)}")
    place = directory / steps[1][1] / "config.json"
    if not place.resolve().is_relative_to(directory.resolve()):
        raise InputError(f"{modules} must name directories beside it, names {steps[1][1]}")
    modes = _json(place)
    chosen = [name.removeprefix("pooling_mode_") for name, value in modes.items() if value is True]
    chosen = [name for name in chosen if name != "include_prompt"]
    if newer := modes.get("pooling_mode"):  # a name, or several
        chosen = [{"cls": "cls_token", "mean": "mean_tokens", "max": "max_tokens"}.get(newer, str(newer))]
    if modes.get("include_prompt", True) is not True:
        raise InputError(f"include_prompt in {place} must be true: prompts are part of a text")
    if len(chosen) != 1 or chosen[0] not in POOLS:
        raise InputError(f"{place} must have one of {', '.join(POOLS)}, has {', '.join(chosen) or 'none'}")
    return dataclasses.replace(options, pool=POOLS[chosen[0]], unit_norm=len(kinds) == 3, pooler="none")


def pooling_files(options: config.MaskedLanguageModelConfig, params: Arrays, data=None) -> dict[str, dict | list]:
    """The files of sentence-transformers for an encoder whose sentence embedding is not simply the mean."""
    if (options.pool, options.unit_norm) == ("mean", False) or "head/bias" in params:
        return {}
    kinds = ["Transformer", "Pooling"] + ["Normalize"] * options.unit_norm
    steps = [
        {"idx": i, "name": str(i), "path": f"{i}_{kind}" * (i > 0), "type": f"sentence_transformers.models.{kind}"}
        for i, kind in enumerate(kinds)
    ]
    pool = {f"pooling_mode_{mode}": pool_name == options.pool for mode, pool_name in POOLS.items()}
    width = {"word_embedding_dimension": options.hidden_size}
    return {"modules.json": steps, "1_Pooling/config.json": width | pool}


OLD = (
    (r"\.gamma$", ".weight"),
    (r"\.beta$", ".bias"),
    (r"^cls\.predictions\.decoder\.bias$", "cls.predictions.bias"),
    (r"^lm_head\.decoder\.bias$", "lm_head.bias"),
)
"""Names of the first files, and copies under another name."""


def _json(path: Path):
    try:
        return json.loads(path.read_text(encoding="utf-8"))
    except (OSError, ValueError) as error:
        raise InputError(f"{path} must be a JSON file ({error}); copy the whole directory of the model") from error


ANY_VALUE = lambda state_dict, unused: None


class BertNaming(Naming):
    """The conversion of one family, whose files may lack the family's prefix."""

    options_type = config.MaskedLanguageModelConfig
    optional = OPTIONAL

    def __init__(self, family: str, table: tuple[Row, ...], model_types: tuple[str, ...], unused: str = ""):
        self.family, self.table, self.model_types = family, table, model_types
        query = next(row.tensor for row in table if row.param == f"{HERE}/attention/query/kernel")
        self.mark = query.replace("*", "0")
        words = f"{family}.embeddings.word_embeddings.weight"
        tied = r"cls\.predictions\.decoder\.weight|lm_head\.decoder\.weight|vocab_projector\.weight"
        self.ignored = {
            tied: lambda state_dict, copy: state_dict[words],
            rf"{family}\.embeddings\.(position_ids|token_type_ids)": ANY_VALUE,
        } | ({unused: ANY_VALUE} if unused else {})

    def normalize_name(self, name: str) -> str:
        stack = "transformer" if self.family == "distilbert" else "encoder"
        name = re.sub(rf"^(embeddings|{stack}|pooler)\.", rf"{self.family}.\1.", name)
        for pattern, new in OLD:
            name = re.sub(pattern, new, name)
        return name

    def complete_options(self, options: config.MaskedLanguageModelConfig, directory: Path):
        return add_pooling(options, directory)

    def extra_files(
        self, options: config.MaskedLanguageModelConfig, params: Arrays, data=None
    ) -> dict[str, dict | list]:
        return pooling_files(options, params)

    def infer_options(self, state_dict: Arrays, facts: Facts) -> config.MaskedLanguageModelConfig:
        """Infer the options from shapes and config.json; without the latter from the published models, 64 per head."""
        is_distilbert, of_layer = (
            self.family == "distilbert",
            DISTILBERT_LAYER if self.family == "distilbert" else BERT_LAYER,
        )
        stack = f"{self.family}.{'transformer' if is_distilbert else 'encoder'}.layer."
        tokens, width = state_dict[f"{self.family}.embeddings.word_embeddings.weight"].shape
        rows, types = (
            len(state_dict[f"{self.family}.embeddings.position_embeddings.weight"]),
            state_dict.get(f"{self.family}.{TYPES[0]}", ()),
        )
        layers, hidden = count_layers(stack, state_dict), len(state_dict[f"{stack}0.{of_layer['hidden']}.bias"])
        says = ("n_layers", "dim", "hidden_dim", "n_heads", "activation")
        if not is_distilbert:
            says = ("num_hidden_layers", "hidden_size", "intermediate_size", "num_attention_heads", "hidden_act")
            facts.require(self.family, {"type_vocab_size": len(types)})
        facts.require(self.family, dict(zip(says, (layers, width, hidden))))
        facts.require(self.family, {"vocab_size": tokens, "max_position_embeddings": rows})
        facts.require(
            self.family, {"position_embedding_type": "absolute", "tie_word_embeddings": True, "tie_weights_": True}
        )
        facts.require(self.family, {"is_decoder": False, "add_cross_attention": False})
        self._check_head(state_dict, facts)
        epsilon = EPSILON if is_distilbert else facts.get("layer_norm_eps", EPSILON, f"norms with epsilon {EPSILON:g}")
        first = int(facts.get("pad_token_id", 1, "padding is token 1")) + 1 if self.family == "roberta" else 0
        return config.MaskedLanguageModelConfig(
            layers,
            width,
            heads_of(facts, says[3], width),
            hidden,
            num_token_types=len(types),
            first_position=first,
            max_length=rows - first,
            activation=activation(facts.get(says[4], "gelu")),
            norm_epsilon=float(epsilon),
            word_head=any(name.startswith((f"{PREDICTIONS}.", "lm_head.", "vocab_transform.")) for name in state_dict),
            pooler=("relu" if is_distilbert else "tanh") if POOLERS[self.family] in state_dict else "none",
        )

    def _check_head(self, state_dict: Arrays, facts: Facts):
        """Raise InputError for a head that is not for masked words or the class of a text."""
        names = facts.get("architectures", ())
        wrong = [str(name) for name in names if not str(name).endswith(KINDS)]
        if wrong or (
            POOLERS[self.family] not in state_dict
            and {"classifier.weight", "classifier.out_proj.weight"} & state_dict.keys()
        ):
            raise InputError(
                f"a {self.family} encoder must be alone or have a head for masked words or for the class of a text; "
                f"this is a {wrong[0] if wrong else 'head for each token'}"
            )

    def layout_sizes(self, options: config.MaskedLanguageModelConfig) -> dict[str, int]:
        """Return the layout sizes that follow from the options."""
        width = {"h": options.num_heads, "e": options.hidden_size // options.num_heads} | dict.fromkeys(
            "do", options.hidden_size
        )
        return width | {"m": options.mlp_dim, "t": options.num_token_types}

    def build_module(self, options: config.MaskedLanguageModelConfig, params: Arrays) -> MaskedLanguageModel:
        """Return the model of these weights."""
        return MaskedLanguageModel(options, len(params["embedding/token/embedding"]), len(params.get("head/bias", ())))

    def missing_options(self, options: config.MaskedLanguageModelConfig) -> str:
        """Describe the options of this model that the other library does not support."""
        is_distilbert = self.family == "distilbert"
        lacks = {
            f"--model.first-position {options.first_position}": (options.first_position > 0)
            != (self.family == "roberta"),
            f"--model.num-token-types {options.num_token_types}": (options.num_token_types == 0) != is_distilbert,
            f"--model.norm-epsilon {options.norm_epsilon}": is_distilbert and options.norm_epsilon != EPSILON,
            f"--model.pooler {options.pooler}": options.pooler not in ("none", "relu" if is_distilbert else "tanh"),
        }
        return ", ".join(
            [*(name for name, is_so in lacks.items() if is_so), *differing_flags(options, LAYERS | {"per_layer": ""})]
        )

    def config_json(self, options: config.MaskedLanguageModelConfig, params: Arrays, data=None) -> dict:
        """Build the config.json of a model with the head that these weights have."""
        prefix = {"bert": "Bert", "roberta": "Roberta", "distilbert": "DistilBert"}[self.family]
        head = "Model"
        if "word_head/bias" in params:
            head = "ForMaskedLM"
        if "head/bias" in params:
            if options.pooler == "none":
                raise InputError(
                    f"{self.family} has no classifier of the sentence embedding, --model.pooler none: use own names"
                )
            head = "ForSequenceClassification"
        names = {"gelu_tanh": "gelu_new", "swish": "silu"}
        values = (options.num_layers, options.hidden_size, options.mlp_dim, options.num_heads)
        says = ("n_layers", "dim", "hidden_dim", "n_heads", "activation")
        extra = {}
        if self.family != "distilbert":
            says = ("num_hidden_layers", "hidden_size", "intermediate_size", "num_attention_heads", "hidden_act")
            extra = {"layer_norm_eps": options.norm_epsilon, "type_vocab_size": options.num_token_types}
        classes = getattr(data, "names", None) or [f"LABEL_{i}" for i in range(len(params.get("head/bias", ())))]
        return {
            "architectures": [prefix + head],
            "model_type": self.family,
            "vocab_size": len(params["embedding/token/embedding"]),
            "max_position_embeddings": len(params["embedding/position/embedding"]),
            "pad_token_id": max(options.first_position - 1, 0),
            **dict(zip(says, (*values, names.get(options.activation, options.activation)))),
            **extra,
            **({"id2label": {str(i): name for i, name in enumerate(classes)}} if "head/bias" in params else {}),
        }


NAMINGS = {
    "bert": BertNaming("bert", BERT, ("bert",), unused=r"cls\.seq_relationship\..*"),
    "roberta": BertNaming(
        "roberta",
        ROBERTA,
        ("roberta", "xlm-roberta", "camembert"),
        unused=r"roberta\.pooler\..*",  # it was never trained
    ),
    "distilbert": BertNaming("distilbert", DISTILBERT, ("distilbert",)),
}
