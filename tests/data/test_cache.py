"""Files in the data home: downloads arrive whole or not at all, and a home that cannot be written is one line."""

import hashlib
import os
import types
from concurrent.futures import ThreadPoolExecutor
from functools import partial
from pathlib import Path

import pytest
from tensorflow_datasets.core.download import downloader

from attention_jax.data import builders, images, lazy_images, tokenizers
from attention_jax.data.cache import derive_file, download
from attention_jax.errors import InputError
from attention_jax.files import explain_home_errors


def derive_text(path: Path) -> str:
    """A file of the data home, made of another."""
    with derive_file([str(path)], "tokens", ".tokens") as (target, temporary_path):
        if temporary_path:
            temporary_path.write_text("made")
    return target


WRITERS = {
    "derived": lambda path: derive_text(path),
    "download": lambda path: download("http://localhost", str(path / "home" / "downloads" / "a.txt"), "sha1:0"),
    "images": lambda path: images._load_published("cifar10", ""),
    "labels": lambda path: lazy_images.load_split("", "train"),
    "sentencepiece": lambda path: tokenizers.train_sentencepiece(["a text", "another text"], 12),
    "tokens": lambda path: tokenizers._tokenize_once("words", ["a b"], str.split),
}


@pytest.mark.parametrize("writer", WRITERS)
def test_data_home_below_file_is_one_line(writer, tmp_path, monkeypatch):
    place = tmp_path / "file"
    place.write_text("it is in the way")
    monkeypatch.setenv("TFDS_DATA_DIR", str(place / "home"))
    monkeypatch.setattr(images, "_decode_dataset", lambda name, path: {})
    monkeypatch.setattr(lazy_images, "open_split", lambda directory, split: [{"label": 0}])
    monkeypatch.setattr(lazy_images, "paths_of", lambda directory, split: [])
    with pytest.raises(InputError, match=r"cannot write to .*file/home.*\(Not a directory\); set TFDS_DATA_DIR$"):
        WRITERS[writer](place)


def test_a_directory_that_the_system_does_not_make(monkeypatch, tmp_path):
    """Such as one in /proc, which is said to be missing; an error about a file elsewhere stays what it is."""
    monkeypatch.setenv("TFDS_DATA_DIR", str(tmp_path / "home"))
    raising = partial(FileNotFoundError, 2, "No such file or directory")
    for inside in (tmp_path, tmp_path / "home", tmp_path / "home" / "attention_jax" / "x"):
        with pytest.raises(InputError, match=r"TFDS_DATA_DIR"), explain_home_errors():
            raise raising(str(inside))
    for outside in (tmp_path / "homes", tmp_path / "text.txt"):
        with pytest.raises(FileNotFoundError), explain_home_errors():
            raise raising(str(outside))
    with pytest.raises(BrokenPipeError), explain_home_errors():
        raise BrokenPipeError(32, "Broken pipe")


CONTENT = bytes(range(256)) * 200
SHA256 = "sha256:" + hashlib.sha256(CONTENT).hexdigest()


def test_a_file_arrives_once(server, tmp_path):
    server.files["a.gz"] = CONTENT
    path = str(tmp_path / "sub" / "a.gz")
    assert download(server.url + "a.gz", path, SHA256) == path
    assert download(server.url + "a.gz", path, SHA256) == path
    assert Path(path).read_bytes() == CONTENT and len(server.requests) == 1
    assert os.listdir(tmp_path / "sub") == ["a.gz"]


def test_another_digest(server, tmp_path):
    server.files["a"] = CONTENT
    download(server.url + "a", str(tmp_path / "a"), "sha1:" + hashlib.sha1(CONTENT).hexdigest())


@pytest.mark.parametrize("resumes", [True, False])
def test_a_cut_connection_is_resumed(server, tmp_path, resumes):
    server.files["a"], server.resumes = CONTENT, resumes
    path = str(tmp_path / "a")
    server.cut_after = 30_000
    with pytest.raises(InputError, match="cannot download .* 30000 of 51200 bytes"):
        download(server.url + "a", path, SHA256)
    assert not os.path.exists(path) and os.path.getsize(path + ".part") == 30_000
    server.cut_after = None
    download(server.url + "a", path, SHA256)
    assert server.requests[-1] == ("a", "bytes=30000-")
    assert Path(path).read_bytes() == CONTENT and not os.path.exists(path + ".part")


def test_a_part_that_is_already_whole(server, tmp_path):
    server.files["a"] = CONTENT
    (tmp_path / "a.part").write_bytes(CONTENT)
    download(server.url + "a", str(tmp_path / "a"), SHA256)
    assert (tmp_path / "a").read_bytes() == CONTENT


def test_a_part_longer_than_the_file_starts_over(server, tmp_path):
    server.files["a"] = CONTENT
    (tmp_path / "a.part").write_bytes(b"x" * 60_000)
    download(server.url + "a", str(tmp_path / "a"), SHA256)
    assert (tmp_path / "a").read_bytes() == CONTENT


def test_a_wrong_digest_leaves_nothing_behind(server, tmp_path):
    server.files["a"] = CONTENT[:-1] + b"!"
    with pytest.raises(InputError, match=r"has sha256 .*, expected .*--data.path") as caught:
        download(server.url + "a", str(tmp_path / "a"), SHA256)
    assert "\n" not in str(caught.value) and os.listdir(tmp_path) == []


def test_not_found_and_not_reachable_are_one_line(server, tmp_path):
    with pytest.raises(
        InputError, match="answered 404 Not Found; get the data elsewhere and give its place with --data.path"
    ):
        download(server.url + "nothing", str(tmp_path / "a"), SHA256)
    with pytest.raises(InputError, match="cannot download http://127.0.0.1:9/"):
        download("http://127.0.0.1:9/a", str(tmp_path / "a"), SHA256)


def test_images_without_network_are_one_line(caplog):
    """TFDS would try for minutes, with a warning for each attempt."""
    tried = []

    def fetch(urls):
        tried.append(downloader.MAX_RETRIES)
        with downloader.open_url("http://127.0.0.1:9/images.gz"):
            raise AssertionError("nothing answers there")

    builder = types.SimpleNamespace(name="images")
    with pytest.raises(InputError, match=r"cannot download images \(.*--data.path"):
        builders._FromFiles._download(builder, types.SimpleNamespace(download=fetch), {"x": "http://x"})
    assert tried == [3] and not caplog.records


def test_another_version_of_the_private_module_is_a_note(monkeypatch, capsys):
    monkeypatch.delattr(downloader, "MAX_RETRIES")
    builders.limit_attempts()
    assert "has no core.download.downloader.MAX_RETRIES: without a network" in capsys.readouterr().err
    assert not hasattr(downloader, "MAX_RETRIES")


def test_processes_that_download_one_file_request_it_once(server, tmp_path):
    server.files["a"] = CONTENT
    path = str(tmp_path / "a")
    with ThreadPoolExecutor(4) as pool:
        assert {*pool.map(lambda _: download(server.url + "a", path, SHA256), range(4))} == {path}
    assert len(server.requests) == 1 and Path(path).read_bytes() == CONTENT
