"""Write golden files of the present formats: ``python tests/golden/write.py run|rows ARCHIVE.tar.xz``.

The archive of ``run`` holds a corpus, a run that was interrupted after its moments with its log, the model of the
same fit without an interruption, kept moments, and ``expected.npz``. That of ``rows`` holds corpora of layers:
dense steps of sequences that are cut, tagged texts and sentences, and ``expected.npz``. An archive is replaced
only by one of a newer version of a format; readers take the present version and the one before.
"""

import shutil
import sys
import tarfile
from pathlib import Path

import numpy as np

from distmom.cli.main import main
from distmom.corpus import from_arrays, ingest_rows, ingest_sentences, open_corpus
from distmom.engine import PassDone, RunDirectory
from distmom.engine.directory.run_directory import ENVIRONMENT
from distmom.models import SpectralLDA, TopicMoments

#: absolute paths are part of a run
PLACE = Path("/tmp/golden")
#: number of passes of the fit before its refinement
N_COMMITTED = 6
OPTIONS = {
    "alpha0": 0.6,
    "init": "tensor",
    "n_refine": 1,
    "refine": "vb",
    "max_df": 1.0,
    "decompose_on": "client",
}


def draw() -> tuple[np.ndarray, np.ndarray]:
    """Return counts of words and labels of 120 documents."""
    rng = np.random.default_rng(5)
    topics = rng.dirichlet(np.full(12, 0.2), 2)
    shares = rng.dirichlet([0.3, 0.3], 120)
    words = np.stack([rng.multinomial(40, share @ topics) for share in shares]).astype(np.int32)
    return words, (shares > 0.5).astype(np.uint8)


def interrupt(passes: list[PassDone]):
    """Return an observer that interrupts a fit after some passes."""

    def observe(event):
        if isinstance(event, PassDone):
            passes.append(event)
            if len(passes) == N_COMMITTED:
                raise KeyboardInterrupt

    return observe


def without_owner(entry: tarfile.TarInfo) -> tarfile.TarInfo:
    entry.uid = entry.gid = entry.mtime = 0
    entry.uname = entry.gname = ""
    return entry


def write(archive: Path) -> None:
    shutil.rmtree(PLACE, ignore_errors=True)
    PLACE.mkdir()
    words, labels = draw()
    names = [f"word{i}" for i in range(12)]
    corpus = from_arrays(PLACE / "corpus", words, labels, vocabulary=names, shard_documents=40)
    # The command writes the record of the run.
    fit = ["fit", "corpus", "model", "--model", "lda", "-k", "2", "--workers", "0", "--quiet", "--run", "run"]
    options = [f"--{name.replace('_', '-')}={value}" for name, value in OPTIONS.items()]
    code = main(
        [*(str(PLACE / each) if each in ("corpus", "model", "run") else each for each in fit), *options]
    )
    assert code == 0
    record = (PLACE / "run" / "run.json").read_bytes()
    shutil.rmtree(PLACE / "run")
    model = SpectralLDA(2, **OPTIONS)
    try:
        model.fit_corpus(corpus, run=PLACE / "run", observer=interrupt([]))
    except KeyboardInterrupt:
        (PLACE / "run" / "run.json").write_bytes(record)
    # The environment and the process of the writer are of no use to the readers.
    shutil.rmtree(PLACE / "run" / "epochs")
    (PLACE / "run" / "lease.json").unlink()
    found = RunDirectory(PLACE / "run").environments()
    neutral = [dict.fromkeys(each, "any") for each in found]
    ENVIRONMENT.write(PLACE / "run" / "environment.json", {"environments": neutral})
    moments = TopicMoments(2, max_df=1.0, n_parts=2).fit_corpus(open_corpus(PLACE / "corpus"))
    moments.save(PLACE / "moments")
    of_moments = SpectralLDA(2, alpha0=0.6, init="tensor", n_refine=0).fit_moments(moments)
    model.fit_corpus(corpus)
    np.savez(
        PLACE / "expected.npz", components=model.components_, of_moments=of_moments.components_, docs=words[:5],
        shares=model.transform(words[:5]), digest=np.array(corpus.digest),
    )  # fmt: skip
    pack(archive, "corpus", "expected.npz", "model", "moments", "run")


def write_rows(archive: Path) -> None:
    shutil.rmtree(PLACE, ignore_errors=True)
    PLACE.mkdir()
    rng = np.random.default_rng(6)
    lengths = np.array([3, 40, 1, 9])
    steps = rng.standard_normal((lengths.sum(), 2)).astype(np.float32)
    (PLACE / "texts.tagged").write_text("the/AT dog/NN barks/VB\n\nthe/AT cat/NN 1/2/CD\nthe/AT dog/NN\n")
    (PLACE / "texts.txt").write_text("A dog barks. The dog sat!\nThe cat sat. The dog, the dog.\n")
    dense = ingest_rows(steps, PLACE / "dense", lengths=lengths, names=["u", "v"], shard_rows=16)
    tagged = ingest_rows(PLACE / "texts.tagged", PLACE / "tagged", min_count=2, rare_suffix=1)
    views = ingest_sentences(PLACE / "texts.txt", PLACE / "views")
    np.savez(
        PLACE / "expected.npz", steps=steps, lengths=lengths, words=tagged.read_shard(0).rows,
        tags=tagged.read_shard(0).others["tags"], counts=views.read_shard(0).rows.toarray(),
        digests=np.array([dense.digest, tagged.digest, views.digest]),
    )  # fmt: skip
    pack(archive, "dense", "expected.npz", "tagged", "views")


def pack(archive: Path, *names: str) -> None:
    with tarfile.open(archive, "w:xz") as out:
        for name in names:
            out.add(PLACE / name, name, filter=without_owner)
    shutil.rmtree(PLACE)


if __name__ == "__main__":
    {"run": write, "rows": write_rows}[sys.argv[1]](Path(sys.argv[2]))
