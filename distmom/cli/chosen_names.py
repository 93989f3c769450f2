"""Names of labels given on the command line: in a file, or separated by commas."""

from __future__ import annotations

import os
from collections.abc import Sequence

from distmom.errors import InputError, UsageError


def chosen_names(text: str, known: Sequence[str]) -> list[str]:
    """Return the names in a file if the text is its path, else the names separated by commas in the text.

    The names are returned as the model spells them, possibly in another Unicode normal form.

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
    from distmom.corpus.names import NumberedNames
    from distmom.corpus.sources.readers.name_files import read_names

    # In the order given.
    found: dict[str, None] = {}
    numbers = NumberedNames(known)
    # A list of names may be longer than a path may be; `Path.is_file` then raises an error.
    if os.path.isfile(text):
        names = read_names(text)
        for line, name in enumerate(names, 1):
            if (number := numbers.find(name)) is None:
                raise InputError.at(text, line, "label", "a label of the model", repr(name))
            if known[number] in found:
                raise InputError.at(text, line, "label", "each label once", f"{name!r} in two Unicode forms")
            found[known[number]] = None
        if not names:
            raise InputError.at(text, None, "labels", "one name per line", "no name")
        return list(found)
    for name in map(str.strip, text.split(",")):
        if (number := numbers.find(name)) is None:
            raise UsageError(f"--only-labels: the model has no label {name!r}, and there is no file {text!r}")
        if known[number] in found:
            raise UsageError(f"--only-labels: {name!r} is given twice")
        found[known[number]] = None
    return list(found)
