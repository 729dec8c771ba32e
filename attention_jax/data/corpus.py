"""Your own sentence pairs, from two files (a sentence a line) or one file of two columns; plain or .gz,
read as they are, never cached."""

from attention_jax import InputError, config as settings
from attention_jax.data import pair_files, splits as splitting, text_files
from attention_jax.data.pairs import PairData, Texts

MOST_HELD_OUT = 2_000


def read(config: settings.Corpus) -> Texts:
    """All pairs, in the order of the lines."""
    if config.tsv_file and not (config.source_file or config.target_file):
        return text_files.columns(text_files.read_bytes(config.tsv_file, "file of sentence pairs"), config.tsv_file)
    if config.source_file and config.target_file and not config.tsv_file:
        return text_files.parallel(config.source_file, config.target_file)
    raise InputError("a corpus is --data.source-file FILE and --data.target-file FILE, or --data.tsv-file FILE")


def load(config: settings.Corpus, batch_size: int = 128) -> PairData:
    """The corpus of `config`, split by a fixed seed into train, valid and test without a source in two of them."""
    texts = read(config)
    held_out = min(MOST_HELD_OUT, max(1, int(len(set(texts.source)) * config.held_out_share)))
    if not 0 < config.held_out_share < 0.5 or len(set(texts.source)) < 3:
        raise InputError(
            f"a corpus needs at least 3 different sources and a --data.held-out-share between 0 and 0.5, "
            f"got {len(set(texts.source))} and {config.held_out_share}"
        )
    rows = splitting.by_source(*texts, {"valid": held_out, "test": held_out}, seed=0)
    parts = {name: splitting.take(texts, numbers) for name, numbers in rows.items()}
    plain = config.tokenizer in ("sentencepiece", "character")
    data = pair_files.assemble(
        parts,
        config,
        batch_size,
        languages=config.languages,
        merges=config.merges,
        lines=rows,
        bleu_tokenize="13a" if plain else "none",
    )
    duplicates = len(texts.source) - sum(map(len, rows.values()))
    return data._replace(facts=data.facts | {"pairs_left_out": duplicates})
