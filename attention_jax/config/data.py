"""The options of the datasets, one dataclass each: the source of the data, and their preparation."""

from dataclasses import dataclass
from typing import ClassVar, Literal

from attention_jax.config.fields import option
from attention_jax.config.options import DataOptions


@dataclass(frozen=True, kw_only=True)
class Streamed(DataOptions):
    """Data that may be streamed during training (attention_jax/data/stream.py)."""

    stream: Literal["auto", "always", "never"] = "auto"
    """Stream the data during training; auto does so if the training arrays would be larger than 1 GiB, and otherwise
    keeps them on the devices."""
    workers: int = option(0, resumable=True)
    """Threads that read ahead; 0: one for each core, at most 8."""
    on_bad_record: Literal["error", "skip"] = option("error", resumable=True)
    """error: stop with a message; skip: drop the record (while training the next one takes its place) and count it."""


@dataclass(frozen=True)
class Dates(DataOptions):
    """Date conversion, "TUESDAY, SEPTEMBER 25, 1984" -> "1984-09-25"."""

    loader: ClassVar[str] = "attention_jax.data.generated_texts:load_dates"

    path: str = option("", user_data=True)
    """A published date.txt or date.txt.gz; empty generates the data."""
    reverse_source: bool = False
    """Reverse the characters of the source."""
    examples: int = option(50_000, smoke=1000, unlimited=True)
    """Number of generated dates; 90 % are for training, 10 % for testing."""
    validation: int = 0
    """Number of training dates to hold out for validation metrics."""

    @property
    def without_file(self) -> str:
        return "" if self.path else f"no --data.path given: using {self.examples:,} generated dates"


@dataclass(frozen=True)
class Addition(DataOptions):
    """Addition of two numbers up to three digits as text, "16+75  " -> "_91  "."""

    loader: ClassVar[str] = "attention_jax.data.generated_texts:load_addition"

    path: str = option("", user_data=True)
    """The book's addition.txt or addition.txt.gz; empty generates the data."""
    reverse_source: bool = False
    """Reverse the characters of the source."""
    examples: int = option(50_000, smoke=1000, unlimited=True)
    """Number of generated sums; 90 % are for training, 10 % for testing."""

    @property
    def without_file(self) -> str:
        return "" if self.path else f"no --data.path given: using {self.examples:,} generated sums"


@dataclass(frozen=True)
class TextPairs(DataOptions):
    """Options of all corpora of sentence pairs (attention_jax/data/pairs.py)."""

    tokenizer: Literal["whitespace", "character", "words", "spacy", "bpe", "sentencepiece"] = "whitespace"
    """words: d2l's preprocessing; spacy: its rules, no model; bpe: ready-made merges; sentencepiece: trained on the
    data and cached.
    """
    lowercase: bool = False
    """Lower-case the text."""
    min_frequency: int = 1
    """Minimum count of a token in the training data; rarer ones become the unknown token."""
    vocabulary_size: int = option(8_000, at_least=1)
    """Maximum number of subwords that sentencepiece trains; a small text has fewer."""
    joint_vocabulary: bool = False
    """Use one vocabulary for both languages."""
    vocabulary_file: str = option("", user_data=True)
    """An existing vocabulary: a sentencepiece model, or for other tokenizers one token per line; or two files,
    source,target."""
    keep_whitespace: bool = False
    """Keep the tokens of nothing but whitespace that the spacy tokenizer makes of doubled spaces."""
    reverse_source: bool = False
    """Reverse the tokens of the source."""
    source_bos: bool = False
    """Begin the source with the bos token, too."""
    max_length: int = option(100, at_least=1)
    """The maximum number of tokens of a sentence, including the end token, and of a source that begins with bos."""
    overlong: Literal["error", "truncate", "drop"] = "truncate"
    """The treatment of training pairs with a longer sentence; held-out pairs are never dropped."""
    batch_tokens: int = 0
    """Tokens per batch, including padding, of the longer side; 0 makes batches of train.batch_size sentences."""
    max_buckets: int = option(4, at_least=1)
    """The maximum number of length buckets; each is a shape to compile."""


@dataclass(frozen=True)
class FraEng(TextPairs):
    """English-French sentences of tatoeba.org, as in d2l (attention_jax/data/public_texts.py)."""

    loader: ClassVar[str] = "attention_jax.data.public_texts:load_fra_eng"

    path: str = option("", user_data=True)
    """fra-eng.zip, fra.txt, or their directory; empty downloads."""
    split: Literal["d2l", "d2l-641", "full"] = "full"
    """d2l: the first 512 pairs train, the next 128 validate. d2l-641: the next 129 validate, as the reader of the book
    takes one pair more than it says. full: seeded, no source in two parts."""
    predict_padding: bool = False
    """Pad targets to `max_length` tokens, and predict the padding as a part of the loss, as sections 11.4 and 11.7 of
    d2l do."""
    pad_source: bool = False
    """Pad sources to `max_length` tokens, too: an encoder whose state is that of the last step reads all of them."""
    tokenizer: Literal["whitespace", "character", "words", "spacy", "bpe", "sentencepiece"] = "words"
    min_frequency: int = 2
    max_length: int = option(30, at_least=1)

    @property
    def downloads(self) -> str:
        return "" if self.path else "fra_eng/d2l"


@dataclass(frozen=True)
class Multi30k(TextPairs):
    """Image captions in English, German and French: WMT multimodal task 1 (attention_jax/data/public_texts.py)."""

    loader: ClassVar[str] = "attention_jax.data.public_texts:load_multi30k"

    path: str = option("", user_data=True)
    """Directory that contains raw/, tok/ or bpe/en-de/ (or such a directory); empty downloads."""
    source: Literal["en", "de", "fr"] = "de"
    """Language of the source."""
    target: Literal["en", "de", "fr"] = "en"
    """Language of the target."""
    form: Literal["raw", "tok", "bpe"] = "tok"
    """raw: plain text; tok: lower-cased, normalized, Moses tokens; bpe: tok with the published joint BPE of 10,000
    merges (English, German)."""
    concatenated_pairs: int = option(1, at_least=1)
    """Above 1: add to each split an example that concatenates 2 to this many pairs, once for each pair, since long
    sentences are rare."""
    max_length: int = option(80, at_least=1)

    @property
    def downloads(self) -> str:
        return "" if self.path else f"multi30k/{self.form}_{self.source}_{self.target}"


@dataclass(frozen=True)
class Scan(TextPairs):
    """Commands and the actions that they mean (attention_jax/data/generated_texts.py)."""

    loader: ClassVar[str] = "attention_jax.data.generated_texts:load_scan"

    cutoff: int = 0
    """Train on commands of at most this many actions and test on longer ones (22: the published length split); 0 tests
    on a random fifth."""
    second_cutoff: int = 0
    """Split the commands longer than `cutoff`: those of at most this many actions, "valid_longer", select a model that
    generalizes, and longer ones, "test_longer", test it; 0: all of them are "test"."""


@dataclass(frozen=True)
class Reverse(TextPairs):
    """Joey NMT's toy task: reverse a sequence of numbers (attention_jax/data/generated_texts.py)."""

    loader: ClassVar[str] = "attention_jax.data.generated_texts:load_reverse"

    examples: int = option(50_000, smoke=1000, unlimited=True)
    """Training pairs of 1 to 25 numbers; 1,000 pairs of 1 to 30 numbers validate and 1,000 test."""


@dataclass(frozen=True)
class Corpus(TextPairs, Streamed):
    """Your own sentence pairs: two files with one sentence per line, or one with two columns; or several such files,
    with commas between them (attention_jax/data/corpus.py). --data.stream auto counts 16 times the bytes of the text.
    """

    loader: ClassVar[str] = "attention_jax.data.corpus:load"

    source_file: str = option("", user_data=True)
    """Source sentences, one per line (.gz, .bz2 and .xz, too)."""
    target_file: str = option("", user_data=True)
    """Target sentences, line-aligned with the source."""
    tsv_file: str = option("", user_data=True)
    """A file of `source TAB target` lines, instead of the other two; or a .jsonl, .csv or .parquet file."""
    columns: tuple[str, str] = ("source", "target")
    """The names of the columns in such a file, or in line 1 of another; translation.en is en in translation."""
    examples: int = option(0, smoke=1000, unlimited=True)
    """The number of generated dates to translate if no file is given; 0 requires files."""
    languages: tuple[str, str] = ("xx", "xx")
    """Codes of the source and target languages, such as de, jpn or zh-CN, for the spacy tokenizer and for BLEU, which
    counts characters in languages without spaces between words (zh, yue, wuu, ja, ko, th, lo, km, my); xx is any."""
    merges: str = ""
    """Merges file of the bpe tokenizer, in the format of subword-nmt."""
    packing: int = 0
    """Pack several pairs into sequences of this many tokens per side, with attention within each pair only, for models
    that support it (a Transformer): hardly any padding. Without batch_tokens a batch has train.batch_size sequences.
    0: one pair per sequence."""
    held_out_fraction: float = option(0.02, above=0, below=0.5)
    """Fraction of the sources for validation, and again for testing (at most 2,000 each)."""
    overlong: Literal["error", "truncate", "drop"] = "error"

    @property
    def without_file(self) -> str:
        has_file = self.source_file or self.target_file or self.tsv_file or not self.examples
        return "" if has_file else f"no --data.tsv-file given: using {self.examples:,} generated date pairs"


@dataclass(frozen=True)
class LabeledFile(Streamed):
    """Your own texts, each with a label: a file of `label TAB text` lines (attention_jax/data/labeled_texts.py).
    --data.stream auto counts 16 times the bytes of the text."""

    loader: ClassVar[str] = "attention_jax.data.labeled_texts:load"

    tsv_file: str = option("", user_data=True)
    """A file of `label TAB text` lines (.gz, .bz2 and .xz, too), or a .jsonl, .csv or .parquet file; empty generates
    dates, labeled by their language."""
    columns: tuple[str, str] = ("label", "text")
    """The names of the columns in such a file, or in line 1 of another; subject+body joins the texts of two."""
    examples: int = option(2_000, smoke=1000, unlimited=True)
    """The number of generated dates if no file is given; 0 requires a file."""
    held_out_fraction: float = option(0.1, above=0, below=0.5)
    """Fraction of the texts of each class for validation, and again for testing."""
    tokenizer: Literal["words", "character", "sentencepiece"] = "words"
    """words: lower-cased words and punctuation; sentencepiece: subwords, trained on the data and cached."""
    pretrained: str = ""
    """Directory of a pretrained model whose tokenizer.json takes the place of `tokenizer`; --from sets it."""
    min_frequency: int = 2
    """Minimum count of a token in the training data; rarer ones become the unknown token."""
    vocabulary_size: int = option(4_000, at_least=1)
    """Maximum number of subwords that sentencepiece trains."""
    max_length: int = option(256, at_least=1)
    """Maximum length in tokens, to which longer texts are truncated."""
    max_buckets: int = option(4, at_least=1)
    """Maximum number of buckets of texts of similar length; each is a shape to compile."""

    @property
    def without_file(self) -> str:
        has_file = self.tsv_file or not self.examples
        return (
            ""
            if has_file
            else f"no --data.tsv-file given: using {self.examples:,} generated dates in several languages"
        )


@dataclass(frozen=True)
class TextFile(Streamed):
    """Your own text file, for a language model (attention_jax/data/text_windows.py). --data.stream auto counts 16 times
    the bytes of the text."""

    loader: ClassVar[str] = "attention_jax.data.text_windows:load"

    text_file: str = option("", user_data=True)
    """A text in UTF-8 (.gz, .bz2 and .xz, too), or a .jsonl, .csv or .parquet file, whose texts are joined; empty reads
    the documentation that comes with Python."""
    column: str = "text"
    """The column of texts in a file that names its columns."""
    held_out_fraction: float = option(0.1, above=0, below=0.5)
    """Fraction of the text, from its end: the first half validates, the second tests."""
    tokenizer: Literal["character", "sentencepiece"] = "character"
    """sentencepiece: subwords, trained on the training part and cached."""
    pretrained: str = ""
    """Directory or .gguf file of a pretrained model whose tokenizer takes the place of `tokenizer`; --from sets it."""
    vocabulary_size: int = option(2_000, at_least=1)
    """Maximum number of subwords that sentencepiece trains."""
    sequence_length: int = option(128, at_least=1)
    """Length of a training window in tokens, the longest context."""
    overlap: int = option(2, at_least=1)
    """Training windows start every sequence_length / overlap tokens."""

    @property
    def without_file(self) -> str:
        return "" if self.text_file else "no --data.text-file given: using the documentation that comes with Python"


@dataclass(frozen=True)
class Images(Streamed):
    """Images with class labels, and how they vary while training (attention_jax/data/images.py,
    ops/images/augment.py)."""

    loader: ClassVar[str] = "attention_jax.data.images:load"

    dataset: Literal["digits", "fashion_mnist", "cifar10", "folder", "own", "tfds"] = option("digits", user_data=True)
    """digits, fashion_mnist, cifar10, folder, tfds, or own: the folder at `path`, without one the digits."""
    path: str = option("", user_data=True)
    """Directory of the dataset's published files (read once, then cached), or for "folder" of class/image.png; empty
    downloads. For "tfds" the name, or the directory, of a dataset prepared as array_record files, which is always read
    while training."""
    pixels: int = 0
    """Resize images to this many pixels per side; 0 keeps the size of the files."""
    resize_pixels: int = 0
    """Evaluate the central `pixels` of images resized to this many pixels (shorter side, by area); 0 evaluates the
    whole image."""
    standardize: bool = False
    """Subtract the mean color of the training images and divide by its standard deviation, both of the first 10,000
    images (of a stream, of 10,000 at equal distances); otherwise pixels are 0 to 1."""
    signed: bool = False
    """Scale pixels to -1 to 1 instead of 0 to 1."""
    validation: int = 0
    """Training images to hold out for validation metrics; of "own", 0 is a fifth of each class."""
    examples: int = option(0, smoke=1000, unlimited=True)
    """Number of training images to use; 0 is all."""
    crop_padding: int = 0
    """Zero padding on each side before a random crop, in pixels; 0 does not crop."""
    inception_crop: bool = False
    """Train on random boxes of 5 to 100 % of an image's area and aspect ratio 0.75 to 1.33, resized to `pixels`."""
    flip: bool = False
    """Mirror images left to right with probability 1/2."""
    auto_augment: bool = False
    """AutoAugment's policy for CIFAR-10: two of thirteen transforms per image."""
    rand_augment: int = 0
    """Transforms per image of RandAugment's 16, at strength 10 of 10 (ops/images/randaugment.py); 0 has none."""
    erase: float = option(0.0, at_most=1)
    """Probability of replacing a random rectangle by noise (random erasing, Zhong et al. 2020)."""
    mixup: float = 0.0
    """Mixup: average pairs of images with weights sampled from Beta(a, a); 0 turns it off."""
    mixup_rolled: bool = False
    """Mixup with one weight, at least 1/2, per batch, and the previous image as partner, instead of random ones per
    image."""
    cutmix: float = 0.0
    """Cutmix: paste a rectangle of another image, with an area sampled from Beta(a, a); 0 turns it off. Together with
    mixup, each step chooses one at random."""

    @property
    def downloads(self) -> str:
        return self.dataset if self.dataset in ("fashion_mnist", "cifar10") and not self.path else ""

    @property
    def without_file(self) -> str:
        return "no --data.path given: using scikit-learn's digits" if self.dataset == "own" and not self.path else ""


@dataclass(frozen=True)
class TimeMachine(DataOptions):
    """The characters of "The Time Machine" (attention_jax/data/public_texts.py): a-z and space, in windows."""

    loader: ClassVar[str] = "attention_jax.data.public_texts:load_time_machine"

    path: str = option("", user_data=True)
    """The published timemachine.txt or timemachine.txt.gz; empty downloads it."""
    sequence_length: int = option(32, at_least=1)
    """Length of a window: the number of characters it predicts."""
    train_windows: int = option(10_000, at_least=1, smoke=512)
    """Training windows, in order of the text; validation windows follow."""
    valid_windows: int = option(5_000, at_least=1, smoke=100)
    """Validation windows."""
    stride: int = option(1, at_least=1)
    """Characters from the start of one window to the start of the next."""

    @property
    def downloads(self) -> str:
        return "" if self.path else "time_machine/d2l"


@dataclass(frozen=True)
class Shakespeare(DataOptions):
    """The characters of tiny Shakespeare (attention_jax/data/public_texts.py), in windows."""

    loader: ClassVar[str] = "attention_jax.data.public_texts:load_shakespeare"

    path: str = option("", user_data=True)
    """The published input.txt (.gz, too), or its directory; empty downloads it."""
    sequence_length: int = option(64, at_least=1)
    """Length of a window: the number of characters it predicts."""
    overlap: int = option(2, at_least=1)
    """Training windows start every sequence_length / overlap characters."""

    @property
    def stride(self) -> int:
        """Characters from the start of one training window to the start of the next."""
        return max(self.sequence_length // self.overlap, 1)


@dataclass(frozen=True)
class MarkovChains(DataOptions):
    """Sequences of random Markov chains, each of a different chain (attention_jax/data/markov_chains.py)."""

    loader: ClassVar[str] = "attention_jax.data.markov_chains:load"

    num_states: int = option(3, at_least=2, at_most=26)
    """Number of states of a chain."""
    concentration: float = option(1.0, above=0)
    """Concentration of the Dirichlet prior of the rows of a transition matrix; 1 is uniform."""
    sequence_length: int = option(100, at_least=1)
    """Length of a sequence: the number of states it predicts."""
    train_windows: int = option(20_000, at_least=1, smoke=512)
    """Training sequences, each of a different chain."""
    valid_windows: int = option(1_000, at_least=1, smoke=100)
    """Validation sequences."""


@dataclass(frozen=True)
class ModularAddition(DataOptions):
    """Predict c in a + b = c modulo a number (attention_jax/data/modular_addition.py)."""

    loader: ClassVar[str] = "attention_jax.data.modular_addition:load"

    modulus: int = option(97, at_least=3)
    """Modulus of the addition; a and b are 0 to modulus - 1."""
    train_fraction: float = option(0.5, above=0, below=1)
    """Fraction of all equations for training; half of the rest validates, half tests."""
    max_length: int = option(3, at_least=1)
    """Tokens to which longer texts are truncated in prediction."""


@dataclass(frozen=True)
class Algorithmic(DataOptions):
    """The tasks of the Neural Turing Machine paper, generated (attention_jax/data/algorithmic.py)."""

    loader: ClassVar[str] = "attention_jax.data.algorithmic:load"

    task: Literal["copy", "repeat_copy", "associative_recall", "ngrams", "priority_sort"] = "copy"
    """Task of Graves et al. 2014, section 4."""
    sequences: int = option(50_000, smoke=40)
    """Distinct training sequences."""
    epoch_sequences: int = option(2_500, smoke=40)
    """Training sequences per epoch; each epoch continues where the previous one stopped."""
    valid_sequences: int = option(200, smoke=4)
    """Number of validation sequences, and of test sequences."""
