"""Names of options in other libraries, and what is meant by an option that does not exist."""

import difflib
from collections.abc import Iterable

LAYERS = "layers layer n_layers n_layer nlayers nlayer depth num_blocks num_hidden_layers"
HEADS = "heads head n_heads n_head nheads nhead num_attention_heads attention_heads"
SYNONYMS = {
    "learning_rate": "lr rate max_lr peak_lr base_lr step_size eta",
    "batch_size": "bs batch mini_batch_size minibatch_size train_batch_size per_device_train_batch_size",
    "total_epochs": "epochs epoch num_epochs n_epochs nb_epochs max_epochs num_train_epochs",
    "max_steps": "steps num_steps train_steps total_steps max_iters iters iterations updates max_updates",
    "weight_decay": "wd decay l2 l2_penalty",
    "warmup_steps": "warmup num_warmup_steps warmup_updates warmup_iters",
    "clip_norm": "clip grad_clip gradient_clip clip_grad clip_grad_norm max_grad_norm max_norm",
    "accumulation_steps": "accumulate accumulation grad_accum grad_accumulation gradient_accumulation_steps",
    "label_smoothing": "smoothing label_smoothing_factor",
    "schedule": "scheduler lr_schedule lr_scheduler lr_scheduler_type",
    "name": "optimizer optim opt",
    "seed": "random_seed rng",
    "patience": "early_stopping early_stopping_patience",
    "num_layers": LAYERS,
    "num_encoder_layers": f"num_layers encoder_layers enc_layers n_encoder_layers {LAYERS}",
    "num_decoder_layers": f"num_layers decoder_layers dec_layers n_decoder_layers {LAYERS}",
    "num_heads": HEADS,
    "num_read_heads": f"num_heads {HEADS}",
    "num_write_heads": f"num_heads {HEADS}",
    "hidden_size": "dim d_model model_dim hidden hidden_dim hidden_units units width n_embd embed_dim emb_dim",
    "mlp_dim": "ffn_dim ff_dim d_ff dff dim_feedforward feedforward_dim ffn intermediate_size",
    "dropout": "dropout_rate drop drop_rate p_dropout",
    "beam_size": "beam beams num_beams beam_width",
    "temperature": "temp",
    "path": "file data data_path data_dir dataset_path",
    "tsv_file": "file path data tsv csv data_file data_path train_file",
    "text_file": "file path data text txt data_file data_path train_file",
    "out": "output output_dir out_dir outdir run_dir log_dir logdir save_dir",
    "from": "pretrained init_from finetune finetune_from load load_from restore",
    "resume": "continue restart resume_from_checkpoint",
}
"""{last part of an option's name: what other libraries and papers call it}"""
ORDER = ("optim.name", "train.", "optim.", "model.", "data.", "decode.")
"""The order of sections in which an option that is typed without its own is searched for."""
PHRASES = {"num_layers": "number of layers", "num_heads": "number of heads", "dropout": "dropout"}
"""What a model may lack, in words."""


def suggest_options(name: str, option_names: Iterable[str]) -> list[str]:
    """Return the options among `option_names` that `name` may mean, the most probable first; at most two.

    All are dotted names with underscores. An option of that name in another section, and one that other libraries call
    so, come before one that is spelled alike.

    >>> names = ["out", "optim.b1", "optim.learning_rate", "decode.batch_size", "train.batch_size"]
    >>> [suggest_options(name, names) for name in ("optim.lr", "batch_size", "optim.lerning_rate", "x")]
    [['optim.learning_rate'], ['train.batch_size', 'decode.batch_size'], ['optim.learning_rate'], []]
    """
    option_names, section, last = list(option_names), name.rpartition(".")[0] + ".", name.rpartition(".")[2]
    rank = lambda option: (not option.startswith(section), _order(option))
    same = sorted((option for option in option_names if _last(option) == last), key=rank)
    called = sorted((option for option in option_names if last in SYNONYMS.get(_last(option), "").split()), key=rank)
    if same or called:
        return (same or called)[:2]
    if missing_feature(name):
        return []
    whole = difflib.get_close_matches(name, option_names, n=1, cutoff=0.75)
    lasts = difflib.get_close_matches(last, sorted({_last(option) for option in option_names}), n=1, cutoff=0.75)
    return whole or sorted((option for option in option_names if _last(option) in lasts), key=rank)[:2]


def missing_feature(name: str) -> str:
    """Return a phrase for what a model option sets that only some models have; "" for other options.

    >>> missing_feature("model.layers"), missing_feature("n_head"), missing_feature("model.nonsense")
    ('number of layers', 'number of heads', '')
    """
    last = name.rpartition(".")[2]
    return next((text for option, text in PHRASES.items() if last == option or last in SYNONYMS[option].split()), "")


def _last(option: str) -> str:
    return option.rpartition(".")[2]


def _order(option: str) -> int:
    return next((at for at, section in enumerate(ORDER) if option.startswith(section)), -1)
