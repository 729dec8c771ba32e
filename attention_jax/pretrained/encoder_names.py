"""BERT, RoBERTa (also XLM-RoBERTa and CamemBERT) and DistilBERT as Hugging Face's models have them, alone or with a
head for masked words or for classes. Layouts as in `naming`; o is the width after a square layer.
"""

import re
from pathlib import Path
from typing import Any

from attention_jax.config import MaskedLanguageModelConfig
from attention_jax.errors import InputError
from attention_jax.models.bert import MaskedLanguageModel
from attention_jax.pretrained.config_json import Facts, activation, heads_of, hf_activation
from attention_jax.pretrained.naming import (
    LAYERS,
    Arrays,
    Naming,
    Row,
    attention_names,
    count_layers,
    layer_rows,
    linear_rows,
    norm_rows,
)
from attention_jax.pretrained.sentence_files import POOLS, add_pooling, classifier_files, classifier_in, pooling_files

BERT_LAYER = {
    **attention_names("attention.self.{}", "query", "key", "value"),
    "attention/out": "attention.output.dense",
    "attention_norm": "attention.output.LayerNorm",
    "ffn/hidden": "intermediate.dense",
    "ffn/out": "output.dense",
    "ffn_norm": "output.LayerNorm",
}
DISTILBERT_LAYER = {
    **attention_names("attention.{}_lin", "q", "k", "v", "out"),
    "attention_norm": "sa_layer_norm",
    "ffn/hidden": "ffn.lin1",
    "ffn/out": "ffn.lin2",
    "ffn_norm": "output_layer_norm",
}
PREDICTIONS = "cls.predictions"


def embedding_rows(tensor: str) -> list[Row]:
    """Rows of the tables of tokens, positions and, if a file has them, token types, and of their normalization."""
    tables = {"token": ("word", "v d"), "position": ("position", "n d"), "token_type": ("token_type", "t d")}
    rows = [
        Row(f"{tensor}.{name}_embeddings.weight", axes, f"embedding/{table}/embedding", axes)
        for table, (name, axes) in tables.items()
    ]
    return rows + norm_rows(f"{tensor}.LayerNorm", "embedding/norm")


def head_rows(dense: str, normalization: str, bias: str, pooler: str, classifier: str) -> list[Row]:
    """Rows of the three tensors of the head for words, of the pooler and of the classifier."""
    rows = [*linear_rows(dense, "word_head/dense", "d", "o"), *norm_rows(normalization, "word_head/norm")]
    rows += [Row(bias, "v", "word_head/bias", "v"), *linear_rows(pooler, "pooler", "d", "o")]
    return rows + linear_rows(classifier, "head", "d", "k")


BERT = (
    *embedding_rows("bert.embeddings"),
    *layer_rows("bert.encoder.layer.*", "encoder/layer_*", BERT_LAYER),
    *head_rows(
        f"{PREDICTIONS}.transform.dense",
        f"{PREDICTIONS}.transform.LayerNorm",
        f"{PREDICTIONS}.bias",
        "bert.pooler.dense",
        "classifier",
    ),
)
ROBERTA = (
    *embedding_rows("roberta.embeddings"),
    *layer_rows("roberta.encoder.layer.*", "encoder/layer_*", BERT_LAYER),
    *head_rows("lm_head.dense", "lm_head.layer_norm", "lm_head.bias", "classifier.dense", "classifier.out_proj"),
)
DISTILBERT = (
    *embedding_rows("distilbert.embeddings"),
    *layer_rows("distilbert.transformer.layer.*", "encoder/layer_*", DISTILBERT_LAYER),
    *head_rows("vocab_transform", "vocab_layer_norm", "vocab_projector.bias", "pre_classifier", "classifier"),
)
EPSILON = 1e-12
KINDS = ("Model", "ForMaskedLM", "ForPreTraining", "LMHeadModel", "ForSequenceClassification")
"""What a name in `architectures` may end with; the heads of others are for tokens, answers or pairs of choices."""
SYNONYMS = (
    (r"\.gamma$", ".weight"),
    (r"\.beta$", ".bias"),
    (r"^(cls\.predictions|lm_head)\.decoder\.bias$", r"\1.bias"),
)
"""Names of the first files, and copies under another name."""
ANY_VALUE = lambda state_dict, unused: None


class BertNaming(Naming):
    """The conversion of a BERT, whose files may lack the prefix `bert.`."""

    options_type = MaskedLanguageModelConfig
    optional = ("word_head/", "pooler/", "head/", "embedding/token_type/")
    fixed_options = LAYERS | {
        "per_layer": "",
        "norm": "post",
        "norm_embedding": True,
        "position_embedding": "learned",
        "use_bias": True,
        "mlp_bias": True,
        "key_dim": 0,
        "value_dim": 0,
        "projection_dim": 0,
    }
    family = "bert"
    table = BERT
    model_types = ("bert",)
    architecture = "Bert"
    stack, layer = "encoder", BERT_LAYER
    entries = "num_hidden_layers", "hidden_size", "intermediate_size", "num_attention_heads", "hidden_act"
    """How config.json calls layers, width, hidden units, heads and activation."""
    pooler = "tanh"
    pooler_tensor = "bert.pooler.dense.weight"
    unused = r"cls\.seq_relationship\..*"
    """Tensors that nothing uses."""

    @property
    def classifier_options(self) -> dict[str, tuple]:
        switch = (False, True)
        return {"pooler": ("none", self.pooler), "pool": (*POOLS.values(),), "unit_norm": switch, "word_head": switch}

    @property
    def mark(self) -> str:
        return f"{self.family}.{self.stack}.layer.0.{self.layer['attention/query']}.weight"

    @property
    def copies(self) -> dict:
        tied = r"cls\.predictions\.decoder\.weight|lm_head\.decoder\.weight|vocab_projector\.weight"
        words = f"{self.family}.embeddings.word_embeddings.weight"
        buffers = rf"{self.family}\.embeddings\.(position_ids|token_type_ids)|{self.unused}"
        return {tied: lambda state_dict, copy: state_dict[words], buffers: ANY_VALUE}

    def normalize_name(self, name: str) -> str:
        name = re.sub(rf"^(embeddings|{self.stack}|pooler)\.", rf"{self.family}.\1.", name)
        for pattern, new in SYNONYMS:
            name = re.sub(pattern, new, name)
        return name

    def complete(
        self, options: MaskedLanguageModelConfig, params: Arrays, directory: Path
    ) -> tuple[MaskedLanguageModelConfig, Arrays]:
        """Add what the files of sentence-transformers say: the pooling, and a classifier of the pooled states."""
        options = add_pooling(options, directory)
        return options, {**params, **classifier_in(directory)}

    def undo(self, options: MaskedLanguageModelConfig, facts: Facts, params: Arrays) -> Arrays:
        """Leave out a classifier of the pooled states, which is in another file."""
        if options.pooler != "none":
            return params
        return {name: array for name, array in params.items() if not name.startswith("head/")}

    def extra_files(
        self, options: MaskedLanguageModelConfig, params: Arrays, data=None
    ) -> dict[str, dict | list | bytes]:
        if "head/bias" not in params:
            return pooling_files(options)
        if options.pooler != "none":
            return {}
        recipe = getattr(getattr(data, "tokenizer", None), "recipe", ())
        most = recipe[2] if recipe[:1] == ("pretrained",) else None
        return classifier_files(options, params["head/kernel"], params["head/bias"], most)

    def first_position(self, facts: Facts) -> int:
        """Return the row of the table of positions that belongs to the first token."""
        return 0

    def norm_epsilon(self, facts: Facts) -> float:
        return facts.get("layer_norm_eps", EPSILON, f"norms with epsilon {EPSILON:g}")

    def infer_options(self, state_dict: Arrays, facts: Facts) -> MaskedLanguageModelConfig:
        """Infer the options from shapes and config.json; without the latter from the published models, 64 per head."""
        stack = f"{self.family}.{self.stack}.layer."
        tokens, width = state_dict[f"{self.family}.embeddings.word_embeddings.weight"].shape
        rows = len(state_dict[f"{self.family}.embeddings.position_embeddings.weight"])
        types = len(state_dict.get(f"{self.family}.embeddings.token_type_embeddings.weight", ()))
        layers, hidden = count_layers(stack, state_dict), len(state_dict[f"{stack}0.{self.layer['ffn/hidden']}.bias"])
        if self.family != "distilbert":
            facts.require(self.family, {"type_vocab_size": types})
        facts.require(self.family, dict(zip(self.entries, (layers, width, hidden))))
        facts.require(self.family, {"vocab_size": tokens, "max_position_embeddings": rows})
        facts.require(
            self.family, {"position_embedding_type": "absolute", "tie_word_embeddings": True, "tie_weights_": True}
        )
        facts.require(self.family, {"is_decoder": False, "add_cross_attention": False})
        self._check_head(state_dict, facts)
        epsilon, first = self.norm_epsilon(facts), self.first_position(facts)
        return MaskedLanguageModelConfig(
            layers,
            width,
            heads_of(facts, self.entries[3], width),
            hidden,
            num_token_types=types,
            first_position=first,
            max_length=rows - first,
            activation=activation(facts.get(self.entries[4], "gelu")),
            norm_epsilon=float(epsilon),
            word_head=any(name.startswith((f"{PREDICTIONS}.", "lm_head.", "vocab_transform.")) for name in state_dict),
            pooler=self.pooler if self.pooler_tensor in state_dict else "none",
        )

    def _check_head(self, state_dict: Arrays, facts: Facts):
        """Raise InputError for a head that is not for masked words or the class of a text."""
        wrong = [str(name) for name in facts.get("architectures", ()) if not str(name).endswith(KINDS)]
        classifiers = {"classifier.weight", "classifier.out_proj.weight"} & state_dict.keys()
        if wrong or (self.pooler_tensor not in state_dict and classifiers):
            raise InputError(
                f"a {self.family} encoder must be alone or have a head for masked words or for the class of a text; "
                f"this is a {wrong[0] if wrong else 'head for each token'}"
            )

    def layout_sizes(self, options: MaskedLanguageModelConfig) -> dict[str, int]:
        return super().layout_sizes(options) | {"o": options.hidden_size, "t": options.num_token_types}

    def build_module(self, options: MaskedLanguageModelConfig, params: Arrays) -> MaskedLanguageModel:
        """Return the model of these weights."""
        return MaskedLanguageModel(options, len(params["embedding/token/embedding"]), len(params.get("head/bias", ())))

    def reader_options(self, options: MaskedLanguageModelConfig) -> dict[str, Any]:
        types = {"first_position": 0, "num_token_types": options.num_token_types or 2}
        return self.fixed_options | types | {"pooler": ("none", self.pooler)}

    def config_json(self, options: MaskedLanguageModelConfig, params: Arrays, data=None) -> dict:
        """Build the config.json of a model with the head that these weights have."""
        head = "ForMaskedLM" if "word_head/bias" in params else "Model"
        labels = {}
        if "head/bias" in params:
            head = "Model" if options.pooler == "none" else "ForSequenceClassification"
            classes = getattr(data, "names", None) or [f"LABEL_{i}" for i in range(len(params["head/bias"]))]
            labels = {"id2label": {str(i): name for i, name in enumerate(classes)}}
            labels["label2id"] = {name: i for i, name in enumerate(classes)}
        sizes = options.num_layers, options.hidden_size, options.mlp_dim, options.num_heads
        extra = {"layer_norm_eps": options.norm_epsilon, "type_vocab_size": options.num_token_types}
        return {
            "architectures": [self.architecture + head],
            "model_type": self.family,
            "vocab_size": len(params["embedding/token/embedding"]),
            "max_position_embeddings": len(params["embedding/position/embedding"]),
            "pad_token_id": max(options.first_position - 1, 0),
            **dict(zip(self.entries, (*sizes, hf_activation(options.activation)))),
            **(extra if self.family != "distilbert" else {}),
            **labels,
        }


class RobertaNaming(BertNaming):
    """The conversion of a RoBERTa, whose positions follow the number of padding."""

    family = "roberta"
    table = ROBERTA
    model_types = ("roberta", "xlm-roberta", "camembert")
    architecture = "Roberta"
    pooler_tensor = "classifier.dense.weight"
    unused = r"roberta\.pooler\..*"  # it was never trained

    def first_position(self, facts: Facts) -> int:
        return int(facts.get("pad_token_id", 1, "padding is token 1")) + 1

    def reader_options(self, options: MaskedLanguageModelConfig) -> dict[str, Any]:
        return super().reader_options(options) | {"first_position": options.first_position or 2}


class DistilBertNaming(BertNaming):
    """The conversion of a DistilBERT, which has no token types and one epsilon."""

    family = "distilbert"
    table = DISTILBERT
    model_types = ("distilbert",)
    architecture = "DistilBert"
    stack, layer = "transformer", DISTILBERT_LAYER
    entries = "n_layers", "dim", "hidden_dim", "n_heads", "activation"
    pooler = "relu"
    pooler_tensor = "pre_classifier.weight"
    unused = "$^"

    def norm_epsilon(self, facts: Facts) -> float:
        return EPSILON

    def reader_options(self, options: MaskedLanguageModelConfig) -> dict[str, Any]:
        return super().reader_options(options) | {"num_token_types": 0, "norm_epsilon": EPSILON}


NAMINGS = {"bert": BertNaming(), "roberta": RobertaNaming(), "distilbert": DistilBertNaming()}
