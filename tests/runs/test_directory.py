"""The directory of a run: what is new or may resume in it, and what is refused."""

import pytest
from toy_experiment import CONFIG, toy

from attention_jax import config as configs
from attention_jax.claims import record
from attention_jax.errors import InputError
from attention_jax.runs import directory as run_directory, lifecycle

STUDY = lambda config, directory: {"x": 1.0}


def test_longer_run_continues_a_finished_one(tmp_path):
    longer = configs.replace(CONFIG, **{"train.total_epochs": CONFIG.train.total_epochs + 1})
    lifecycle.start(CONFIG, tmp_path / "run", study=lambda config, directory: {"x": 1.0})
    (tmp_path / "run" / "final").mkdir()
    with pytest.raises(KeyboardInterrupt):
        lifecycle.start(longer, tmp_path / "run", study=raise_interrupt, resume=True)
    assert run_directory.read_result(tmp_path / "run") is None and not run_directory.has_ended(tmp_path / "run")
    assert (tmp_path / "run" / "earlier_result.json").exists() and (tmp_path / "run" / "earlier_final").is_dir()
    with pytest.raises(InputError, match="has not ended"):
        run_directory.final_of(tmp_path / "run", longer)
    result = lifecycle.start(longer, tmp_path / "run", study=lambda config, directory: {"x": 2.0}, resume=True)
    assert run_directory.read_result(tmp_path / "run") == result and result["metrics"] == {"x": 2.0}


def raise_interrupt(config, directory):
    raise KeyboardInterrupt


def test_output_path_of_a_file_raises_input_error(tmp_path):
    (tmp_path / "file").touch()
    with pytest.raises(InputError, match="file: it must be a directory, and is a file"):
        run_directory.check_place(tmp_path / "file")


def test_a_run_directory_is_used_once(tmp_path):
    config = CONFIG
    lifecycle.start(config, tmp_path / "a", study=STUDY)
    with pytest.raises(InputError, match="already holds a run"):
        lifecycle.start(config, tmp_path / "a", study=STUDY)
    with pytest.raises(InputError, match="there is none"):
        lifecycle.start(config, tmp_path / "b", study=STUDY, resume=True)
    assert run_directory.fresh_directory("toy", tmp_path) == tmp_path / "toy" / "001"
    (tmp_path / "toy" / "041").mkdir(parents=True)
    assert run_directory.fresh_directory("toy", tmp_path) == tmp_path / "toy" / "042"


def test_second_run_in_a_directory_is_rejected(tmp_path):
    run_directory.create_directory(tmp_path / "toy", fresh=True)
    with pytest.raises(InputError, match="another run has taken it"):
        run_directory.create_directory(tmp_path / "toy", fresh=True)
    run_directory.create_directory(tmp_path / "toy")  # resumed


def test_a_damaged_configuration_is_one_clear_error(tmp_path):
    (tmp_path / "config.json").write_text('{"type": "Confi')
    with pytest.raises(InputError, match="config.json is damaged"):
        run_directory.read_config(tmp_path)
    (tmp_path / "config.json").write_text('{"type": "Config", "name": "x", "speed": 3}')
    with pytest.raises(InputError, match="speed"):
        run_directory.read_config(tmp_path)
    (tmp_path / "config.json").write_text('{"type": "mine.models:Lookup", "name": "x"}')
    with pytest.raises(InputError, match=r"No module named 'mine'.*directory of your package to PYTHONPATH") as error:
        run_directory.read_config(tmp_path, trust_code=True)
    assert "\n" not in str(error.value)


FOREIGN = {
    "final/thesis.tex": "x", "metrics.jsonl": "x", "figures/x.png": "x", "result.json": '{"metrics": {}}',
    "failure.json": '{"error": 1}', "config.json": '{"model_type": "bert"}', "checkpoints/4/model.pt": "x",
    "samples.txt": "x", ".git/HEAD": "x",
}  # fmt: skip


@pytest.mark.parametrize("name", FOREIGN)
@pytest.mark.parametrize("begin", ["start", "resume", "create", "reproduce"])
def test_directory_of_something_else_is_refused_untouched(tmp_path, name, begin):
    request, experiment = record.Reproduction(root=str(tmp_path), scale="smoke"), toy(tmp_path, study=STUDY)
    directory = request.directory(experiment, "", CONFIG.train.seed) if begin == "reproduce" else tmp_path / "mine"
    (directory / name).parent.mkdir(parents=True)
    (directory / name).write_text(FOREIGN[name])
    with pytest.raises(InputError, match=r"new or empty, and has|damaged, of another version"):
        if begin == "create":
            lifecycle.create_run(CONFIG, directory)
        elif begin == "reproduce":
            record.reproduce(experiment, request)
        else:
            lifecycle.start(CONFIG, directory, study=STUDY, resume=begin == "resume")
    files = [path for path in tmp_path.rglob("*") if path.is_file()]
    assert files == [directory / name] and files[0].read_text() == FOREIGN[name]


def test_empty_directories_are_begun_and_resumed(tmp_path):
    """Also with what a system or a killed run leaves in them; a link to one is followed."""
    for number, resume in enumerate((False, True)):
        directory = tmp_path / str(number)
        (directory / "figures").mkdir(parents=True)
        for name in (".DS_Store", ".writable"):
            (directory / name).touch()
        (tmp_path / f"link{number}").symlink_to(directory)
        lifecycle.start(CONFIG, tmp_path / f"link{number}", study=STUDY, resume=resume)
        assert (directory / "result.json").exists() and (directory / ".DS_Store").exists()


def test_longer_run_keeps_a_file_among_its_parameters(tmp_path):
    lifecycle.start(CONFIG, tmp_path / "run", study=STUDY)
    (tmp_path / "run" / "final").mkdir()
    (tmp_path / "run" / "final" / "notes.txt").write_text("mine")
    longer = configs.replace(CONFIG, **{"train.total_epochs": CONFIG.train.total_epochs + 1})
    with pytest.raises(InputError, match=r"final/notes.txt is not of the run and would be lost: move it"):
        lifecycle.start(longer, tmp_path / "run", study=STUDY, resume=True)
    assert (tmp_path / "run" / "final" / "notes.txt").read_text() == "mine"
