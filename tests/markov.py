"""A hidden Markov model of three states and five symbols: its population and its samples."""

import numpy as np
from helpers import WeightedRows, matched

from distmom.corpus import RowCorpus
from distmom.models import HiddenMarkov
from distmom.simulate.chains import MarkovPopulation

START = np.array([0.6, 0.3, 0.1])
TRANSITION = np.array([[0.7, 0.2, 0.1], [0.1, 0.75, 0.15], [0.25, 0.15, 0.6]])
EMISSION = np.random.default_rng(2).dirichlet(np.full(5, 0.6), 3)
TRUE = MarkovPopulation(START, TRANSITION, EMISSION)


def exact(emission=EMISSION, **options):
    """All sequences of three and of four symbols, with their probabilities."""
    drawn = MarkovPopulation(START, TRANSITION, emission).enumerate(3, 4)
    return WeightedRows(drawn.X, drawn.weights, drawn.lengths, n_symbols=emission.shape[1], **options)


def sample(n, seed):
    """One sequence of symbols, and their states."""
    drawn = TRUE.sample([n], seed)
    return drawn.X, drawn.states


def planted(n_symbols=5):
    """The planted model as a fitted one."""
    model = HiddenMarkov(3, smoothing=0.0, n_em_iter=0).fit_corpus(exact())
    order = matched(model.emissionprob_, EMISSION)[1]
    model.startprob_, model.transmat_ = START[order], TRANSITION[np.ix_(order, order)]
    model.emissionprob_ = EMISSION[order]
    return model, order


def block_of(X, lengths):
    """The first shard of a corpus."""
    return RowCorpus(X, lengths, n_symbols=5, shard_rows=1 << 40).read_shard(0)
