"""What comes from data cannot steer the terminal."""

import json
import logging
import re
import shutil

import pytest
from crafted import edit_arrays, edit_record
from helpers import lda_corpus, planted_matrices

from distmom.cli.terminal import plain
from distmom.corpus import MemoryCorpus
from distmom.models import MultiLabelMoM, SpectralLDA, TopicMoments

#: clears the screen, sets its title, goes to the start of the line, turns text round, and is no character
HOSTILE = "a\x1b[2J\x1b]0;title\x07\r\x9b1m\u202eb\x7f"
CONTROL = re.compile("[\x00-\x09\x0b-\x1f\x7f-\x9f\u2028-\u202e\u2066-\u2069\ud800-\udfff]")


@pytest.fixture(scope="module")
def place(tmp_path_factory):
    """Models and moments whose words, labels and parameters somebody has crafted."""
    folder = tmp_path_factory.mktemp("hostile")
    X, Y = planted_matrices()
    MultiLabelMoM(4, head="posterior").fit_corpus(MemoryCorpus(X[:400], Y[:400])).save(folder / "labels")
    topics = lda_corpus(400, 60, 3)[2]
    SpectralLDA(3, alpha0=1.0, init="tensor", n_refine=1, max_df=1.0).fit_corpus(topics).save(folder / "lda")
    TopicMoments(3, n_parts=2, max_df=1.0).fit_corpus(topics).save(folder / "moments")

    def rename(arrays, names):
        for key in names:
            names[key] = [f"{name}{HOSTILE}" for name in names[key]]

    for name in ("labels", "lda", "moments"):
        edit_arrays(folder / name, rename)
        own = "length_scale" if name == "labels" else "min_df"
        edit_record(
            folder / name, lambda record, own=own: record["parameters"].update({own: HOSTILE + "\nkind"})
        )
    return folder


def test_control_characters_become_escapes():
    assert plain("a\x1b[2J\r\n\t\x9b\u202e\udc80\x00") == r"a\x1b[2J\r\n\t\x9b\u202e\udc80\x00"
    for kept in ("plain", "äöü ß", "日本語", "שלום", "e\u0301", "\U0001f600"):
        assert plain(kept) == kept


@pytest.mark.parametrize(
    ("command", "name", "options"),
    [
        ("info", "labels", ()),
        ("info", "lda", ()),
        ("info", "moments", ()),
        ("topics", "labels", ("--top", 30)),
        ("topics", "lda", ("--top", 30)),
        ("search", "moments", ("--force", "--word", f"1{HOSTILE}")),
    ],
)
def test_words_labels_and_parameters_are_shown_without_control(place, run, command, name, options):
    code, out, err = run(command, place / name, *options)
    assert code == 0, err
    assert CONTROL.search(out + err) is None
    assert r"\x1b[2J\x1b]0;title\x07\r\x9b1m\u202e" in out
    assert not any(line.startswith("kind") for line in out.splitlines()[1:])
    if command == "topics":
        assert len(out.splitlines()) == (4 if name == "labels" else 3)
    # JSON has escapes of its own, and the text as it is.
    found = json.dumps(json.loads(run(command, place / name, *options, "--json")[1]), ensure_ascii=False)
    assert json.dumps(HOSTILE, ensure_ascii=False)[1:-1] in found


def test_errors_name_files_and_words_without_control(place, run, tmp_path):
    odd = tmp_path / f"{HOSTILE}\udc80"
    shutil.copytree(place / "lda", odd)
    (odd / "vocabulary.txt").unlink()
    (tmp_path / "bad.tsv").write_text(f"{HOSTILE}\n", newline="")
    commands = (
        ("info", odd, 4),
        ("verify", odd, 4),
        ("info", tmp_path / f"none{HOSTILE}", 2),
        ("search", place / "moments", "--word", HOSTILE, 2),
        ("ingest", tmp_path / "bad.tsv", tmp_path / "c", "--workers", 0, 3),
        ("topics", place / "lda", f"--{HOSTILE}", 2),
        (HOSTILE, 2),
    )
    for *command, expected in commands:
        code, out, err = run(*command)
        assert code == expected
        assert CONTROL.search(out + err) is None
        # click leaves out codes of colours and of the cursor where it does not write to a terminal.
        assert r"\x1b]0;title\x07" in out + err


def test_logged_sentences_have_no_control(run, monkeypatch, place):
    from distmom.cli import places

    def load(path):
        logging.getLogger("distmom").warning("about %s", HOSTILE)
        raise KeyboardInterrupt

    monkeypatch.setattr(places, "load_model", load)
    code, _, err = run("info", place / "lda")
    assert code == 130
    assert err.splitlines()[0] == f"warning: about {plain(HOSTILE)}"
