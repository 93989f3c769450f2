"""Trees of hidden variables whose leaves are observed."""

from __future__ import annotations

import ast
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from distmom.errors import UsageError

#: a leaf, and the number of its branch
Candidate = tuple[int, int]

#: largest number of leaves of a branch, and of branches, that are compared for a hidden variable; with more than 8
#: branches, fewer leaves of each are taken
MOST_LEAVES, MOST_BRANCHES = 8, 32


@dataclass(frozen=True)
class Tree:
    """A tree of hidden variables, numbered from the root, each before those below it.

    Attributes
    ----------
    parents : tuple of int
        Hidden variable above each hidden variable; -1 for the root, which is the first.
    of_leaves : tuple of int
        Hidden variable above each leaf.
    """

    parents: tuple[int, ...]
    of_leaves: tuple[int, ...]

    @property
    def n_hidden(self) -> int:
        """Number of hidden variables."""
        return len(self.parents)

    @classmethod
    def parse(cls, text: str) -> Tree:
        """Read a tree.

        Parameters
        ----------
        text : str
            A pair of parentheses is a hidden variable and encloses the nodes below it; a leaf is its number,
            from 1: ``((1,2),3,4)``.

        Raises
        ------
        UsageError
            If it is not a tree of leaves 1, 2, ... in which every hidden variable has three neighbours or more.
        """
        wanted = "tree: expected leaves 1, 2, ... in parentheses, such as ((1,2),3,4),"
        try:
            nested = ast.literal_eval(text.strip())
        except (ValueError, SyntaxError, TypeError, AttributeError, RecursionError, MemoryError) as error:
            raise UsageError(f"{wanted} got {text!r}") from error
        parents: list[int] = []
        above: dict[Any, int] = {}
        waiting = [(nested, -1)]
        while waiting:
            item, parent = waiting.pop()
            if type(item) is int and parent >= 0 and item not in above:
                above[item] = parent
            elif isinstance(item, tuple):
                least = 3 if parent < 0 else 2
                if len(item) < least:
                    which = "the root" if parent < 0 else "every other hidden variable"
                    raise UsageError(
                        f"tree: expected at least {least} branches below {which}, got {len(item)} in {text!r}"
                    )
                parents.append(parent)
                waiting.extend((each, len(parents) - 1) for each in reversed(item))
            else:
                raise UsageError(f"{wanted} each once, got {text!r}")
        if sorted(above) != list(range(1, len(above) + 1)):
            raise UsageError(f"{wanted} each once, got {text!r}")
        return cls(tuple(parents), tuple(above[leaf] for leaf in range(1, len(above) + 1)))

    def below(self, hidden: int) -> list[int]:
        """Return the leaves below a hidden variable, ascending."""
        found = {hidden}
        for child in range(hidden + 1, self.n_hidden):
            if self.parents[child] in found:
                found.add(child)
        return [leaf for leaf, parent in enumerate(self.of_leaves) if parent in found]

    def branches(self, hidden: int) -> list[list[int]]:
        """Return the leaves of every branch at a hidden variable: those below it, then that of its parent."""
        found = [[leaf] for leaf, parent in enumerate(self.of_leaves) if parent == hidden]
        found += [self.below(child) for child, parent in enumerate(self.parents) if parent == hidden]
        if hidden:
            own = set(self.below(hidden))
            found.append([leaf for leaf in range(len(self.of_leaves)) if leaf not in own])
        return found

    def candidates(self, hidden: int, usable: Sequence[bool]) -> list[Candidate]:
        """Return the leaves that may show a hidden variable, the nearest first, with their branches.

        Equally near leaves are in the order of their numbers. The nearest `MOST_LEAVES` of a branch are taken,
        fewer where there are many branches, and the nearest `MOST_BRANCHES` branches. Branches without a usable
        leaf are left out.

        Parameters
        ----------
        hidden : int
        usable : sequence of bool
            Whether a leaf may be taken.
        """
        found = []
        for branch in self.branches(hidden):
            own = sorted((self._distance(hidden, leaf), leaf) for leaf in branch if usable[leaf])
            if own:
                found.append(own)
        found = sorted(found)[:MOST_BRANCHES]
        most = max(2, min(MOST_LEAVES, 2 * MOST_BRANCHES // max(1, len(found))))
        ordered = sorted((*each, i) for i, own in enumerate(found) for each in own[:most])
        return [(leaf, i) for _, leaf, i in ordered]

    def _distance(self, hidden: int, leaf: int) -> int:
        """Return the number of edges between a hidden variable and a leaf."""
        up, down = self._path(hidden), self._path(self.of_leaves[leaf])
        shared = sum(1 for a, b in zip(up, down, strict=False) if a == b)
        return len(up) + len(down) - 2 * shared + 1

    def _path(self, hidden: int) -> list[int]:
        """Return the hidden variables from the root to one of them."""
        found = []
        while hidden >= 0:
            found.append(hidden)
            hidden = self.parents[hidden]
        return found[::-1]
