"""Commands that make corpora: ingest, synth, copy."""

from __future__ import annotations

import re
from typing import Any

import click

from distmom.cli.options import (
    Cluster,
    LocalPath,
    NgramRange,
    cluster_options,
    input_options,
    json_option,
    overwrite_option,
    quiet_option,
)
from distmom.cli.places import place_kind
from distmom.cli.progress import PassProgress
from distmom.cli.row_options import refuse_others, row_arguments, row_options
from distmom.cli.shared import (
    check_source,
    describe_corpus,
    load_model_that,
    only_source,
    open_workers,
    refuse_given,
    show,
)
from distmom.corpus import FORMATS, copy_corpus, ingest, ingest_rows, ingest_sentences, open_words
from distmom.corpus.open import open_layers
from distmom.corpus.sources.columns import named
from distmom.corpus.sources.formats import check_documents
from distmom.corpus.sources.readers.text_tables import has_texts
from distmom.corpus.sources.row_formats import ROW_FORMATS, detect_row_format
from distmom.corpus.sources.tokenize import ANALYZERS
from distmom.errors import UsageError
from distmom.simulate import PRESETS, preset, synthesise
from distmom.spectral.capabilities import Capability


@click.command("ingest")
@click.argument("src", type=click.Path(), nargs=-1, required=True)
@click.argument("dst", type=LocalPath())
@input_options
@click.option(
    "--min-df",
    type=click.IntRange(min=1),
    default=2,
    show_default=True,
    help="Smallest number of documents in which a word of the vocabulary occurs.",
)
@click.option(
    "--max-df",
    default="1.0",
    show_default=True,
    help="Largest number of documents in which a word of the vocabulary occurs, or a share such as 0.5.",
)
@click.option("--stop-words", default=None, help="Words to leave out: 'english', or a file of words.")
@click.option(
    "--ngrams",
    type=NgramRange(),
    default="1",
    show_default=True,
    metavar="[MIN-]MAX",
    help="Length of the longest n-grams that are features, or of the shortest and the longest, such as 3-5.",
)
@click.option(
    "--analyzer",
    type=click.Choice(ANALYZERS),
    default="word",
    show_default=True,
    help="What n-grams consist of: words, characters, or characters without crossing white space (char_wb).",
)
@click.option(
    "--shard-docs", type=click.IntRange(min=1), default=20000, show_default=True, help="Documents per shard."
)
@click.option("--like", type=click.Path(), help="Model or corpus whose vocabulary and label names are used.")
@click.option(
    "--views",
    type=click.Choice(["sentences"]),
    help="Make every document a unit with one row of word counts per sentence (for --model factors).",
)
@row_options
@overwrite_option
@cluster_options
@json_option
@click.pass_context
def ingest_command(
    context: click.Context, /, src: tuple[str, ...], dst: str, format_: str | None, labels: str | None, vocab: str | None,
    label_source: str | None, zero_based: bool | None, text_field: str, labels_field: str,
    label_separator: str, id_column: str | None, strict: bool, min_df: int, max_df: str,
    stop_words: str | None, ngrams: tuple[int, int], analyzer: str, shard_docs: int, like: str | None,
    overwrite: bool, cluster: Cluster, as_json: bool, views: str | None, **rows: Any,
) -> None:  # fmt: skip
    """Read documents, rows or sequences into a corpus of Zarr shards.

    Documents may be in several files of one format, which are read in the given order. If interrupted, the same
    command resumes.

    \b
    Examples: distmom ingest part-*.parquet corpus --id-column id
              distmom ingest titles.tsv.xz corpus --labels subjects.txt
              distmom ingest train.txt corpus --format xmc
              distmom ingest measurements.npy corpus
              distmom ingest steps.npy corpus --lengths lengths.npy
              distmom ingest sentences.txt corpus --format tagged --min-count 20
    """
    if like is not None:
        refuse_given(("min_df", "max_df"), f"expected none with --like {like}, which provides the words")
    if views is not None:
        source = only_source(src, "--views reads one file")
        refuse_others(context, has_views=True)
        with (
            PassProgress(quiet=cluster.quiet) as progress,
            open_workers(cluster) as executor,
        ):
            sentences = ingest_sentences(
                source, dst, min_df=min_df, max_df=_count_or_share(max_df, "--max-df"), text_field=text_field,
                stop_words=stop_words, shard_documents=shard_docs, strict=strict,
                like=_columns_like(like, Capability.VIEWS), overwrite=overwrite, map=executor.map,
                progress=progress.stage,
            )  # fmt: skip
        show(describe_corpus(sentences), as_json)
        return
    found = format_ or detect_row_format(src[0])
    # Tables of texts and tables of numbers are in the same formats.
    if found in FORMATS and found in ROW_FORMATS:
        check_documents(src[0])
        if rows["columns"] is None and rows["group_column"] is None and has_texts(src[0], found, text_field):
            found = None
    refuse_others(context, format_=found)
    if found in ROW_FORMATS:
        source = only_source(src, "only documents may be in several files")
        with (
            PassProgress(quiet=cluster.quiet) as progress,
            open_workers(cluster) as executor,
        ):
            layered = ingest_rows(
                source, dst, format=found, names=vocab, strict=strict, like=_columns_like(like, Capability.ROWS), overwrite=overwrite,
                map=executor.map, progress=progress.stage, id_column=id_column, **row_arguments(rows),
            )  # fmt: skip
        show(describe_corpus(layered), as_json)
        return
    check_source(src, format_, zero_based)
    columns = _columns_like(like, Capability.DOCUMENTS)
    if columns is not None and columns.settings.get("tokenizer"):
        refuse_given(
            ("stop_words", "ngrams", "analyzer"),
            f"expected none with --like {like}, which determines the words of texts",
        )
    with PassProgress(quiet=cluster.quiet) as progress, open_workers(cluster) as executor:
        corpus = ingest(
            src, dst, format=format_, labels=labels, vocabulary=vocab, label_source=label_source,
            zero_based=zero_based, text_field=text_field, labels_field=labels_field, label_separator=label_separator,
            id_column=id_column, strict=strict, min_df=min_df, max_df=_count_or_share(max_df, "--max-df"),
            stop_words=stop_words, ngram_min=ngrams[0], ngram_max=ngrams[1], analyzer=analyzer, shard_documents=shard_docs, overwrite=overwrite,
            like=columns, map=executor.map, progress=progress.stage,
        )  # fmt: skip
    show(describe_corpus(corpus), as_json)


@click.command()
@click.argument("preset_name", metavar="PRESET", type=click.Choice(list(PRESETS)))
@click.argument("dst", type=click.Path())
@click.option("--docs", type=click.IntRange(min=1), default=None, help="Documents. [default: the preset's]")
@click.option("--words", type=click.IntRange(min=2), default=None, help="Words. [default: the preset's]")
@click.option("--states", type=click.IntRange(1, 65536), default=None, help="States. [default: the preset's]")
@click.option(
    "--first",
    type=click.IntRange(min=0),
    default=0,
    show_default=True,
    help="Number of the first document; for test documents, the number of training documents.",
)
@click.option(
    "--seed",
    type=click.IntRange(min=0),
    default=0,
    show_default=True,
    help="Seed of the random number generator.",
)
@click.option(
    "--shard-docs", type=click.IntRange(min=1), default=20000, show_default=True, help="Documents per shard."
)
@overwrite_option
@cluster_options
@json_option
def synth(
    preset_name: str, dst: str, docs: int | None, words: int | None, states: int | None, first: int, seed: int,
    shard_docs: int, overwrite: bool, cluster: Cluster, as_json: bool,
) -> None:  # fmt: skip
    """Draw a planted corpus of the size of a known data set, with its truth in DST.truth.

    The documents do not depend on the number of workers or the size of shards.

    
    Examples: distmom synth wikilshtc train --docs 200000
              distmom synth wikilshtc test --first 200000 --docs 10000
              distmom fit train model --head posterior
              distmom evaluate model test --truth test.truth
    """
    model = preset(preset_name, n_documents=docs, n_words=words, n_states=states, seed=seed)
    with PassProgress(quiet=cluster.quiet) as progress, open_workers(cluster) as executor:
        corpus = synthesise(
            model, dst, first=first, shard_documents=shard_docs, overwrite=overwrite, map=executor.map,
            progress=progress.stage,
        )  # fmt: skip
    show(describe_corpus(corpus), as_json)


@click.command()
@click.argument("src", type=click.Path())
@click.argument("dst", type=click.Path())
@overwrite_option
@quiet_option
@json_option
def copy(src: str, dst: str, overwrite: bool, quiet: bool, as_json: bool) -> None:
    """Copy a corpus to or from an object store; SRC and DST are each a path or a URL.

    Keys and endpoint of a store come from the environment (AWS_ACCESS_KEY_ID, AWS_SECRET_ACCESS_KEY, AWS_REGION,
    AWS_ENDPOINT_URL). If interrupted, the same command resumes.

    \b
    Examples: distmom copy corpus s3://bucket/corpus
              distmom copy s3://bucket/corpus corpus
    """
    with PassProgress(quiet=quiet) as progress:
        corpus = copy_corpus(src, dst, overwrite=overwrite, progress=progress.stage)
    show(describe_corpus(corpus), as_json)


def _count_or_share(text: str, flag: str) -> int | float:
    try:
        return int(text) if re.fullmatch(r"\d+", text) else float(text)
    except ValueError:
        raise UsageError(f"{flag}: expected a number of documents or a share, got {text!r}") from None


def _columns_like(path: str | None, capability: Capability) -> Any:
    """Return the columns and settings of the model or corpus at a path; None without a path.

    Raises
    ------
    UsageError
        If there is neither, the model lacks the capability, or the corpus is of another kind than those of models
        with the capability.
    """
    if path is None:
        return None
    if place_kind(path) != "corpus":
        return named(load_model_that(path, capability))
    return open_words(path) if capability is Capability.DOCUMENTS else open_layers(path)
