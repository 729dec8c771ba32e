"""The first lines of a run."""

import importlib.util
import re
from pathlib import Path
from types import SimpleNamespace

import jax
import pytest

from attention_jax import catalog, config as configs, tasks
from attention_jax.claims import record
from attention_jax.config.fields import user_data
from attention_jax.runs import accelerators, header as of_header
from attention_jax.runs.accelerators import accelerator_hint
from attention_jax.runs.header import header

DIRECTORY = Path("runs/x/001")


def test_a_run_begins_with_five_lines():
    config = configs.Config("x", configs.Dates(path="date.txt"), configs.LuongSeq2seqConfig())
    facts = {"source_vocabulary": 87, "train_pairs": 45_000, "test_pairs": 5_000, "test_inputs_also_in_train": 0}
    lines = header(config, DIRECTORY, facts, 207_259, "about 44 seconds").splitlines()
    assert [line.partition(":")[0] for line in lines] == ["training", "parameters", "device", "directory", "time"]
    assert lines[0] == "training:   x, LuongSeq2seq on Dates: train pairs 45,000, test pairs 5,000"
    assert lines[1].endswith(" 207,259") and re.search(r"cpu, \d+ cores|\d+ x ", lines[2])
    assert lines[3].endswith(" runs/x/001") and lines[4].endswith(" about 44 seconds")
    assert "list runs/x/001 estimates it" in header(config, DIRECTORY, facts, 1, "")


def test_classes_of_very_different_sizes_are_a_warning():
    config = configs.Config("x", configs.LabeledFile(tsv_file="labels.tsv"), configs.TextClassifierConfig())
    facts = {"rarest_class": "boy (10)", "largest_class": "people (52)", "class_imbalance": 5.2}
    warning = header(config, DIRECTORY, facts, 1, "").splitlines()[-1]
    assert re.match(r"warning: +classes are imbalanced, boy \(10\) is the rarest, people \(52\) the largest", warning)
    assert "warning" not in header(config, DIRECTORY, facts | {"class_imbalance": 4.9}, 1, "")


def test_a_computation_has_no_parameters():
    config = configs.Config("x", None, None)
    assert header(config, DIRECTORY, {}, 0, "").splitlines()[0] == "experiment: x"


@pytest.mark.parametrize(
    "data, option, used",
    [
        (configs.Dates(examples=600), "--data.path", "600 generated dates"),
        (configs.Addition(), "--data.path", "50,000 generated sums"),
        (configs.Corpus(examples=2_000), "--data.tsv-file", "2,000 generated date pairs"),
        (configs.LabeledFile(), "--data.tsv-file", "2,000 generated dates in several languages"),
        (configs.TextFile(), "--data.text-file", "the documentation that comes with Python"),
        (configs.Images("own"), "--data.path", "scikit-learn's digits"),
    ],
    ids=lambda data: type(data).__name__,
)
def test_header_first_names_substitute_data(data, option, used):
    config = configs.Config("x", data, None)
    assert header(config, DIRECTORY, {}, 0, "").splitlines()[0] == f"no {option} given: using {used}"
    with_file = configs.replace(config, **{option[2:].replace("-", "_"): "file"})
    assert "given" not in header(with_file, DIRECTORY, {}, 0, "")
    assert option in user_data(config)


def test_data_that_need_no_file_say_nothing():
    for data in (configs.Images("digits"), configs.Multi30k(), configs.Corpus(), configs.LabeledFile(examples=0)):
        assert data.without_file == ""


def test_default_run_is_expected_under_one_minute():
    luong = catalog.load_experiment("date_luong")
    assert round(record.estimate_seconds(luong, luong.config())) == 44


CALLS = [
    {"cuda": ("cudnn", ""), "cpu": ("plain", "")},
    {"cuda": ("fused", "cudnn adds biases of the key alone, not T5Bias"), "cpu": ("plain", "")},
    {"cuda": ("cudnn", ""), "cpu": ("plain", "")},
]


@pytest.mark.parametrize(
    "platform, lines",
    [
        ("cpu", ["attention:  3 x XLA, all weights at once"]),
        (
            "cuda",
            ["attention:  2 x cuDNN", " " * 12 + "XLA, block by block: cudnn adds biases of the key alone, not T5Bias"],
        ),
    ],
)
def test_how_attention_is_computed_follows_the_device(platform, lines, monkeypatch):
    monkeypatch.setattr(of_header, "platform", lambda: platform)
    header_lines = header(configs.Config("x", None, None), DIRECTORY, {}, 0, "", CALLS).splitlines()
    assert (
        header_lines[1].startswith("device:")
        and header_lines[2:-2] == lines
        and header_lines[-2].startswith("directory:")
    )


@pytest.mark.parametrize(
    "device, name",
    [
        (("gpu", "PJRT C API\ncuda 13010"), "cuda"), (("gpu", "PJRT C API\nrocm 60300"), "default"),
        (("tpu", "libtpu"), "tpu"), (("cpu", "cpu"), "cpu"), (("metal", "1"), "default"),
    ],
)  # fmt: skip
def test_a_device_has_a_platform(device, name, monkeypatch):
    client = SimpleNamespace(platform_version=device[1])
    monkeypatch.setattr(jax, "devices", lambda: [SimpleNamespace(platform=device[0], client=client)])
    assert of_header.platform() == name


@pytest.mark.slow
def test_attention_calls_are_those_of_training_loss():
    """Dropout of weights, which only training has, is among the reasons; each layer calls attention once."""
    config = catalog.load_experiment("vit_digits").config()
    options = {"model.num_layers": 2, "model.attention_dropout": 0.1, "model.dtype": "bfloat16"}
    task = tasks.build(configs.replace(config, **options))
    calls = task.attention_calls(jax.eval_shape(task.init, jax.random.PRNGKey(0)))
    assert [call["tpu"].reason for call in calls] == ["flash is used without dropout"] * 2
    recurrent = tasks.build(catalog.load_experiment("date_seq2seq").config())
    assert recurrent.attention_calls(jax.eval_shape(recurrent.init, jax.random.PRNGKey(0))) == []


def machine(root: Path, *files: str, pci: tuple[str, str] | None = None) -> Path:
    """A tree of the operating system's files."""
    for name in files:
        (root / name).parent.mkdir(parents=True, exist_ok=True)
        (root / name).touch()
    if pci:
        slot = root / "sys/bus/pci/devices/0000:00:04.0"
        slot.mkdir(parents=True)
        for name, number in zip(("vendor", "device"), pci):
            (slot / name).write_text(number + "\n")
    return root


@pytest.mark.parametrize(
    "files, pci, extra",
    [
        (["dev/nvidia0", "dev/nvidiactl"], None, "cuda12"),
        (["dev/nvidia3"], None, "cuda12"),
        (["dev/nvidiactl"], None, None),  # a driver without a card
        (["dev/dxg"], None, None),  # Windows' Linux with a card of another maker
        ([], ("0x1ae0", "0x0063"), "tpu"),
        ([], ("0x1ae0", "0x0042"), None),  # Google's network card
        ([], ("0x10de", "0x0063"), None),
        ([], None, None),
    ],
)
def test_unused_accelerator_hint_has_install_command(files, pci, extra, tmp_path, monkeypatch):
    monkeypatch.setattr(importlib.util, "find_spec", lambda name: None)
    monkeypatch.setattr(accelerators.shutil, "which", lambda name: None)
    line = accelerator_hint(machine(tmp_path, *files, pci=pci), {})
    assert "\n" not in line and line.endswith(f'pip install "jax[{extra}]=={jax.__version__}"' if extra else line)
    assert bool(line) == bool(extra)
    assert accelerator_hint(tmp_path, {"JAX_PLATFORMS": "cpu"}) == ""  # as the user wishes


def test_used_accelerator_gives_no_hint(tmp_path, monkeypatch):
    monkeypatch.setattr(importlib.util, "find_spec", lambda name: name if "cuda13" in name else None)
    assert accelerator_hint(machine(tmp_path, "dev/nvidia0"), {}) == ""


def test_an_unused_accelerator_comes_before_everything_else(monkeypatch):
    monkeypatch.setattr(of_header, "accelerator_hint", lambda: "this machine has a TPU")
    assert header(configs.Config("x", None, None), DIRECTORY, {}, 0, "").startswith("this machine has a TPU\n")
