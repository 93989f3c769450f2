"""Documents in several files: they are read like one file, and errors name the file that is wrong."""

import json
import re

import numpy as np
import psutil
import pytest
from helpers import write

from distmom.corpus import ingest
from distmom.corpus.sources.files import SourceFiles
from distmom.errors import InputError, UsageError


def documents(n=500):
    rng = np.random.default_rng(3)
    return [
        (f"{i % 5},{i % 3}", " ".join(f"w{chr(97 + word)}" for word in rng.integers(0, 26, 9)))
        for i in range(n)
    ]


def as_tsv(part):
    return "".join(f"{labels}\t{text}\n" for labels, text in part)


def as_csv(part):
    return "labels,text\n" + "".join(f'"{labels}",{text}\n' for labels, text in part)


def as_jsonl(part):
    return "".join(json.dumps({"labels": labels.split(","), "text": text}) + "\n" for labels, text in part)


def as_lines(part):
    return "".join(f"{text}\n" for _, text in part)


WRITERS = {"tsv": as_tsv, "csv": as_csv, "jsonl": as_jsonl, "txt": as_lines}


def files(folder, suffix, size):
    """Write documents to files of ``size`` documents."""
    given = documents()
    return [
        write(folder / f"part-{start:03d}.{suffix}", WRITERS[suffix](given[start : start + size]))
        for start in range(0, len(given), size)
    ]


def contents(corpus):
    """Return everything about the documents of a corpus."""
    blocks = [corpus.read_shard(i) for i in range(len(corpus.shards))]
    words = np.concatenate([block.words.toarray() for block in blocks])
    labels = np.concatenate([block.labels.toarray() for block in blocks])
    return words.tolist(), labels.tolist(), list(corpus.vocabulary), list(corpus.label_names)


@pytest.mark.parametrize("suffix", list(WRITERS))
@pytest.mark.parametrize("size", [7, 130, 499])
def test_several_files_have_the_documents_of_one(tmp_path, suffix, size):
    one = ingest(files(tmp_path, suffix, 500)[0], tmp_path / "one", shard_documents=100)
    several = ingest(files(tmp_path, suffix, size), tmp_path / "several", shard_documents=100)
    assert contents(several) == contents(one)
    assert several.verify() == []
    assert max(shard.n_documents for shard in several.shards) <= 100
    assert several.settings["n_files"] == -(-500 // size)


def test_shards_hold_as_many_small_files_as_fit(tmp_path):
    corpus = ingest(files(tmp_path, "tsv", 30), tmp_path / "c", shard_documents=100)
    assert [shard.n_documents for shard in corpus.shards] == [90, 90, 90, 90, 90, 50]


def test_rows_are_counted_on_from_file_to_file(tmp_path):
    first = write(tmp_path / "a.tsv", "x\tone two\n\nx\tone three\n")
    second = write(tmp_path / "b.tsv", "\ny\ttwo three\n")
    for shard_documents in (1, 2, 9):
        corpus = ingest(
            [first, second], tmp_path / str(shard_documents), min_df=1, shard_documents=shard_documents
        )
        assert [id for i in range(len(corpus.shards)) for id in corpus.read_ids(i)] == ["1", "3", "5"]


def test_ids_are_those_of_the_files(tmp_path):
    lines = [json.dumps({"text": "one two", "id": f"d{i}"}) + "\n" for i in range(6)]
    paths = [write(tmp_path / f"{i}.jsonl", "".join(lines[2 * i : 2 * i + 2])) for i in range(3)]
    corpus = ingest(paths, tmp_path / "c", id_column="id", shard_documents=4)
    assert [corpus.read_ids(i) for i in range(2)] == [["d0", "d1", "d2", "d3"], ["d4", "d5"]]


def test_columns_of_tables_may_be_in_another_order(tmp_path):
    first = write(tmp_path / "a.csv", "labels,text\nx,one two\n")
    second = write(tmp_path / "b.csv", "id,text,labels\n7,one two,y\n")
    corpus = ingest([first, second], tmp_path / "c")
    assert list(corpus.label_names) == ["x", "y"]
    assert corpus.read_shard(0).words.toarray().tolist() == [[1, 1], [1, 1]]


@pytest.mark.parametrize(
    ("first", "second", "options", "message"),
    [
        ("0", "x\tone\nno tab\n", {}, "b.tsv:2: line: expected labels, a tab"),
        ("0", "7\tone two\n", {"labels": True}, "b.tsv:1: label: expected a line number from 0 to 1, got 7"),
        (
            "one",
            "z\tone\n",
            {"labels": True, "strict": True},
            "b.tsv:1: label: expected a name of the label file",
        ),
        ("0", "\ufeff0\tone two\n", {"strict": True}, "b.tsv:1: byte order mark"),
    ],
)
def test_errors_name_the_file(tmp_path, first, second, options, message):
    names = write(tmp_path / "names.txt", "zero\none\n")
    paths = [write(tmp_path / "a.tsv", f"{first}\tone two\n"), write(tmp_path / "b.tsv", second)]
    options = {**options, "labels": names} if options.pop("labels", False) else options
    with pytest.raises(InputError, match=re.escape(message)):
        ingest(paths, tmp_path / "c", **options)
    assert sorted(path.name for path in tmp_path.iterdir()) == ["a.tsv", "b.tsv", "names.txt"]


def test_errors_about_all_documents_name_the_source(tmp_path):
    paths = [write(tmp_path / f"{i}.txt", "one\n" if i else "two\n") for i in range(2)]
    with pytest.raises(InputError, match=r"0\.txt and 1 other file: vocabulary: expected a word in at least"):
        ingest(paths, tmp_path / "c", min_df=3)
    unlabelled = [write(tmp_path / f"{i}.jsonl", '{"text": "one two", "tag": "x"}\n') for i in range(3)]
    with pytest.raises(InputError, match=r"0\.jsonl:1: line: expected a field 'topics'"):
        ingest(unlabelled, tmp_path / "c", labels_field="topics")


def test_a_field_of_labels_in_any_file_is_enough(tmp_path, caplog):
    first = write(tmp_path / "a.jsonl", '{"text": "one two", "tag": "x"}\n')
    second = write(tmp_path / "b.jsonl", '{"text": "one two", "labels": ["x"]}\n')
    assert ingest([first, second], tmp_path / "c").n_labels == 1
    assert not caplog.records


def test_files_that_are_no_source_are_refused(tmp_path):
    tsv, table = write(tmp_path / "a.tsv", "x\tone two\n"), write(tmp_path / "b.csv", "text\none two\n")
    xmc = [write(tmp_path / f"{i}.xmc", "1 2 1\n0 0:1 1:1\n") for i in range(2)]
    cases = [
        ([], "expected a file or several, got none"),
        ([tsv, tsv], "expected each file once, got it twice"),
        ([tsv, table], "expected files of one format, got csv after tsv"),
        ([tsv, tmp_path / "none.tsv"], "there is no such file"),
        ([tsv, f"{tsv}\0"], "there is no such file"),
        ([tsv, 7], "expected a path or a list of paths, got a list with 7"),
        (None, "expected a path or a list of paths, got NoneType"),
        (b"a.tsv", "expected a path or a list of paths, got bytes"),
        # The next process would have another order.
        ({str(tsv)}, "expected a path or a list of paths, got set"),
        (xmc, "expected one file with format xmc, as its columns have no names"),
    ]
    for source, message in cases:
        with pytest.raises(UsageError, match=message):
            ingest(source, tmp_path / "c")
    assert not list(tmp_path.glob("c*"))


def test_a_changed_file_is_named(tmp_path):
    paths = files(tmp_path, "tsv", 250)

    def change(stage, done, total):
        if stage == "write":
            paths[1].write_text("x\tanother text\n")

    with pytest.raises(InputError, match=r"part-250\.tsv: source: expected a file that does not change"):
        ingest(paths, tmp_path / "c", progress=change)


def test_an_interrupted_ingest_reuses_the_parts_of_all_files(tmp_path):
    paths = files(tmp_path, "csv", 60)
    whole = ingest(paths, tmp_path / "whole", shard_documents=100)
    events = []

    def interrupt(stage, done, total):
        events.append((stage, done, total))
        if len(events) == 4:
            raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        ingest(paths, tmp_path / "c", shard_documents=100, progress=interrupt)
    assert [done for _, done, _ in events] == sorted(done for _, done, _ in events)
    assert events[0][2] == sum(path.stat().st_size for path in paths)
    encoded = []
    corpus = ingest(
        paths, tmp_path / "c", shard_documents=100,
        map=lambda f, tasks: (encoded.append(f.__name__) or f(task) for task in tasks),
    )  # fmt: skip
    assert encoded.count("encode_chunk") == len(paths) - 4
    assert corpus.digest == whole.digest


@pytest.mark.parametrize("change", ["fewer", "more", "order", "content"])
def test_an_interrupted_ingest_of_other_files_starts_again(tmp_path, change):
    paths = files(tmp_path, "tsv", 60)
    begun = paths[:-1] if change == "more" else paths
    events = []

    def interrupt(stage, done, total):
        events.append(stage)
        if len(events) == 4:
            raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        ingest(begun, tmp_path / "c", shard_documents=100, progress=interrupt)
    assert (tmp_path / "c.partial").exists()
    if change == "content":
        paths[0].write_text("z\tanother text of other words\n")
    given = {"fewer": paths[1:], "order": paths[::-1]}.get(change, paths)
    resumed = ingest(given, tmp_path / "c", shard_documents=100)
    assert resumed.digest == ingest(given, tmp_path / "new", shard_documents=100).digest
    assert not list(tmp_path.glob("c.*"))


def test_files_are_open_one_at_a_time(tmp_path):
    paths, process, counts = files(tmp_path, "csv", 4), psutil.Process(), []

    def count(function, tasks):
        for task in tasks:
            counts.append(process.num_fds())
            yield function(task)

    ingest(paths, tmp_path / "c", map=count)
    assert max(counts) <= min(counts) + 3


def test_progress_covers_all_files(tmp_path):
    paths, seen = files(tmp_path, "jsonl", 90), []
    ingest(paths, tmp_path / "c", progress=lambda *event: seen.append(event))
    total = sum(path.stat().st_size for path in paths)
    assert [event for event in seen if event[0] == "read"][-1] == ("read", total, total)


def test_a_change_of_any_file_is_found(tmp_path):
    folder = tmp_path / "x.zarr"
    folder.mkdir()
    (folder / "a").write_text("1")
    (tmp_path / "lengths").write_text("12")
    files = SourceFiles([folder, tmp_path / "lengths"])
    assert [entry[:2] for entry in files.state] == [(f"{folder}/a", 1), (f"{tmp_path}/lengths", 2)]
    assert files.n_bytes == 3
    files.check_unchanged()
    for change, path in ((folder / "b").touch, folder / "b"), ((folder / "a").unlink, folder / "a"):
        files = SourceFiles([folder, tmp_path / "lengths"])
        change()
        with pytest.raises(
            InputError, match=re.escape(f"{path}: source: expected a file that does not change")
        ):
            files.check_unchanged()
    (tmp_path / "lengths").unlink()
    with pytest.raises(UsageError, match="lengths: cannot be opened"):
        files.check_unchanged()
