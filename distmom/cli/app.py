"""The command line: parse, call the library, print. Results go to stdout, progress and errors to stderr.

Every command imports the estimators itself, as that import takes longer than everything else.
"""

from __future__ import annotations

import click

import distmom
from distmom.cli import corpora, find, fits, jobs, models, moments, places, topics, updates, warm
from distmom.cli.options import DataFlowGroup


@click.group(
    cls=DataFlowGroup, context_settings={"help_option_names": ["-h", "--help"], "max_content_width": 100}
)
@click.version_option(distmom.__version__, prog_name="distmom")
def cli() -> None:
    """Labels and topics of texts, clusters of rows and hidden states of sequences, by the method of moments.

    \b
    A first run:   distmom demo
    Own data:      distmom ingest titles.tsv corpus
                   distmom fit corpus model -k 100
                   distmom predict model new.tsv out --top 5
    """


for command in (
    models.demo,
    corpora.ingest_command,
    corpora.synth,
    corpora.copy,
    places.info,
    places.verify,
    fits.plan,
    fits.bench,
    warm.warm,
    fits.fit,
    fits.resume,
    moments.moments,
    moments.combine,
    updates.update,
    models.predict,
    topics.transform,
    models.evaluate,
    topics.topics,
    topics.search,
    find.find,
    models.report,
    jobs.submit,
    jobs.jobs,
):
    cli.add_command(command)
