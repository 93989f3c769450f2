"""Make labelled corpora of texts that Debian packages, split at random into training and test.

============  ===================================================  ==========================================
corpus        documents                                            labels
============  ===================================================  ==========================================
wordnet       definitions of WordNet 3.0                           the lexicographer file
hypernyms     definitions of its nouns and verbs                   all their hypernyms
gcide         entries of the GNU version of Webster's dictionary   fields such as ``Zool.``
foldoc        entries of the dictionary of computing               subjects such as ``networking``
references    the same without their cross-references              the cross-references
fortunes      sayings and jokes in six languages                   the file that has them
kernel        pages of the documentation of Linux 6.1              all directories that they are in
translations  entries of a German-English dictionary               fields and registers such as ``zool.``
clipart       titles and descriptions of drawings                  their keywords
imports       Python modules without their imports                 the packages that they import
manuals       manual pages without their references                the pages to which they refer
============  ===================================================  ==========================================

Each distinct text is kept once, in ``NAME-train.jsonl.xz`` or ``NAME-test.jsonl.xz``.

Example::

    python workflows/debian_texts.py data --corpora wordnet gcide
    python workflows/benchmark_peers.py data/gcide -k 200
"""

from __future__ import annotations

import argparse
import ast
import gzip
import html
import io
import re
import sys
import tarfile
import warnings
from collections.abc import Iterable, Iterator
from pathlib import Path
from urllib.request import urlopen

from debian_packages import MIRROR, fetch, paragraphs, write_split

#: files of a package, by their paths
Files = dict[str, bytes]
#: a text and its labels
Document = tuple[str, list[str]]
#: a synset of WordNet: part of speech and offset
Synset = tuple[str, str]

FORTUNES = [f"fortunes{suffix}" for suffix in ("", "-min", "-de", "-es", "-it", "-pl", "-ru")]
PYTHON = [
    f"python3-{name}"
    for name in [
        "astropy",
        "biopython",
        "celery",
        "cinder",
        "distributed",
        "django",
        "docutils",
        "impacket",
        "ipython",
        "libcloud",
        "matplotlib",
        "networkx",
        "neutron",
        "nltk",
        "pandas",
        "rdflib",
        "sklearn",
        "sphinx",
        "sqlalchemy",
        "statsmodels",
        "twisted",
    ]
]
#: longest text of an entry, in characters
MAX_LENGTH = 4000
#: folders of the files of packages
DICTIONARIES, SAYINGS, WORDNET = (f"./usr/share/{name}/" for name in ("dictd", "games/fortunes", "wordnet"))
MODULES, MANUALS = "./usr/lib/python3/dist-packages/", "./usr/share/man/man"
KERNEL, TRANSLATIONS = "./usr/share/doc/linux-doc-6.1/Documentation/", "./usr/share/trans/de-en"


def entries(files: Files, name: str, encoding: str) -> Iterator[str]:
    """Yield the entries of a dictionary, which begin at the margin."""
    text = gzip.decompress(files[f"{DICTIONARIES}{name}.dict.dz"]).decode(encoding, "replace")
    yield from re.split(r"\n(?=\S)", text)


def foldoc(files: Files) -> Iterator[Document]:
    """Yield entries with their subjects, which are the first words in angle brackets."""
    for entry in entries(files, "foldoc", "utf-8"):
        if found := re.search(r"<([a-z0-9 ,/&-]+)>", entry):
            yield entry[: found.start()] + entry[found.end() :], found[1].split(",")


def references(files: Files) -> Iterator[Document]:
    """Yield entries without their cross-references, which are in braces, and these."""
    for entry in entries(files, "foldoc", "utf-8"):
        yield (
            re.sub(r"\{[^{}]*\}", " ", entry),
            [name.lower() for name in re.findall(r"\{([^{}()]+)\}", entry)],
        )


def gcide(files: Files) -> Iterator[Document]:
    """Yield entries with their fields, which are abbreviations in parentheses."""
    field = r"\(([A-Z][A-Za-z.& ]{1,18}\.)\)"
    for entry in entries(files, "gcide", "latin-1"):
        yield re.sub(field, " ", entry)[:MAX_LENGTH], re.findall(field, entry)


def fortunes(files: Files) -> Iterator[Document]:
    """Yield sayings with the name of their file."""
    for path, content in sorted(files.items()):
        if not path.startswith(SAYINGS) or path.endswith((".dat", ".u8")):
            continue
        try:
            text = content.decode("utf-8")
        except UnicodeDecodeError:
            text = content.decode("latin-1")
        for saying in re.split(r"\n%\s*\n", text):
            yield saying, [path.removeprefix(SAYINGS)]


def kernel(files: Files) -> Iterator[Document]:
    """Yield the sources of pages with the directories that they are in, of any depth."""
    for path, content in sorted(files.items()):
        if not path.startswith(KERNEL) or not re.search(r"\.(rst|txt|yaml)(\.gz)?$", path):
            continue
        *directories, _ = path.removeprefix(KERNEL).split("/")
        text = (gzip.decompress(content) if path.endswith(".gz") else content).decode("utf-8", "replace")
        yield text, ["/".join(directories[: i + 1]) for i in range(len(directories))]


def translations(files: Files) -> Iterator[Document]:
    """Yield entries without their fields, which are abbreviations in square brackets, and these."""
    field = r"\[([a-zäöü]+\.)\]"
    for line in files[TRANSLATIONS].decode("utf-8").splitlines():
        if not line.startswith("#"):
            yield re.sub(field, " ", line), re.findall(field, line)


def imports(files: Files) -> Iterator[Document]:
    """Yield modules without their imports, with the other packages that they import."""
    for path, content in sorted(files.items()):
        if not path.startswith(MODULES) or not path.endswith(".py"):
            continue
        own, _, _ = path.removeprefix(MODULES).partition("/")
        text = content.decode("utf-8", "replace")
        with warnings.catch_warnings(action="ignore"):
            try:
                nodes = list(ast.walk(ast.parse(text)))
            except SyntaxError:  # templates and tests of parsers
                continue
        lines, names = text.split("\n"), set[str]()
        for node in nodes:
            if isinstance(node, ast.Import):
                names |= {alias.name for alias in node.names}
            elif isinstance(node, ast.ImportFrom) and not node.level:
                names.add(str(node.module))
            if isinstance(node, ast.Import | ast.ImportFrom):
                for number in range(node.lineno - 1, node.end_lineno or node.lineno):
                    lines[number] = ""
        yield "\n".join(lines), sorted({name.partition(".")[0] for name in names} - {own, "__future__"})


def clipart(files: Files) -> Iterator[Document]:
    """Yield titles and descriptions of drawings with their keywords."""
    for path, content in sorted(files.items()):
        if not path.endswith((".svg", ".svgz")):
            continue
        text = (gzip.decompress(content) if path.endswith("z") else content).decode("utf-8", "replace")
        named = re.findall(r"<dc:(?:title|description)>\s*(?:<[^>]*>)?([^<]*)<", text)
        keywords = [html.unescape(each).lower() for each in re.findall(r"<rdf:li>([^<]*)</rdf:li>", text)]
        # Names whose encoding was mistaken have control characters.
        yield html.unescape(" ".join(named)), [each for each in keywords if each.isprintable()]


def manuals(files: Files) -> Iterator[Document]:
    """Yield the sources of manual pages without comments and references, and these, such as ``open (2)``."""
    # ``.BR open (2)`` on a line of its own, or ``\fBopen\fR(2)`` in one.
    reference = re.compile(r"(?:^\.BR +|\\fB)([\w.+:\\-]+?)(?: +|\\f[RP])\((\d\w*)\)", re.MULTILINE)
    for path, content in sorted(files.items()):
        if not path.startswith(MANUALS) or not path.endswith(".gz"):
            continue
        text = re.sub(r"(?m)^[.']\\\".*$", "", gzip.decompress(content).decode("utf-8", "replace"))
        names = {(name.replace("\\", ""), section) for name, section in reference.findall(text)}
        yield reference.sub("", text), [f"{name} ({section})" for name, section in names]


def synsets(files: Files) -> Iterator[tuple[Synset, str, str, list[Synset], str]]:
    """Yield synsets, their lexicographer files, names, direct hypernyms and definitions."""
    for part in ("noun", "verb", "adj", "adv"):
        for line in files[f"{WORDNET}data.{part}"].decode("latin-1").splitlines():
            if line.startswith("  "):
                continue
            fields, _, definition = line.partition("|")
            offset, file, kind, n_words, *rest = fields.split()
            # Two fields per word, the number of pointers, and four fields per pointer.
            pointers = rest[2 * int(n_words, 16) + 1 :]
            above = [
                (pointers[i + 2], pointers[i + 1])
                for i in range(0, len(pointers) - 3, 4)
                if pointers[i] in ("@", "@i")
            ]
            yield (kind, offset), file, f"{rest[0]} {kind}{offset}", above, definition


def wordnet(files: Files) -> Iterator[Document]:
    """Yield definitions with their lexicographer file."""
    for _, file, _, _, definition in synsets(files):
        yield definition, [file]


def hypernyms(files: Files) -> Iterator[Document]:
    """Yield definitions of nouns and verbs with all their hypernyms."""
    known = {key: (name, above) for key, _, name, above, _ in synsets(files)}
    for _, _, _, above, definition in synsets(files):
        found, open_ = set[Synset](), list(above)
        while open_:
            if (key := open_.pop()) not in found:
                found.add(key)
                open_ += known[key][1]
        yield definition, [known[key][0] for key in found]


CORPORA = {
    "wordnet": (wordnet, ["wordnet-base"]),
    "hypernyms": (hypernyms, ["wordnet-base"]),
    "gcide": (gcide, ["dict-gcide"]),
    "foldoc": (foldoc, ["dict-foldoc"]),
    "references": (references, ["dict-foldoc"]),
    "fortunes": (fortunes, FORTUNES),
    "kernel": (kernel, ["linux-doc-6.1"]),
    "translations": (translations, ["trans-de-en"]),
    "clipart": (clipart, ["openclipart-svg"]),
    "imports": (imports, PYTHON),
    "manuals": (manuals, ["manpages", "manpages-dev", "git-man", "systemd", "util-linux"]),
}


def distinct(documents: Iterable[Document]) -> dict[str, list[str]]:
    """Return the labels of every distinct text that has any, those of its first document."""
    found: dict[str, list[str]] = {}
    for text, labels in documents:
        named = {" ".join(label.replace(",", " ").split()) for label in labels} - {""}
        if (tidy := " ".join(text.split())) and named:
            found.setdefault(tidy, sorted(named))
    return found


def unpack(package: bytes) -> Files:
    """Return the regular files of a binary package, an archive of members with headers of 60 bytes."""
    start = len(b"!<arch>\n")
    while start < len(package):
        name, size = package[start : start + 16].decode().strip(), int(package[start + 48 : start + 58])
        content = package[start + 60 : start + 60 + size]
        if name.startswith("data.tar"):
            with tarfile.open(fileobj=io.BytesIO(content)) as archive:
                return {
                    member.name: stream.read()
                    for member in archive
                    if member.isfile() and (stream := archive.extractfile(member)) is not None
                }
        start += 60 + size + size % 2
    raise ValueError("expected a binary package with data")


def main(arguments: list[str] | None = None) -> int:
    """Run the workflow and return its exit code."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("out", type=Path, metavar="OUT", help="directory of the files")
    parser.add_argument("--corpora", choices=list(CORPORA), nargs="+", default=list(CORPORA), help="[all]")
    parser.add_argument("--release", default="bookworm", help="release of Debian (default: %(default)s)")
    parser.add_argument("--seed", type=int, default=0, help="of the order (default: %(default)s)")
    options = parser.parse_args(arguments)
    index = fetch(f"dists/{options.release}/main/binary-amd64/Packages.xz")
    paths = {fields["Package"]: fields["Filename"] for fields in paragraphs(index)}
    packages: dict[str, Files] = {}
    for corpus in options.corpora:
        make, names = CORPORA[corpus]
        files: Files = {}
        for name in names:
            if name not in packages:
                with urlopen(f"{MIRROR}/{paths[name]}") as response:
                    packages[name] = unpack(response.read())
            files |= packages[name]
        found = distinct(make(files))
        write_split(found, options.out, corpus, options.seed)
        n_labels = len({label for each in found.values() for label in each})
        sys.stdout.write(f"{corpus}: {len(found)} documents with {n_labels} labels\n")
    return 0


if __name__ == "__main__":
    sys.exit(main())
