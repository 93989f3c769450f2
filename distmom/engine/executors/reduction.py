"""The tasks of a reduction on a Dask cluster: those in flight, their results, and those to be submitted again."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, replace
from typing import TypeAlias

from distributed import Future

from distmom.engine.executors.executor import tree_levels, tree_node_children


@dataclass(frozen=True)
class Node:
    """One attempt at a node of the tree of a reduction.

    Attributes
    ----------
    level : int
        0 for leaves, which call the function; other nodes merge the results of their children.
    index : int
        Position in the level.
    attempt : int
        Number of earlier attempts.
    """

    level: int
    index: int
    attempt: int = 0


#: submits the task of a node, given the results of its children, none for a leaf
Submit: TypeAlias = Callable[[Node, list[Future]], Future]


class Reduction:
    """The progress of a reduction over a fixed tree.

    Dask blames all tasks of a worker for its death. Those that lost one are submitted again one at a time, with no
    other task in flight, so that only the task that kills workers is blamed again. Results that only this worker
    had are computed again by Dask before that.

    Parameters
    ----------
    n_leaves, fan_in : int
        Number of leaves, and largest number of children of a node.
    submit : callable
        See `Submit`.

    Attributes
    ----------
    flying : dict of Future to Node
        Tasks whose end has not been handled.
    ready : list of dict of int to Future
        For every level, the results of nodes by their index, until their parents are ready.
    suspects : list of Node
        Attempts that are due after a worker was lost.
    """

    def __init__(self, n_leaves: int, fan_in: int, submit: Submit) -> None:
        self.flying: dict[Future, Node] = {}
        self._levels = tree_levels(n_leaves, fan_in)
        self.ready: list[dict[int, Future]] = [{} for _ in self._levels]
        self.suspects: list[Node] = []
        self._fan_in, self._submit = fan_in, submit
        self._waiting = iter(range(n_leaves))

    @property
    def total(self) -> Future:
        """The result of the root."""
        return self.ready[-1][0]

    def missing(self) -> list[Future]:
        """Return the results that were lost with a worker, and that Dask is computing again."""
        return [future for of_level in self.ready for future in of_level.values() if not future.done()]

    def submit_leaves(self, most: int) -> None:
        """Submit further leaves, as long as fewer than ``most`` are in flight."""
        while sum(node.level == 0 for node in self.flying.values()) < most:
            index = next(self._waiting, None)
            if index is None:
                return
            self._start(Node(0, index))

    def submit_suspect(self) -> None:
        """Submit the first of the tasks that lost their worker."""
        self._start(self.suspects.pop(0))

    def lost(self, node: Node) -> None:
        """Note that a task lost its worker."""
        self.suspects.append(replace(node, attempt=node.attempt + 1))

    def finished(self, node: Node, future: Future) -> None:
        """Keep a result, forget those of the children, and submit the parent once all its children are ready."""
        if node.level > 0:
            for child in self._children(node.level, node.index):
                self.ready[node.level - 1].pop(child)
        level, index = node.level, node.index
        self.ready[level][index] = future
        while level + 1 < len(self._levels):
            level, index = level + 1, index // self._fan_in
            children = self._children(level, index)
            if not all(child in self.ready[level - 1] for child in children):
                return
            if len(children) > 1:
                self._start(Node(level, index))
                return
            # A single child is the result of its parent.
            self.ready[level][index] = self.ready[level - 1].pop(children[0])

    def parts(self, node: Node) -> list[Future]:
        """Return the results of the children of a node, none for a leaf."""
        if node.level == 0:
            return []
        below = self.ready[node.level - 1]
        return [below[child] for child in self._children(node.level, node.index)]

    def _start(self, node: Node) -> None:
        self.flying[self._submit(node, self.parts(node))] = node

    def _children(self, level: int, index: int) -> list[int]:
        return list(tree_node_children(index, self._fan_in, self._levels[level - 1]))
