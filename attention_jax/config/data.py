"""One dataclass per dataset: where it comes from and how it is prepared."""

from dataclasses import dataclass
from typing import ClassVar, Literal

from attention_jax.config.fields import option
from attention_jax.config.options import DataOptions


@dataclass(frozen=True, kw_only=True)
class Streamed(DataOptions):
    """Data that may be read while a model trains on them (attention_jax/data/streams.py)."""

    stream: Literal["auto", "always", "never"] = "auto"
    """Read while training; auto: where the training arrays would be larger than 1 GiB. What is not is on the device."""
    workers: int = option(0, resumable=True)
    """Processes that read ahead; 0 reads in threads of this one."""
    damaged: Literal["error", "skip"] = option("error", resumable=True)
    """A record that cannot be read is one line and the end, or it is left out (while training the next one stands for
    it), said and counted.
    """


@dataclass(frozen=True)
class Dates(DataOptions):
    """Date conversion, "TUESDAY, SEPTEMBER 25, 1984" -> "1984-09-25"."""

    loader: ClassVar[str] = "attention_jax.data.dates:load"

    path: str = option("", user_data=True)
    """A published date.txt or date.txt.gz; empty generates the data."""
    reverse_source: bool = False
    examples: int = option(50_000, smoke=1000)
    """How many are generated; 9 of 10 train, 1 of 10 tests."""
    validation: int = 0
    """Hold out this many training dates; metrics are then also given for them."""


@dataclass(frozen=True)
class Addition(DataOptions):
    """Addition of two numbers up to three digits as text, "16+75  " -> "_91  "."""

    loader: ClassVar[str] = "attention_jax.data.addition:load"

    path: str = option("", user_data=True)
    """The book's addition.txt or addition.txt.gz; empty generates the data."""
    reverse_source: bool = False
    examples: int = option(50_000, smoke=1000)


@dataclass(frozen=True)
class TextPairs(DataOptions):
    """What all corpora of sentence pairs have in common (attention_jax/data/pair_files.py)."""

    tokenizer: Literal["whitespace", "character", "words", "spacy", "bpe", "sentencepiece"] = "whitespace"
    """words: d2l's preprocessing; spacy: its rules, no model; bpe: ready-made merges; sentencepiece: trained on the
    data and cached.
    """
    lowercase: bool = False
    min_frequency: int = 1
    """Rarer training tokens are unknown."""
    vocabulary_size: int = option(8_000, at_least=1)
    """Most pieces that sentencepiece trains; a small text has fewer."""
    joint_vocabulary: bool = False
    """One vocabulary for both languages."""
    vocabulary_file: str = option("", user_data=True)
    """A vocabulary that is there already: a sentencepiece model, or for other tokenizers a token a line; or two of
    them, source,target.
    """
    reverse_source: bool = False
    max_length: int = option(100, at_least=1)
    """Most tokens of a sentence, its end mark counted."""
    overlong: Literal["error", "truncate", "drop"] = "truncate"
    """What happens to training pairs with a longer sentence; held-out ones are never dropped."""
    batch_tokens: int = 0
    """Tokens in a batch, padding counted (the longer side); 0: batches of train.batch_size sentences."""
    max_buckets: int = option(4, at_least=1)
    """Groups of similar length; each is a shape to compile."""


@dataclass(frozen=True)
class FraEng(TextPairs):
    """English-French sentences of tatoeba.org, as in d2l (attention_jax/data/fra_eng.py)."""

    loader: ClassVar[str] = "attention_jax.data.fra_eng:load"

    path: str = option("", user_data=True)
    """fra-eng.zip, fra.txt, or their directory; empty downloads."""
    split: Literal["d2l", "full"] = "full"
    """d2l: the first 512 pairs train, the next 128 validate. full: seeded, no source in two parts."""
    predict_padding: bool = False
    """Targets of `max_length` tokens whose padding is predicted and counted in the loss, as sections 11.4 and 11.7 of
    d2l do.
    """
    tokenizer: Literal["whitespace", "character", "words", "spacy", "bpe", "sentencepiece"] = "words"
    min_frequency: int = 2
    max_length: int = option(30, at_least=1)

    @property
    def downloads(self) -> str:
        return "" if self.path else "fra_eng/d2l"


@dataclass(frozen=True)
class Multi30k(TextPairs):
    """Image captions in English, German and French: WMT multimodal task 1 (attention_jax/data/multi30k.py)."""

    loader: ClassVar[str] = "attention_jax.data.multi30k:load"

    path: str = option("", user_data=True)
    """Directory with raw/, tok/ or bpe/en-de/ in it (or such a directory); empty downloads."""
    source: Literal["en", "de", "fr"] = "de"
    target: Literal["en", "de", "fr"] = "en"
    form: Literal["raw", "tok", "bpe"] = "tok"
    """raw: plain text; tok: lower-cased, normalised, Moses tokens; bpe: tok with ready-made joint BPE, 10,000 merges
    (English, German).
    """
    rows_of: int = option(1, at_least=1)
    """Above 1: in all splits, each pair occurs once alone and once in a row of 2 to this many pairs (long sentences are
    few).
    """
    max_length: int = option(80, at_least=1)

    @property
    def downloads(self) -> str:
        return "" if self.path else f"multi30k/{self.form}_{self.source}_{self.target}"


@dataclass(frozen=True)
class Scan(TextPairs):
    """Commands and the actions that they mean (attention_jax/data/scan.py)."""

    loader: ClassVar[str] = "attention_jax.data.scan:load"

    cutoff: int = 0
    """Train on commands of at most this many actions, test on the longer ones (22: the published length split); 0 tests
    a fifth, drawn at random.
    """
    second_cutoff: int = 0
    """Divide the commands longer than `cutoff`: those of at most this many actions, "valid_longer", are for choosing a
    model that generalises, the longer ones, "test_longer", for judging it; 0: all of them are "test".
    """


@dataclass(frozen=True)
class Reverse(TextPairs):
    """Joey NMT's toy task: write a row of numbers backwards (attention_jax/data/reverse.py)."""

    loader: ClassVar[str] = "attention_jax.data.reverse:load"

    examples: int = option(50_000, smoke=1000)
    """Training pairs of 1 to 25 numbers; 1,000 pairs of 1 to 30 numbers validate, 1,000 test."""


@dataclass(frozen=True)
class Corpus(TextPairs, Streamed):
    """Your own sentence pairs: two files with a sentence a line, or one with two columns; or several such files, with
    commas between them (attention_jax/data/corpus.py). Text counts 16 times its bytes in --data.stream auto.
    """

    loader: ClassVar[str] = "attention_jax.data.corpus:load"

    source_file: str = option("", user_data=True)
    target_file: str = option("", user_data=True)
    tsv_file: str = option("", user_data=True)
    """A file of `source TAB target` lines, instead of the other two."""
    examples: int = option(0, smoke=1000)
    """Without any file, translate this many generated dates; 0 asks for files."""
    languages: tuple[str, str] = ("xx", "xx")
    """Codes of the two languages, for the spacy tokenizer and for BLEU, which without words between spaces (zh, ja, ko,
    th) counts characters; xx is any.
    """
    merges: str = ""
    """The merges of the bpe tokenizer (the format of subword-nmt)."""
    packing: int = 0
    """Several pairs in a row of this many tokens a side, each of which sees only itself: hardly any padding, for models
    that can (a Transformer). Such a corpus is always read while training; batches without batch_tokens have
    train.batch_size rows. 0: a pair a row.
    """
    held_out_share: float = option(0.02, below=1)
    """This share of the sources validates and as much tests (at most 2,000 each)."""
    overlong: Literal["error", "truncate", "drop"] = "error"

    @property
    def is_local(self) -> bool:
        return bool(self.source_file or self.tsv_file or self.examples)


@dataclass(frozen=True)
class LabelledFile(DataOptions):
    """Your own texts, each with a label: a file of `label TAB text` lines (attention_jax/data/labelled_texts.py)."""

    loader: ClassVar[str] = "attention_jax.data.labelled_texts:load"

    tsv_file: str = option("", user_data=True)
    """A file of `label TAB text` lines (.gz, too); empty generates dates, of which the language is the label."""
    examples: int = option(2_000, smoke=1000)
    """How many dates are generated; 0 asks for a file."""
    damaged: Literal["error", "skip"] = option("error", resumable=True)
    """A line that is no label and text is one line and the end, or it is left out, said and counted."""
    held_out_share: float = option(0.1, below=1)
    """This share of the texts of a class validates and as much tests."""
    tokenizer: Literal["words", "character", "sentencepiece"] = "words"
    """words: words and marks in lower case; sentencepiece: pieces of words, learnt from the data and cached."""
    min_frequency: int = 2
    """Rarer words and characters of the training texts are unknown."""
    vocabulary_size: int = option(4_000, at_least=1)
    """Most pieces that sentencepiece learns."""
    max_length: int = option(256, at_least=1)
    """Tokens of a text; what is longer is cut."""
    max_buckets: int = option(4, at_least=1)
    """Groups of similar length; each is a shape to compile."""


@dataclass(frozen=True)
class TextFile(DataOptions):
    """Your own text file, for a language model (attention_jax/data/text_windows.py)."""

    loader: ClassVar[str] = "attention_jax.data.text_windows:load"

    text_file: str = option("", user_data=True)
    """A text in UTF-8 (.gz, too); empty reads the manual that Python brings."""
    damaged: Literal["error", "skip"] = option("error", resumable=True)
    """A line that is not UTF-8 is one line and the end, or it is left out, said and counted."""
    held_out_share: float = option(0.1, below=1)
    """The last part of the text; its first half validates, its second tests."""
    tokenizer: Literal["character", "sentencepiece"] = "character"
    """sentencepiece: pieces of words, learnt from the training part and cached."""
    vocabulary_size: int = option(2_000, at_least=1)
    """Most pieces that sentencepiece learns."""
    steps: int = option(128, at_least=1)
    """Tokens of a window: how far back the model learns to look."""
    overlap: int = option(2, at_least=1)
    """Training windows begin every steps / overlap tokens."""
    added: int = 300
    """Tokens that `launch.py predict` adds to a text."""
    temperature: float = 0.7
    """Of these: 0 takes the most probable one, higher is bolder."""


@dataclass(frozen=True)
class Images(Streamed):
    """Images with class labels, and how they vary while training (attention_jax/data/images.py, ops/augment.py)."""

    loader: ClassVar[str] = "attention_jax.data.images:load"

    dataset: Literal["digits", "fashion_mnist", "cifar10", "folder", "own", "tfds"] = option("digits", user_data=True)
    """digits, fashion_mnist, cifar10, folder, tfds, or own: the folder at `path`, without one the digits."""
    path: str = option("", user_data=True)
    """Directory of the dataset's published files (read once, then cached), or for "folder" of class/image.png; empty
    downloads. For "tfds" the name, or the directory, of a dataset prepared as array_record files, which is always read
    while training.
    """
    pixels: int = 0
    """Resize to this many pixels a side; 0 keeps the files' size."""
    resize_pixels: int = 0
    """Evaluate the middle `pixels` of images of this many pixels a side (a file's shorter side, by area); 0 evaluates
    all of an image.
    """
    standardize: bool = False
    """Subtract the mean colour of the training images and divide by its deviation; otherwise pixels are 0 to 1."""
    signed: bool = False
    """Pixels are -1 to 1 instead of 0 to 1."""
    validation: int = 0
    """Hold out this many training images; metrics are then also given for them. Of "own", 0 is a fifth of each class.
    """
    examples: int = option(0, smoke=1000)
    """Train on this many images only; 0 is all."""
    crop_padding: int = 0
    """Pad by this many pixels and crop at random."""
    inception_crop: bool = False
    """Train on boxes of 5 to 100 % of an image's area, of width to height 0.75 to 1.33, at `pixels`."""
    flip: bool = False
    """Mirror left and right with probability 1/2."""
    auto_augment: bool = False
    """The AutoAugment policy for CIFAR-10: two of thirteen distortions an image."""
    rand_augment: int = 0
    """This many of RandAugment's 16 distortions an image, at strength 10 of 10 (ops/randaugment.py)."""
    erase: float = option(0.0, at_most=1)
    """Probability of erasing a random rectangle."""
    mixup: float = 0.0
    """Blend pairs of images by Beta(a, a); 0 does not."""
    mixup_rolled: bool = False
    """Mixup with one share, at least 1/2, for a step, and the image before as partner, instead of draws an image."""
    cutmix: float = 0.0
    """Paste a rectangle of another image, its area by Beta(a, a); with mixup on, too, each step draws one."""

    @property
    def downloads(self) -> str:
        return self.dataset if self.dataset in ("fashion_mnist", "cifar10") and not self.path else ""

    @property
    def is_local(self) -> bool:
        return self.dataset in ("digits", "own") or bool(self.path)


@dataclass(frozen=True)
class TimeMachine(DataOptions):
    """The characters of "The Time Machine" (attention_jax/data/timemachine.py): a-z and space, in windows of `steps`
    characters.
    """

    loader: ClassVar[str] = "attention_jax.data.timemachine:load"

    path: str = option("", user_data=True)
    """The published timemachine.txt or timemachine.txt.gz; empty downloads it."""
    steps: int = option(32, at_least=1)
    """Characters a window predicts."""
    train_windows: int = option(10_000, smoke=512)
    """Windows that start at characters 0, 1, 2 ...; validation windows follow."""
    valid_windows: int = option(5_000, smoke=100)
    stride: int = option(1, at_least=1)
    """Characters from the start of one window to the start of the next."""

    @property
    def downloads(self) -> str:
        return "" if self.path else "time_machine/d2l"


@dataclass(frozen=True)
class Shakespeare(DataOptions):
    """The characters of tiny Shakespeare (attention_jax/data/shakespeare.py), in windows of `steps` characters."""

    loader: ClassVar[str] = "attention_jax.data.shakespeare:load"

    path: str = option("", user_data=True)
    """The published input.txt (.gz, too), or its directory; empty downloads it."""
    steps: int = option(64, at_least=1)
    """Characters a window predicts."""
    overlap: int = option(2, at_least=1)
    """Training windows begin every steps / overlap characters."""

    @property
    def stride(self) -> int:
        """Characters from the start of one training window to the start of the next."""
        return max(self.steps // self.overlap, 1)

    @property
    def is_local(self) -> bool:
        return bool(self.path)


@dataclass(frozen=True)
class MarkovChains(DataOptions):
    """Sequences of random Markov chains, each of a chain of its own (attention_jax/data/markov_chains.py)."""

    loader: ClassVar[str] = "attention_jax.data.markov_chains:load"

    states: int = option(3, at_least=1)
    concentration: float = option(1.0, above=0)
    """Of the Dirichlet prior of the rows of a transition matrix; 1 is uniform."""
    steps: int = option(100, at_least=1)
    """States a sequence predicts."""
    train_windows: int = option(20_000, smoke=512)
    """Sequences, that is chains, to train on."""
    valid_windows: int = option(1_000, smoke=100)


@dataclass(frozen=True)
class ModularAddition(DataOptions):
    """The equations a + b = c modulo a number, c to be told (attention_jax/data/modular_addition.py)."""

    loader: ClassVar[str] = "attention_jax.data.modular_addition:load"

    modulus: int = option(97, at_least=1)
    train_share: float = option(0.5, above=0, at_most=1)
    """Of all equations; of the rest one half validates and one tests."""
    max_length: int = option(3, at_least=1)
    """Tokens of a text that is asked about; what is longer is cut."""


@dataclass(frozen=True)
class ConvexHulls(DataOptions):
    """Random points and their convex hulls (attention_jax/data/convex_hulls.py)."""

    loader: ClassVar[str] = "attention_jax.data.convex_hulls:load"

    fewest: int = 5
    """Points of a set."""
    most: int = 10
    examples: int = option(200_000, smoke=1000)
    """Sets to train on."""
    held_out: int = 10_000
    """Sets to validate on, and to test on of the fewest and of the most points each."""


@dataclass(frozen=True)
class Citations(DataOptions):
    """A graph of papers that cite each other; the subject of each is predicted (attention_jax/data/citations.py)."""

    loader: ClassVar[str] = "attention_jax.data.citations:load"

    path: str = option("", user_data=True)
    """A cora.npz, or a file of the same arrays, which attention_jax/data/citations.py describes."""
    nodes: int = 0
    """Without a file, generate a graph of this many nodes; 0 asks for a file."""
    neighbours: bool = True
    """Whether a node attends to its neighbours, or only to itself."""


@dataclass(frozen=True)
class Algorithmic(DataOptions):
    """The tasks of the Neural Turing Machine paper, generated (attention_jax/data/algorithmic.py)."""

    loader: ClassVar[str] = "attention_jax.data.algorithmic:load"

    task: Literal["copy", "repeat_copy", "associative_recall", "ngrams", "priority_sort"] = "copy"
    sequences: int = option(50_000, smoke=40)
    """How many different ones there are to train on."""
    epoch_sequences: int = option(2_500, smoke=40)
    """How many of them make an epoch: each epoch goes on where the last one stopped."""
    valid_sequences: int = option(200, smoke=4)
    """How many validate; as many fresh ones test."""


@dataclass(frozen=True)
class Influence(DataOptions):
    """The linear system of experiments/influence_balancing.py."""

    updates: int = 3_000


@dataclass(frozen=True)
class Regression(DataOptions):
    """Points of a curve with noise, for kernel regression (experiments/nadaraya_watson.py)."""

    points: int = 40
    repetitions: int = 200
    """Data sets for each size at which consistency is measured."""


@dataclass(frozen=True)
class Samples(DataOptions):
    """How many random numbers a study averages over."""

    samples: int = 100_000


@dataclass(frozen=True)
class Sizes(DataOptions):
    """The largest sequence length and width of experiments/complexity.py."""

    longest: int = 512
    widest: int = 512
