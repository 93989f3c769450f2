"""The store of a corpus against a model of it: whatever writers do, readers find nothing, or one whole corpus."""

import os
import shutil
import tempfile
from contextlib import suppress
from pathlib import Path

import numpy as np
import pytest
from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, invariant, rule

from distmom.corpus import CorpusWriter, open_corpus
from distmom.errors import InputError, StoreError, UsageError

N_ROWS, N_WORDS = 3, 5
ENDS = ("finished", "interrupted", "bad input", "interrupted between the renames")
#: shards of each source
N_SHARDS = {"a": 2, "b": 3}


def words(source, index):
    """Return the counts of a shard: those of another source differ."""
    rng = np.random.default_rng([len(source), ord(source[0]), index])
    return rng.integers(0, 4, (N_ROWS, N_WORDS))


class Store(RuleBasedStateMachine):
    """Writers of two sources share one place, and end in every way."""

    @initialize()
    def begin(self):
        self.root = Path(tempfile.mkdtemp(prefix="store-"))
        self.path = self.root / "c"
        #: what readers must find; None if nothing
        self.content = None
        #: whether the corpus has another name until the next writer comes
        self.is_hidden = False

    def teardown(self):
        shutil.rmtree(self.root)

    @rule(
        source=st.sampled_from(sorted(N_SHARDS)),
        order=st.permutations(range(3)),
        end=st.sampled_from(ENDS),
        overwrite=st.booleans(),
        is_repeated=st.booleans(),
    )
    def write(self, source, order, end, overwrite, is_repeated):
        """Write shards in any order, some twice; those that an earlier writer of the source has left are there."""
        n_shards = N_SHARDS[source]
        indices = [index for index in order if index < n_shards]
        if self.content is not None and not overwrite:
            with pytest.raises(UsageError, match="already exists"), CorpusWriter(self.path):
                pass
            self.is_hidden = False
            return
        with (
            suppress(KeyboardInterrupt, InputError),
            CorpusWriter(self.path, overwrite=True, fingerprint=source) as writer,
        ):
            self.is_hidden = False
            with (
                pytest.raises(UsageError, match=r"held by|being written"),
                CorpusWriter(self.path, overwrite=True),
            ):
                pass
            for index in indices + indices[:is_repeated]:
                writer.write_shard(index, words(source, index))
                with pytest.raises(StoreError, match="a different shard already exists"):
                    writer.write_shard(index, words(source, index) + 1)
            if end == "interrupted":
                raise KeyboardInterrupt
            if end == "bad input":
                raise InputError("a line is not what it should be")
            self.finalise(writer, end, np.concatenate([words(source, index) for index in range(n_shards)]))

    def finalise(self, writer, end, content):
        rename = os.rename

        def killed(one, other):
            if str(one) == writer.directory:
                raise KeyboardInterrupt
            rename(one, other)

        with pytest.MonkeyPatch.context() as change:
            if end == "interrupted between the renames":
                change.setattr(os, "rename", killed)
                self.is_hidden = self.content is not None
            writer.finalise()
        self.content = content

    @rule(which=st.integers(0, 1000), place=st.integers(0, 10**6), bit=st.integers(0, 7))
    def flip(self, which, place, bit):
        """A flipped bit is found; the byte is then put back."""
        if path := self.file(which):
            content = bytearray(before := path.read_bytes())
            content[place % len(content)] ^= 1 << bit
            self.damaged(path, before, lambda: path.write_bytes(content))

    @rule(which=st.integers(0, 1000), share=st.floats(0.0, 0.99))
    def cut(self, which, share):
        """A file that was cut, or removed, is found."""
        if path := self.file(which):
            size = int(share * path.stat().st_size)
            lost = path.unlink if size == 0 else lambda: os.truncate(path, size)
            self.damaged(path, path.read_bytes(), lost)

    def file(self, which):
        if self.content is None or self.is_hidden:
            return None
        files = [path for path in sorted(self.path.rglob("*")) if path.is_file() and path.stat().st_size]
        return files[which % len(files)]

    def damaged(self, path, before, damage):
        damage()
        try:
            found = open_corpus(self.path).verify()
        except (StoreError, UsageError) as error:
            found = [str(error)]
        assert found
        path.write_bytes(before)

    @invariant()
    def readers_find_nothing_or_all(self):
        if self.content is None or self.is_hidden:
            with pytest.raises(UsageError):
                open_corpus(self.path)
            return
        corpus = open_corpus(self.path)
        assert corpus.verify() == []
        found = [corpus.read_shard(index).words.toarray() for index in range(len(corpus.shards))]
        np.testing.assert_array_equal(np.concatenate(found), self.content)
        np.testing.assert_array_equal(corpus.document_frequency, (self.content > 0).sum(axis=0))

    @invariant()
    def nothing_else_is_left(self):
        left = {path.name.partition("-")[0] for path in self.root.iterdir()}
        assert left <= {"c", "c.partial", *(["c.replaced"] if self.is_hidden else [])}


TestStore = Store.TestCase
TestStore.settings = settings(stateful_step_count=12, deadline=None)


def test_a_corpus_that_a_killed_writer_has_committed_is_written_again():
    store, steps = Store(), {"order": [0, 1, 2], "overwrite": True, "is_repeated": False}
    store.begin()
    for end in ("finished", "interrupted between the renames", "finished"):
        store.write(source="a", end=end, **steps)
    store.readers_find_nothing_or_all()
    store.nothing_else_is_left()
    store.write(source="a", end="interrupted between the renames", **steps)
    with CorpusWriter(store.path, overwrite=True, fingerprint="a") as writer:
        assert writer.is_finished
        with pytest.raises(
            UsageError, match="an earlier writer has committed the corpus; open it, or call begin"
        ):
            writer.finalise()
    store.is_hidden = False
    store.readers_find_nothing_or_all()
    store.teardown()
