"""Make labelled corpora of Debian's package descriptions, split at random into training and test.

Texts are the long descriptions of the packages of a release, each distinct one once. Labels are the tags of its
first package (debtags), such as ``role::program``, in ``debian-train.jsonl.xz`` and ``debian-test.jsonl.xz``; with
``--labels depends`` the packages that it depends on, and with ``--labels all`` its tags, section and maintainer,
in files whose names begin with ``depends`` and ``all``. ``--language de`` takes descriptions that are translated
into German, in files whose names begin with ``debian_de``.

Example::

    python workflows/debian_packages.py data
    python workflows/benchmark_peers.py data/debian -k 200
"""

from __future__ import annotations

import argparse
import bz2
import json
import lzma
import random
import re
import sys
from collections.abc import Iterator
from pathlib import Path
from urllib.request import urlopen

MIRROR = "https://deb.debian.org/debian"
#: share of the descriptions that are training documents
TRAIN_SHARE = 0.8


def paragraphs(text: str) -> Iterator[dict[str, str]]:
    """Yield the fields of every paragraph of a control file."""
    for paragraph in text.split("\n\n"):
        fields: dict[str, str] = {}
        name = ""
        for line in paragraph.splitlines():
            if line.startswith((" ", "\t")):
                fields[name] += f"\n{line.strip()}"
            else:
                name, _, value = line.partition(":")
                fields[name] = value.strip()
        if fields:
            yield fields


def labels_of(fields: dict[str, str], kind: str) -> list[str]:
    """Return the labels of a package, which may be none.

    ``kind`` is "tags"; "depends", the packages that it depends on or may use instead; or "all", its tags, its
    section and its maintainer.
    """
    tags = [tag.strip() for tag in fields.get("Tag", "").split(",") if tag.strip()]
    if kind == "tags":
        return tags
    if kind == "all":
        maintainer = re.sub(r"<.*", "", fields.get("Maintainer", "")).strip().replace(",", " ")
        named = {"section": fields.get("Section"), "maintainer": maintainer}
        return sorted({*tags, *(f"{name} {label}" for name, label in named.items() if label)})
    names = (re.sub(r"[ (:].*", "", each.strip()) for each in re.split(r"[,|]", fields.get("Depends", "")))
    return sorted({name for name in names if name})


def labelled_descriptions(
    packages: str, translation: str, kind: str, language: str = "en"
) -> dict[str, list[str]]:
    """Return the labels of every distinct description, those of its first package."""
    field = f"Description-{language}"
    descriptions = {
        fields["Description-md5"]: fields[field] for fields in paragraphs(translation) if field in fields
    }
    found: dict[str, list[str]] = {}
    for fields in paragraphs(packages):
        text, labels = descriptions.get(fields.get("Description-md5", "")), labels_of(fields, kind)
        if text and labels:
            found.setdefault(text.replace("\n", " "), labels)
    return found


def fetch(path: str) -> str:
    """Return a compressed file of the mirror as text."""
    with urlopen(f"{MIRROR}/{path}") as response:
        decompress = bz2.decompress if path.endswith(".bz2") else lzma.decompress
        return decompress(response.read()).decode("utf-8")


def write_split(found: dict[str, list[str]], out: Path, name: str, seed: int) -> None:
    """Write texts and their labels in random order to ``NAME-train.jsonl.xz`` and ``NAME-test.jsonl.xz``."""
    documents = list(found.items())
    random.Random(seed).shuffle(documents)
    n_train = int(TRAIN_SHARE * len(documents))
    out.mkdir(parents=True, exist_ok=True)
    for part, own in (("train", documents[:n_train]), ("test", documents[n_train:])):
        with lzma.open(out / f"{name}-{part}.jsonl.xz", "wt", encoding="utf-8") as stream:
            stream.writelines(json.dumps({"text": text, "labels": labels}) + "\n" for text, labels in own)


def main(arguments: list[str] | None = None) -> int:
    """Run the workflow and return its exit code."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("out", type=Path, metavar="OUT", help="directory of the two files")
    parser.add_argument("--release", default="bookworm", help="release of Debian (default: %(default)s)")
    parser.add_argument("--labels", choices=("tags", "depends", "all"), default="tags", help="[%(default)s]")
    parser.add_argument("--language", default="en", help="of the descriptions (default: %(default)s)")
    parser.add_argument("--seed", type=int, default=0, help="of the order (default: %(default)s)")
    options = parser.parse_args(arguments)
    place = f"dists/{options.release}/main"
    suffix = "xz" if options.language == "en" else "bz2"
    translation = fetch(f"{place}/i18n/Translation-{options.language}.{suffix}")
    packages = fetch(f"{place}/binary-amd64/Packages.xz")
    found = labelled_descriptions(packages, translation, options.labels, options.language)
    name = {"tags": "debian"}.get(options.labels, options.labels)
    if options.language != "en":
        name += f"_{options.language}"
    write_split(found, options.out, name, options.seed)
    n_labels = len({label for each in found.values() for label in each})
    sys.stdout.write(f"{len(found)} descriptions with {n_labels} labels\n")
    return 0


if __name__ == "__main__":
    sys.exit(main())
