"""Commands of multi-label models with kept sums: update, and the combination of updates."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import click

from distmom.cli import run as runs
from distmom.cli.options import Cluster, cluster_options, json_option, overwrite_option, run_option
from distmom.cli.progress import PassProgress
from distmom.cli.run_record import Like
from distmom.cli.shared import open_workers, show
from distmom.corpus.files.storage import place_of
from distmom.errors import StoreError, UsageError
from distmom.spectral.saved.artifact import record_digest

if TYPE_CHECKING:
    from distmom.models import MultiLabelMoM

#: name of the models that can be updated
MULTILABEL = "multilabel"


@click.command()
@click.argument("model", type=click.Path())
@click.argument("corpus", type=click.Path())
@click.argument("dst", type=click.Path())
@click.option("--remove", is_flag=True, help="Remove the documents of the corpus instead of adding them.")
@run_option("DST")
@overwrite_option
@cluster_options
@json_option
def update(
    model: str, corpus: str, dst: str, remove: bool, run_path: str | None, overwrite: bool, cluster: Cluster,
    as_json: bool,
) -> None:  # fmt: skip
    """Add the documents of a corpus to a multi-label model that was fitted with --keep-sums, or remove them.

    Only the documents of CORPUS are read. Its words and labels are matched by name: words that the model does not
    know are left out, and new labels are added. If interrupted, the same command, or 'distmom resume DST.run',
    resumes after the last finished groups of shards.

    \b
    Examples: distmom ingest tuesday.tsv tuesday --like model
              distmom update model tuesday newer
              distmom update newer withdrawn less --remove
    """
    first = _model(model)
    like = Like(place_of(model), str(record_digest(model)))
    run = runs.create(corpus, dst, run_path, MULTILABEL, {"remove": remove}, overwrite, like)
    if not runs.show_finished(run, as_json):
        add_documents(run, cluster, as_json, first)


def add_documents(run: runs.Run, cluster: Cluster, as_json: bool, first: MultiLabelMoM | None = None) -> None:
    """Make the missing passes of an update, save the model and show its main numbers.

    Parameters
    ----------
    run : Run
    cluster : Cluster
    as_json : bool
        Show the numbers as JSON.
    first : MultiLabelMoM, optional
        The model that is updated; read by default.
    """
    from distmom.predict.aligned import check_words

    with run.carried_out(cluster) as directory, PassProgress(quiet=cluster.quiet) as progress:
        corpus: Any = run.open_corpus()
        model = _begun_with(run) if first is None else first
        run.check_target()
        check_words(corpus, model.vocabulary_)
        n_labels = len(model.label_names_)
        with open_workers(cluster, corpus) as executor:
            change = model.remove_corpus if run.parameters["remove"] else model.partial_fit_corpus
            change(
                corpus, client=executor, run=directory, memory_limit=cluster.memory_limit, observer=progress
            )
            run.save(model, directory)
    show(
        {
            "model": run.model,
            "update_seconds": round(model.fit_seconds_, 2),
            "n_documents": model.n_documents_,
            "n_labels": len(model.label_names_),
            "n_new_labels": len(model.label_names_) - n_labels,
        },
        as_json,
    )


def combine_models(
    dst: str, added: tuple[str, ...], taken: tuple[str, ...], overwrite: bool, as_json: bool
) -> None:
    """Combine several models into one, save it, and show its main numbers."""
    from distmom.models import MultiLabelMoM

    total = MultiLabelMoM.combine([_model(path) for path in added], [_model(path) for path in taken])
    total.save(dst, overwrite=overwrite)
    show({"model": dst, "n_documents": total.n_documents_, "n_labels": len(total.label_names_)}, as_json)


def _model(path: str) -> MultiLabelMoM:
    """Read a multi-label model with kept sums; a UsageError if it is not such a model."""
    from distmom.models import MultiLabelMoM

    model = MultiLabelMoM.load(path)
    if model.sums_ is None:
        raise UsageError(f"{path}: fitted without its sums: fit it with --keep-sums")
    return model


def _begun_with(run: runs.Run) -> MultiLabelMoM:
    """Return the model that an update began with.

    Raises
    ------
    UsageError
        If the model has changed since.
    StoreError
        If it cannot be read now.
    """
    assert run.like is not None
    try:
        model = _model(run.like.path)
    except UsageError as error:
        # The model may be on a disk that is not mounted now, which is no reason to discard finished passes.
        raise StoreError(str(error)) from error
    if record_digest(run.like.path) != run.like.digest:
        raise UsageError(f"{run.like.path}: changed since the update began")
    return model
