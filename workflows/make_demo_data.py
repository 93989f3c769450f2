"""Extract the corpus of ``distmom demo`` from yso-finna-en.

The sample consists of the most frequent subjects and of titles with at least two of them; other subjects of these
titles are left out. Test titles are taken from the last tenth of the source, training titles from the rest.
The script always produces the same bytes.

Example::

    python workflows/make_demo_data.py docs.tsv.xz labels.tsv.xz distmom/data
"""

from __future__ import annotations

import argparse
import lzma
import sys
from collections import Counter
from collections.abc import Iterable, Iterator
from pathlib import Path
from typing import NamedTuple


class Title(NamedTuple):
    """A title and the line numbers of its subjects."""

    labels: list[int]
    text: str


def read_titles(path: Path) -> Iterator[Title]:
    """Yield the rows ``label,label<TAB>text`` of a compressed file."""
    with lzma.open(path, "rt", encoding="utf-8", newline="\n") as lines:
        for line in lines:
            labels, text = line.rstrip("\n").split("\t", 1)
            yield Title([int(label) for label in labels.split(",") if label], text)


def read_names(path: Path) -> list[str]:
    """Return the names of ``URI<TAB>name`` rows."""
    with lzma.open(path, "rt", encoding="utf-8", newline="\n") as lines:
        return [line.rstrip("\n").split("\t", 1)[1] for line in lines]


def choose_labels(titles: Iterable[Title], names: list[str], n_labels: int) -> set[int]:
    """Return the most frequent labels; of labels with the same name, only the most frequent one."""
    counts = Counter(label for title in titles for label in title.labels)
    chosen: dict[str, int] = {}
    for label, _ in sorted(counts.items(), key=lambda item: (-item[1], item[0])):
        if len(chosen) == n_labels:
            break
        chosen.setdefault(names[label], label)
    return set(chosen.values())


def sample(
    titles: Iterable[Title], labels: set[int], n: int, fewest: int, max_characters: int
) -> list[Title]:
    """Return the first n titles with at least ``fewest`` of the labels, reduced to these labels."""
    taken: list[Title] = []
    for title in titles:
        kept = [label for label in title.labels if label in labels]
        if len(taken) < n and len(kept) >= fewest and len(title.text) <= max_characters:
            taken.append(Title(kept, title.text))
    return taken


def pack(path: Path, lines: Iterable[str]) -> int:
    """Write lines to an xz file and return its size in bytes."""
    text = "".join(f"{line}\n" for line in lines)
    path.write_bytes(lzma.compress(text.encode(), preset=9 | lzma.PRESET_EXTREME))
    return path.stat().st_size


def main(arguments: list[str] | None = None) -> int:
    """Extract the sample and write its three files."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("docs", type=Path, help="docs.tsv.xz: rows 'label,label<TAB>text'")
    parser.add_argument("labels", type=Path, help="labels.tsv.xz: rows 'URI<TAB>name'")
    parser.add_argument("out", type=Path, help="output folder for the three files")
    parser.add_argument("--n-labels", type=int, default=1000, help="number of subjects [%(default)s]")
    parser.add_argument("--n-train", type=int, default=25_000, help="number of training titles [%(default)s]")
    parser.add_argument("--n-test", type=int, default=2_500, help="number of test titles [%(default)s]")
    parser.add_argument(
        "--fewest", type=int, default=2, help="minimum number of subjects per title [%(default)s]"
    )
    parser.add_argument(
        "--max-characters", type=int, default=200, help="maximum length of a title [%(default)s]"
    )
    parser.add_argument(
        "--max-bytes", type=int, default=2_000_000, help="maximum total size of the files [%(default)s]"
    )
    options = parser.parse_args(arguments)

    names = read_names(options.labels)
    titles = list(read_titles(options.docs))
    cut = len(titles) * 9 // 10
    chosen = choose_labels(titles[:cut], names, options.n_labels)
    parts = {
        name: sample(part, chosen, n, options.fewest, options.max_characters)
        for name, part, n in (
            ("train", titles[:cut], options.n_train),
            ("test", titles[cut:], options.n_test),
        )
    }
    used = sorted({label for part in parts.values() for title in part for label in title.labels})
    number = {label: position for position, label in enumerate(used)}

    options.out.mkdir(parents=True, exist_ok=True)
    size = pack(options.out / "titles-labels.txt.xz", (names[label] for label in used))
    for name, part in parts.items():
        rows = (f"{','.join(str(number[label]) for label in labels)}\t{text}" for labels, text in part)
        size += pack(options.out / f"titles-{name}.tsv.xz", rows)
    pairs = {name: sum(len(title.labels) for title in part) for name, part in parts.items()}
    print(
        f"{len(parts['train'])} training titles ({pairs['train']} labels), "
        f"{len(parts['test'])} test titles ({pairs['test']} labels), {len(used)} distinct labels, {size} bytes"
    )
    if size > options.max_bytes:
        print(f"the files are larger than {options.max_bytes} bytes; reduce --n-train", file=sys.stderr)
        return 1
    return 0


if __name__ == "__main__":
    sys.exit(main())
