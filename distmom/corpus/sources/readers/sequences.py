"""Sequences from texts: one per line, of symbols separated by spaces, or of pairs word/TAG.

The file is read twice: once to count the symbols, once to number them.
"""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from functools import partial
from typing import Any

import numpy as np

from distmom.corpus.layers import Layer, rows_per_shard
from distmom.corpus.sources.readers.rows import RowSource, RowSpec
from distmom.corpus.sources.readers.source import Chunk, LineReader, Tally, decoded, line_chunks
from distmom.corpus.stored.write_layers import LayerShard
from distmom.errors import InputError, UsageError

#: class of symbols that are rare
RARE = "<rare>"
#: number of lines of a chunk when symbols are counted
_CHUNK_LINES = 20_000
#: layer of the tags
TAGS = "tags"


def open_sequences(spec: RowSpec, run_map: Any) -> RowSource:
    """Open texts of symbols, one sequence per line."""
    return _open(spec, run_map, has_tags=False)


def open_tagged(spec: RowSpec, run_map: Any) -> RowSource:
    """Open texts of pairs word/TAG, one sequence per line; tags are a layer of their own."""
    return _open(spec, run_map, has_tags=True)


def _open(spec: RowSpec, run_map: Any, *, has_tags: bool) -> RowSource:
    if has_tags and spec.layer == TAGS:
        raise UsageError(f"layer: expected a name other than that of the tags, got {TAGS!r}")
    words: Counter[str] = Counter()
    tags: Counter[str] = Counter()
    n_lines = 0
    # A repair is counted when lines are numbered, not twice.
    for own, of_tags, lines in run_map(partial(_count, spec, has_tags), _chunks(spec, _CHUNK_LINES)):
        words.update(own)
        tags.update(of_tags)
        n_lines += lines
    symbols = (
        list(spec.symbols) if spec.symbols is not None else learned(words, spec.min_count, spec.rare_suffix)
    )
    names: dict[str, Sequence[str]] = {spec.layer: symbols}
    numbering = Numbering.of(symbols, spec.rare_suffix)
    of_tags_numbering = None
    if has_tags:
        names[TAGS] = sorted(tags)
        of_tags_numbering = Numbering.of(names[TAGS], 0)
    shard_rows = rows_per_shard(4, spec.shard_rows)
    per_line = max(1, math.ceil(sum(words.values()) / max(1, n_lines)))
    shard_lines = max(1, shard_rows // per_line)
    tally = Tally(spec.path, spec.strict)

    def tasks() -> Iterator[Callable[[], LayerShard]]:
        for chunk in _chunks(spec, shard_lines, tally):
            yield partial(_number, spec, numbering, of_tags_numbering, chunk)

    return RowSource(tasks, names, sum(words.values()), tally.counts)


def _chunks(spec: RowSpec, size: int, tally: Tally | None = None) -> Iterator[Chunk]:
    return line_chunks(LineReader(spec.path, tally or Tally(spec.path, spec.strict)), size)


def learned(counts: Counter[str], min_count: int, rare_suffix: int) -> list[str]:
    """Return the frequent symbols and the classes of rare symbols, most frequent first.

    Parameters
    ----------
    counts : Counter
        Occurrences of symbols.
    min_count : int
        Number of occurrences below which a symbol is put into a class of rare symbols.
    rare_suffix : int
        Number of letters at the end of a rare symbol that determine its class; 0 for a single class.
    """
    frequent = {symbol: n for symbol, n in counts.items() if n >= min_count}
    classes: Counter[str] = Counter()
    for symbol, n in counts.items():
        if n < min_count:
            classes[class_of(symbol, rare_suffix)] += n
    kept = {name: n for name, n in classes.items() if name != RARE and n >= min_count}
    rest = sum(classes.values()) - sum(kept.values())
    if rest or kept:
        # New texts may have symbols without a class, even where the symbols counted here all have one.
        kept[RARE] = rest
    both = {**frequent, **kept}
    return sorted(both, key=lambda symbol: (-both[symbol], symbol))


def class_of(symbol: str, rare_suffix: int) -> str:
    """Return the class of a rare symbol."""
    return f"<rare-{symbol[-rare_suffix:]}>" if rare_suffix else RARE


@dataclass(frozen=True)
class Numbering:
    """Numbers of symbols.

    Attributes
    ----------
    numbers : dict of str to int
    rare_suffix : int
    """

    numbers: dict[str, int]
    rare_suffix: int

    @classmethod
    def of(cls, symbols: Sequence[str], rare_suffix: int) -> Numbering:
        """Return the numbering of symbols in their order."""
        return cls({symbol: i for i, symbol in enumerate(symbols)}, rare_suffix)

    def find(self, symbol: str) -> int:
        """Return the number of a symbol, or of the class of a rare symbol; -1 if it has none."""
        found = self.numbers.get(symbol)
        if found is None:
            found = self.numbers.get(class_of(symbol, self.rare_suffix))
        if found is None:
            found = self.numbers.get(RARE)
        return -1 if found is None else found


def _count(spec: RowSpec, has_tags: bool, chunk: Chunk) -> tuple[Counter[str], Counter[str], int]:
    tally = Tally(spec.path)
    words: Counter[str] = Counter()
    tags: Counter[str] = Counter()
    lines = decoded(tally, chunk.first_line, chunk.lines)
    for number, line in enumerate(lines, chunk.first_line):
        tokens = line.split()
        if has_tags:
            tokens, own = _split_tags(spec, number, tokens)
            tags.update(own)
        words.update(tokens)
    return words, tags, len(lines)


def _split_tags(spec: RowSpec, line: int, tokens: list[str]) -> tuple[list[str], list[str]]:
    words, tags = [], []
    for token in tokens:
        word, _, tag = token.rpartition("/")
        if not word or not tag:
            raise InputError.at(spec.path, line, "step", "word/TAG", repr(token))
        words.append(word)
        tags.append(tag)
    return words, tags


def _number(spec: RowSpec, numbering: Numbering, of_tags: Numbering | None, chunk: Chunk) -> LayerShard:
    tally = Tally(spec.path, spec.strict)
    symbols: list[int] = []
    tags: list[int] = []
    starts, ids = [0], []
    for number, line in enumerate(decoded(tally, chunk.first_line, chunk.lines), chunk.first_line):
        tokens = line.split()
        if not tokens:
            tally.repair("blank_lines", number, "an empty sequence")
            continue
        if of_tags is not None:
            tokens, own = _split_tags(spec, number, tokens)
            tags += [of_tags.numbers[tag] for tag in own]
        found = [numbering.find(token) for token in tokens]
        if -1 in found:
            raise InputError.at(
                spec.path, number, "symbol", f"one of the {len(numbering.numbers)} known symbols",
                f"{tokens[found.index(-1)]!r}; they have no class of rare symbols, as a corpus has in which some "
                "are rarer than --min-count",
            )  # fmt: skip
        symbols += found
        starts.append(len(symbols))
        ids.append(str(number))
    layers = [Layer(spec.layer, "symbols", "rows", len(numbering.numbers), "int32")]
    arrays = {spec.layer: np.array(symbols, np.int32)}
    if of_tags is not None:
        layers.append(Layer(TAGS, "symbols", "rows", len(of_tags.numbers), "int32"))
        arrays[TAGS] = np.array(tags, np.int32)
    return LayerShard(
        tuple(layers), arrays, np.array(starts, np.int64), ids=tuple(ids), warnings=dict(tally.counts)
    )
