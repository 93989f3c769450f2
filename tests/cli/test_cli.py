"""Commands in this process: results, messages and exit codes."""

import json
import re
import subprocess
import sys

import pytest
from disks import needs_mount
from helpers import SUBJECTS, labelled_lines, scores

from distmom.cli import shared
from distmom.cli.app import cli
from distmom.cli.main import main
from distmom.corpus import open_corpus
from distmom.engine import shards
from distmom.errors import CancelledError
from distmom.models import MultiLabelMoM


def test_ngrams_are_a_length_or_a_range(tmp_path, run, place):
    local, source = ("--workers", "0", "--quiet"), str(place / "train.tsv")
    run("ingest", source, str(tmp_path / "c"), "--analyzer", "char_wb", "--ngrams", "3-4", *local)
    assert {len(gram) for gram in open_corpus(tmp_path / "c").vocabulary} == {3, 4}
    run("ingest", source, str(tmp_path / "w"), "--ngrams", "2", *local)
    assert {gram.count(" ") for gram in open_corpus(tmp_path / "w").vocabulary} == {0, 1}
    for damaged in ("0", "4-3", "x", "3-", "11"):
        status, _, err = run("ingest", source, str(tmp_path / "x"), "--ngrams", damaged, *local)
        assert status == 2
        assert "expected a number from 1 to 10" in err


def test_from_text_to_report(tmp_path, run, place):
    local = ("--workers", "0")
    source = place / "train.tsv"
    code, out, err = run("ingest", source, tmp_path / "c", *local, "--json")
    assert (code, err) == (0, "")
    ingested = json.loads(out)
    assert (ingested["n_documents"], ingested["n_words"], ingested["n_labels"]) == (400, 15, 3)
    code, out, _ = run("plan", tmp_path / "c", "-k", 3, "--json")
    assert code == 0
    planned = json.loads(out)
    assert planned["n_scans"] > 5
    assert planned["third_moment"] == "full"
    assert "slices" not in {p["name"] for p in planned["passes"]}
    code, out, err = run("fit", tmp_path / "c", tmp_path / "m", "-k", 3, *local, "--json")
    assert code == 0
    assert json.loads(out)["n_states"] == 3
    assert "moments: 400 documents in" in err
    assert sorted(entry.name for entry in tmp_path.iterdir()) == ["c", "m"]
    for name, kind in (("c", "corpus"), ("m", "model")):
        code, out, _ = run("info", tmp_path / name, "--json")
        assert code == 0
        assert json.loads(out)["kind"] == kind
        assert run("verify", tmp_path / name) == (0, f"{tmp_path / name}: all bytes are as written\n", "")
    code, out, _ = run("evaluate", tmp_path / "m", place / "test.tsv", *local, "--json")
    metrics = json.loads(out)
    assert code == 0
    assert metrics["P@1"] == 1.0
    (tmp_path / "metrics.json").write_text(out)
    code, out, _ = run(
        "predict", tmp_path / "m", place / "test.tsv", tmp_path / "p", "--top", 2, *local, "--json"
    )
    assert code == 0
    assert json.loads(out) == {
        "n_documents": 60,
        "n_empty": 0,
        "n_unknown_words": 0,
        "out": str(tmp_path / "p"),
    }
    header, *lines = (tmp_path / "p" / "predictions.tsv").read_text().splitlines()
    assert header == "id\tlabel\tprobability"
    assert [line.split("\t")[0] for line in lines] == [str(i // 2 + 1) for i in range(120)]
    subjects = [line.split("\t")[0] for line in (place / "test.tsv").read_text().splitlines()]
    assert [line.split("\t")[1] for line in lines[::2]] == subjects
    code, out, _ = run("topics", tmp_path / "m", "--top", 5, "--json")
    assert code == 0
    found = {frozenset(word for word, _ in topic["words"]) for topic in json.loads(out)["topics"]}
    assert found == {frozenset(words) for words in SUBJECTS.values()}
    code, out, _ = run("report", tmp_path / "m", tmp_path / "r.html", "--metrics", tmp_path / "metrics.json")
    assert (code, out) == (0, f"{tmp_path / 'r.html'}\n")
    assert "horse" in (tmp_path / "r.html").read_text()


@pytest.mark.parametrize("name", list(cli.commands))
def test_help_has_an_example_and_says_what_each_option_is(name, run):
    code, out, _ = run(name, "--help")
    assert code == 0
    assert (
        f"distmom {name} " in out.split("Example", 1)[1] or f"distmom {name}\n" in out.split("Example", 1)[1]
    )
    options = [p for p in cli.commands[name].params if p.param_type_name == "option"]
    assert all(option.help for option in options)


def test_text_for_people_has_every_key(place, run):
    _, out, _ = run("info", place / "corpus")
    assert "n_documents  400" in out
    assert "warnings     none" in out
    _, out, _ = run("topics", place / "model", "--top", 2)
    assert len(out.splitlines()) == 3
    _, out, _ = run("plan", place / "corpus", "-k", 3)
    assert out.splitlines()[-2].startswith("in all: ")
    assert re.fullmatch(r"time: \d+\.\d to \d+\.\d s with \d+ workers", out.splitlines()[-1])
    assert "time:" not in run("plan", place / "corpus", "-k", 3, "--workers", 0)[1]
    assert "third moment: added up whole (--third-moment full)" in out
    _, out, _ = run("plan", place / "corpus", "-k", 3, "--third-moment", "slices")
    assert "third moment: by slices, in a pass of its own (--third-moment slices)" in out
    names = [line.split()[0] for line in out.splitlines()]
    assert {"moments", "slices", "labels", "selection"} <= set(names)


def test_a_plan_in_python_prints_what_the_command_prints(place, run):
    plan = MultiLabelMoM(3).plan(open_corpus(place / "corpus"))
    assert run("plan", place / "corpus", "-k", 3, "--workers", 0)[1] == f"{plan}\n"


def test_words_and_labels_may_be_those_of_a_corpus(place, run, tmp_path):
    digests = []
    for like in ("corpus", "model"):
        code, out, _ = run(
            "ingest", place / "test.tsv", tmp_path / like, "--like", place / like, "--workers", 0, "--json"
        )
        assert code == 0
        digests.append(json.loads(out)["digest"])
    assert digests[0] == digests[1]
    assert open_corpus(tmp_path / "corpus").vocabulary == open_corpus(place / "corpus").vocabulary


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        ("ingest nothing.tsv new", "there is no such file"),
        ("ingest {train.tsv} {corpus} --workers 0", "already exists"),
        ("ingest {train.tsv} new --format docx", "'docx' is not one of"),
        (
            "ingest {train.tsv} new --max-df x --workers 0",
            "--max-df: expected a number of documents or a share, got 'x'",
        ),
        (
            "ingest {test.tsv} new --format xmc --min-df 3 --analyzer char --workers 0",
            "min_df, analyzer: expected none with format xmc, whose documents have numbers of words rather than",
        ),
        ("ingest {train.tsv} new --labels nothing --workers 0", "nothing: cannot be opened"),
        ("ingest {train.tsv} new --like nothing --workers 0", "nothing: there is no such directory"),
        ("ingest {train.tsv} new --format svmlight", "give --zero-based or --one-based"),
        ("ingest {train.tsv} /proc/new --workers 0", "No such file or directory"),
        ("ingest {corpus} new", "is not a file but a directory: expected one file"),
        ("ingest - new --format tsv", "-: is not a file: expected one, as standard input and pipes cannot"),
        (
            "ingest /dev/null new --format tsv",
            "/dev/null: is not a file: expected one, as standard input and pip",
        ),
        ("info nothing", "nothing: there is no such directory"),
        ("verify nothing", "nothing: there is no such directory"),
        ("plan {corpus} -k 16", "n_components=16 is more than the 15 words"),
        ("fit {corpus} new -k 16", "n_components=16 is more than the 15 words"),
        ("fit {corpus} new -k 0", "--n-components: expected at least 1, got 0"),
        ("fit {corpus} new -k some", "--n-components: expected a whole number, got 'some'"),
        ("plan {corpus} --model docx", "'docx' is not one of"),
        ("plan {corpus} --nothing 1", "No such option"),
        ("fit {corpus} {model} -k 3", "the model exists"),
        ("fit {corpus} {train.tsv} -k 3", "exists and is not a model"),
        ("fit nothing new -k 3", "is not a corpus"),
        ("fit {corpus} new -k 3 --decomposition svd", "'svd' is not one of"),
        (
            "fit {corpus} new -k 3 --decomposition power --third-moment slices",
            "decomposition='power' needs the whole third moment",
        ),
        ("fit {corpus} new -k 3 --memory-limit 3x", "expected a size such as 2GiB or 500MB, got '3x'"),
        ("fit {corpus} new -k 3 --memory-limit 1MB --workers 0", "raise the memory limit"),
        ("fit {corpus} new -k 3 --scheduler here", "expected an address such as tcp://HOST:8786, got 'here'"),
        ("fit {corpus} new -k 3 --scheduler http://h:8787", "such as tcp://HOST:8786, got 'http://h:8787'"),
        ("fit {corpus} new -k 3 --scheduler tcp://127.0.0.1:1 --workers 2", "either a scheduler or"),
        ("fit {corpus} new -k 3 --scheduler tcp://192.0.2.1:8786", "without TLS are refused"),
        ("fit {corpus} new -k 3 --seed -1", "--seed: expected at least 0, got -1"),
        ("moments {corpus} new -k 3 --seed -1", "--seed: expected at least 0, got -1"),
        ("search {corpus} --word cat --seed -1", "--seed: expected at least 0, got -1"),
        ("resume {corpus}", "not a run"),
        ("predict {model} nothing out --workers 0", "there is no such file"),
        ("predict nothing {test.tsv} out", "not a model"),
        (
            "predict {model} {test.tsv} {corpus} --workers 0",
            "exists and does not contain predictions; choose an",
        ),
        # Before the source is read.
        ("predict {model} nothing {corpus}", "exists and does not contain predictions; choose an"),
        ("evaluate {model} {test.tsv} --head best", "--head: expected one of"),
        ("topics {corpus}", "not a model"),
        ("report {model} {model}", "already exists; choose another location or overwrite it"),
        ("report {model} {model} --overwrite", "model: is a directory; give the path of a file"),
        ("report {model} new.html --metrics {train.tsv}", "not the JSON of 'evaluate --json'"),
        ("report {model} new.html --metrics nothing.json", "error: nothing.json: No such file or directory"),
        ("nothing", "No such command 'nothing'"),
    ],
)
def test_wrong_use_is_one_clear_sentence_and_exit_2(arguments, message, place, run, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    names = {name: place / name for name in ("train.tsv", "test.tsv", "corpus", "model")}
    for name, path in names.items():
        arguments = arguments.replace("{" + name + "}", str(path))
    code, out, err = run(*arguments.split())
    assert (code, out) == (2, "")
    assert message in err
    assert list(tmp_path.iterdir()) == []


def test_a_current_directory_that_was_removed_is_named(place, run, tmp_path, monkeypatch):
    (tmp_path / "here").mkdir()
    monkeypatch.chdir(tmp_path / "here")
    (tmp_path / "here").rmdir()
    assert run("info", place / "corpus") == (
        2, "", "error: the current directory has been removed: change to another one\n"
    )  # fmt: skip


def test_bad_input_names_file_and_line_and_exits_3(run, tmp_path):
    (tmp_path / "bad.txt").write_text("2 5 2\n0 1:1 2:1\n1 9:1\n")
    code, _, err = run("ingest", tmp_path / "bad.txt", tmp_path / "c", "--format", "xmc", "--workers", 0)
    assert code == 3
    assert err == f"error: {tmp_path / 'bad.txt'}:3: column of a word: expected 0 to 4, got 9\n"
    assert not (tmp_path / "c").exists()


def test_damage_exits_4_and_is_named(run, tmp_path, place):
    main(["ingest", str(place / "train.tsv"), str(tmp_path / "c"), "--workers", "0", "--quiet"])
    chunk = next(f for f in (tmp_path / "c" / "shards" / "s00000" / "words").rglob("c/*") if f.is_file())
    content = bytearray(chunk.read_bytes())
    content[len(content) // 2] ^= 1
    chunk.write_bytes(content)
    code, out, _ = run("verify", tmp_path / "c", "--json")
    assert code == 4
    assert "s00000" in json.loads(out)["problems"][0]
    code, _, err = run("fit", tmp_path / "c", tmp_path / "m", "-k", 3, "--workers", 0, "--quiet")
    assert code == 4
    assert "s00000" in err


def test_no_scheduler_exits_5_and_says_how_to_go_on(run, tmp_path, place, monkeypatch):
    import dask

    from distmom.engine.executors import connections

    monkeypatch.setattr(connections.open_executor.__wrapped__, "__kwdefaults__", {
        **connections.open_executor.__wrapped__.__kwdefaults__, "connect_timeout_s": 1.0,
    })  # fmt: skip
    with dask.config.set({"distributed.comm.timeouts.connect": "1s"}):
        code, _, err = run(
            "fit", place / "corpus", tmp_path / "m", "-k", 3, "--scheduler", "tcp://127.0.0.1:1"
        )
    assert code == 5
    assert "no scheduler answers at tcp://127.0.0.1:1" in err
    command = [line for line in err.splitlines() if line.startswith("to resume: ")]
    assert command == [f"to resume: distmom resume {tmp_path / 'm.run'} --scheduler tcp://127.0.0.1:1"]
    assert run("resume", tmp_path / "m.run", "--workers", 0, "--quiet")[0] == 0
    assert scores(tmp_path / "m", place / "corpus") == scores(place / "model", place / "corpus")


def test_a_run_that_has_begun_is_not_mixed_with_another(run, tmp_path, place):
    fit = ("fit", place / "corpus", tmp_path / "m", "--workers", 0, "--quiet", "--run", tmp_path / "r")
    assert run(*fit, "-k", 3)[0] == 0
    code, out, _ = run("info", tmp_path / "r", "--json")
    assert code == 0
    assert json.loads(out)["kind"] == "run"
    code, _, err = run(*fit, "-k", 2, "--overwrite")
    assert code == 2
    assert "holds another run, which differs in n_components" in err
    code, _, err = run(*fit, "-k", 3, "--overwrite")
    assert code == 0


def test_a_fit_that_cannot_fit_into_memory_is_refused_before_it_begins(run, tmp_path, place):
    fit = ["fit", place / "corpus", tmp_path / "m", "-k", "3", "--workers", "0"]
    code, out, err = run(*fit, "--memory-limit", "100MiB")
    assert (code, out) == (2, "")
    assert "a task needs" in err
    assert "a worker of 100 MiB can use only 70" in err
    assert "documents in" not in err
    assert not any(tmp_path.iterdir())


def test_a_terminal_shows_a_bar_for_every_pass(run, tmp_path, place, monkeypatch):
    monkeypatch.setenv("FORCE_COLOR", "1")
    monkeypatch.setenv("COLUMNS", "120")
    fit = ["fit", place / "corpus", tmp_path / "m", "-k", "3", "--head", "posterior", "--workers", "0"]
    code, _, err = run(*fit)
    assert code == 0
    for name in ("sketch", "power", "moments", "labels"):
        assert name in err
    assert "documents/s" in err
    assert "documents in" not in err
    assert "in this process" in err
    code, _, err = run("ingest", place / "train.tsv", tmp_path / "c", "--workers", "0")
    assert code == 0
    assert "read" in err
    assert "write" in err


def test_what_is_overwritten_through_a_link_takes_the_place_behind_it(place, run, tmp_path):
    """Twice: the first time must leave nothing that the second one stumbles over."""
    real, links = tmp_path / "real", tmp_path / "links"
    real.mkdir()
    links.mkdir()
    local = ("--overwrite", "--workers", "0", "--quiet")
    commands = {
        "corpus": ["ingest", place / "test.tsv", links / "corpus", *local],
        "model": ["fit", place / "corpus", links / "model", "-k", 2, "--head", "linear", *local],
        "predictions": ["predict", place / "model", place / "test.tsv", links / "predictions", *local],
        "report": ["report", place / "model", links / "report", "--overwrite"],
    }
    for name in commands:
        (links / name).symlink_to(real / name)
    for _ in range(3):
        for name, command in commands.items():
            code, _, err = run(*command)
            assert code == 0, err
            assert (links / name).is_symlink()
    for folder in (real, links):
        assert sorted(entry.name for entry in folder.iterdir()) == sorted(commands)
    assert run("verify", real / "model")[0] == run("verify", links / "corpus")[0] == 0


def test_a_link_that_an_earlier_replacement_left_is_not_stumbled_over(place, run, tmp_path):
    fit = ["fit", place / "corpus", tmp_path / "m", "-k", 2, "--head", "linear", "--workers", 0, "--quiet"]
    assert run(*fit)[0] == 0
    (tmp_path / "m.replaced").symlink_to(place / "corpus")
    assert run(*fit, "--overwrite")[0] == 0
    assert [entry.name for entry in tmp_path.iterdir()] == ["m"]
    assert (place / "corpus").is_dir()


def test_paths_may_hold_what_looks_like_a_chain_of_urls(run, tmp_path):
    (tmp_path / "a::b").mkdir()
    texts, corpus, model, out = (tmp_path / "a::b" / f"{name}::1" for name in ("t", "c", "m", "p"))
    texts.with_suffix(".tsv").write_text("".join(labelled_lines(100, 0)))
    local = ("--workers", "0", "--quiet")
    assert run("ingest", texts.with_suffix(".tsv"), corpus, *local)[0] == 0
    kept = ("--run", tmp_path / "a::b" / "r::1")
    assert run("fit", corpus, model, "-k", 2, "--head", "ridge", *kept, *local)[0] == 0
    assert run("predict", model, corpus, out, *local)[0] == 0
    assert (out / "ids.txt").read_text().splitlines() == [str(i + 1) for i in range(100)]
    topics = tmp_path / "a::b" / "l::1"
    assert run("fit", corpus, topics, "-k", 2, "--model", "lda", "--max-df", 1, *local)[0] == 0
    assert run("transform", topics, corpus, tmp_path / "a::b" / "s::1", *local)[0] == 0
    assert sorted(entry.name for entry in (tmp_path / "a::b").iterdir()) == [
        "c::1", "l::1", "m::1", "p::1", "r::1", "s::1", "t::1.tsv"
    ]  # fmt: skip
    assert [entry.name for entry in tmp_path.iterdir()] == ["a::b"]


def test_an_error_that_is_the_cause_of_its_context_is_reported_once(monkeypatch, capsys):
    def interrupted(**options):
        try:
            try:
                raise KeyboardInterrupt
            except KeyboardInterrupt as error:
                raise CancelledError("cancelled") from error
        except CancelledError as error:
            raise error.__cause__ from None

    monkeypatch.setattr(cli, "main", interrupted)
    assert main([]) == 130
    assert capsys.readouterr().err == "interrupted\n"


def test_a_small_corpus_is_fitted_in_this_process(run, tmp_path, place, monkeypatch):
    fit = ("fit", place / "corpus", "-k", "3", "--head", "linear")
    monkeypatch.setattr(shared, "cpu_count", lambda: 2)
    assert "fitting on 2 threads of this process" in run(*fit[:2], tmp_path / "m", *fit[2:])[2]
    monkeypatch.setattr(shards, "KEPT_BYTES", 10)
    monkeypatch.setattr(shared, "cpu_count", lambda: 1)
    assert "fitting on 1 threads of" in run(*fit[:2], tmp_path / "n", *fit[2:])[2]


@needs_mount
def test_a_quota_of_a_control_group_limits_the_cores(place):
    """A container with one core on a host of many must not start a process for each of these."""
    group = "/sys/fs/cgroup/cpu,cpuacct"
    quota = f"mkdir {group} && cd {group} && echo 90000 > cpu.cfs_quota_us && echo 100000 > cpu.cfs_period_us"
    opened = f"""
from distmom.cli.options import Cluster
from distmom.cli.shared import open_workers
from distmom.corpus import open_corpus
with open_workers(Cluster(), open_corpus({str(place / "corpus")!r})) as executor:
    print(executor.n_threads)
"""
    apart = ["unshare", "--mount", "sh", "-c"]
    mounted = "mount -t tmpfs none /sys/fs/cgroup"
    if subprocess.run([*apart, mounted], check=False).returncode != 0:
        pytest.skip("a tmpfs cannot be mounted here")
    command = [*apart, f'{mounted} && {quota} && exec "$0" -c "$1"', sys.executable, opened]
    assert subprocess.run(command, capture_output=True, check=True, text=True).stdout == "1\n"


def test_the_demo_replaces_only_what_a_demo_has_written(run, tmp_path, monkeypatch):
    own = tmp_path / "own"
    for name in ("corpus", "model"):
        (own / name).mkdir(parents=True)
    (own / "report.html").touch()
    for place in (own, own / "report.html"):
        code, _, err = run("demo", "--out", place, "--workers", 0)
        assert (code, err) == (2, f"error: {place}: exists and is not the result of an earlier demo\n")
    assert sorted(path.name for path in own.iterdir()) == ["corpus", "model", "report.html"]

    def interrupted(*arguments, **options):
        raise KeyboardInterrupt

    monkeypatch.setattr("distmom.cli.models.ingest", interrupted)
    for _ in range(2):
        assert run("demo", "--out", tmp_path / "demo", "--workers", 0)[0] == 130
