"""Names of labels given on the command line: in a file, or separated by commas."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

from distmom.errors import InputError, UsageError


def chosen_names(text: str, known: Sequence[str]) -> list[str]:
    """Return the names in a file if the text is its path, else the names separated by commas in the text.

    Parameters
    ----------
    text : str
        A file with one name per line, which may be compressed, or names separated by commas.
    known : sequence of str
        Names of the labels of the model.

    Raises
    ------
    InputError
        If a line of the file is blank, repeats a name or has a name that the model lacks; the message has the
        number of the line.
    UsageError
        If one of the names separated by commas is unknown or occurs twice, or there are none.
    """
    from distmom.corpus.sources.readers.name_files import read_names

    labels = set(known)
    if Path(text).is_file():
        names = read_names(text)
        for line, name in enumerate(names, 1):
            if name not in labels:
                raise InputError.at(text, line, "label", "a label of the model", repr(name))
        if not names:
            raise InputError.at(text, None, "labels", "one name per line", "no name")
        return names
    names = [name.strip() for name in text.split(",")]
    for i, name in enumerate(names):
        if name not in labels:
            raise UsageError(f"--only-labels: the model has no label {name!r}, and there is no file {text!r}")
        if name in names[:i]:
            raise UsageError(f"--only-labels: {name!r} is given twice")
    return names
