"""Corpora of snippets and mail are read from the archives of their packages."""

import importlib
import io
import json
import lzma
import tarfile

import pytest


def archive(files):
    packed = io.BytesIO()
    with tarfile.open(fileobj=packed, mode="w:gz") as target:
        for path, content in files.items():
            entry = tarfile.TarInfo(path)
            entry.size = len(content)
            target.addfile(entry, io.BytesIO(content))
    return packed.getvalue()


@pytest.fixture
def mood_texts(scripts):
    return importlib.import_module("mood_texts")


def rows(path):
    with lzma.open(path, "rt", encoding="utf-8") as stream:
        return [json.loads(line) for line in stream]


def test_texts_have_their_source_mood_and_folder_as_labels(mood_texts, tmp_path):
    files = {f"hutto_ICWSM_2014/{stem}_GroundTruth.txt": b"" for stem in mood_texts.SOURCES.values()}
    movies = b"1\t2.0\tgreat, isn't it\n2\t-0.5\ta\tb\n"
    inner = archive(files | {"hutto_ICWSM_2014/movieReviewSnippets_GroundTruth.txt": movies})
    given = {"vader/additional_resources/hutto_ICWSM_2014.tar.gz": inner, "vader/setup.py": b"raise"}
    (tmp_path / "snippets").write_bytes(archive(given))
    mail = {
        "package/data/spam-1/1.txt": b"From: x\nTo: y\n\nbuy\n\nnow",
        "package/data/hard-ham-1/2.txt": b"From: z\n\nhello",
        "package/data/data.js": b"no mail",
        "package/README.txt": b"From: me\n\nno mail",
    }
    (tmp_path / "mail").write_bytes(archive(mail))
    arguments = [str(tmp_path / name) for name in ("snippets", "mail", "out")]
    assert mood_texts.main(arguments) == 0
    found = {
        name: {
            row["text"]: row["labels"]
            for part in ("train", "test")
            for row in rows(tmp_path / "out" / f"{name}-{part}.jsonl.xz")
        }
        for name in ("movies", "products", "snippets", "mail")
    }
    assert found["movies"] == {"great, isn't it": ["positive"], "a\tb": ["negative"]}
    assert found["products"] == {}
    assert found["snippets"] == {
        "great, isn't it": ["movies", "positive", "strong"], "a\tb": ["movies", "negative"],
    }  # fmt: skip
    assert found["mail"] == {"buy\n\nnow": ["spam"], "hello": ["ham"]}


def test_an_archive_of_something_else_is_refused(mood_texts):
    with pytest.raises(SystemExit, match=r"hutto_ICWSM_2014\.tar\.gz in the archive once, got 0"):
        mood_texts.snippets(io.BytesIO(archive({"setup.py": b""})))
