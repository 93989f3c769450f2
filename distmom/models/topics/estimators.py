"""The topic models: initial topics from a tensor or anchor words, and a few passes of refinement.

Sources: Anandkumar, Ge, Hsu, Kakade, Telgarsky, "Tensor Decompositions for Learning Latent Variable Models",
theorems 3.1 and 3.5; Arora et al., "A Practical Algorithm for Topic Modeling with Provable Guarantees". Parameters
are declared in `distmom.models.topics.settings`; each model fixes some of them.
"""

from __future__ import annotations

from distmom.corpus import Corpus, MemoryCorpus
from distmom.models.topics.anchors import LOSSES
from distmom.models.topics.choice import part_of_positions
from distmom.models.topics.program import TopicModel
from distmom.spectral.parameters import fixed, parameter
from distmom.spectral.steps.factors import ORDERS


class SpectralLDA(TopicModel):
    """Topics of documents that mix several topics, by moments of up to four words and passes of refinement.

    Attributes
    ----------
    n_components_ : int
        Number of topics.
    components_ : ndarray of shape (n_components_, n_words)
        Word probabilities of the topics; rows sum to one.
    components_error_, weights_error_ : ndarray or None
        Standard errors of `components_` and `weights_` after `fit_moments`; else None.
    alpha_ : ndarray of shape (n_components_,)
        Dirichlet parameters with which the shares of documents are inferred. Their sum is chosen on held-out
        documents, unless refinement estimates it.
    weights_ : ndarray of shape (n_components_,)
        Shares of the topics in the corpus.
    init_ : str
        The initialisation that was used.
    selection_ : dict or None
        Held-out perplexity of every initialisation that was tried; None if there was only one.
    diagnostics_ : dict
        Measurements of the fit. ``sum_rules`` are relative residuals, zero up to rounding if the moments of all
        orders are of the same documents. With the fourth order, ``kurtosis`` is the effective excess kurtosis of
        the shares, ``6 alpha0 (alpha0 + 1) / ((alpha0 + 2) (alpha0 + 3) alpha_i)``, and ``separation``,
        ``skewness_level``, ``kurtosis_level``, ``n_found`` and ``n_rejected`` are as in `ECA`.
    vocabulary_, label_names_ : list of str
        Names of the words, and of the labels of the corpus.
    n_features_in_ : int
        Number of words.

    Examples
    --------
    >>> import numpy as np
    >>> rng = np.random.default_rng(0)
    >>> topics = rng.dirichlet(np.full(30, 0.1), 3)
    >>> X = np.stack([rng.multinomial(60, rng.dirichlet([0.2] * 3) @ topics) for _ in range(500)])
    >>> model = SpectralLDA(3).fit(X)
    >>> model.components_.shape, model.transform(X).shape
    ((3, 30), (500, 3))
    """

    n_refine: int | str = parameter(
        "Number of passes of refinement. 0 returns the topics estimated from moments, in which words "
        "left out of the moments have probability zero. auto is 2 with refine=cvb where documents have fewer than "
        "30 words on average, else 4; before these, up to 24 passes over a part of the documents are tried, and "
        "kept if they lower the held-out perplexity. With auto, a background topic also replaces one of the "
        "topics if the topics share most of their words and predict held-out documents about as well with it.",
        default="auto", kind=int, least=0, auto=True,
    )  # fmt: skip
    orders: str = parameter(
        "Find topics by the third moment (3), the fourth (4), or both together (both). 4 and both require "
        "init=tensor, a number for alpha0 and documents of at least four words, take up to two more passes, and "
        "leave out topics that cannot be distinguished given their sampling errors.",
        default="3", choices=tuple(ORDERS),
    )  # fmt: skip

    def tries_further(self, corpus: Corpus | MemoryCorpus) -> bool:
        return self.n_refine == "auto" and not self.finds_alpha(corpus) and part_of_positions(corpus) > 0.0


class SingleTopic(TopicModel):
    """Topics of documents that have a single topic each, by moments and a few passes of EM for the mixture.

    Attributes
    ----------
    n_components_, components_, weights_, alpha_, components_error_, weights_error_
        As in `SpectralLDA`.
    diagnostics_, vocabulary_, label_names_, n_features_in_
        As in `SpectralLDA`.
    """

    init: str = fixed("tensor")
    alpha0: float | str = fixed(0.0)
    refine: str = fixed("mixture")
    background: bool = fixed(False)


class AnchorTopics(TopicModel):
    """Topics by anchor words, from moments of the first two orders, and a few passes of refinement.

    Attributes
    ----------
    n_components_, components_, components_error_, weights_, weights_error_, alpha_
        As in `SpectralLDA`.
    vocabulary_, label_names_, n_features_in_
        As in `SpectralLDA`.
    diagnostics_ : dict
        ``anchors`` are the anchor words.
    """

    loss: str = parameter(
        "Express every word as the mixture of anchor words whose co-occurrences are nearest to its own, by least "
        "squares (least_squares) or by Kullback-Leibler divergence (divergence).",
        default="least_squares", choices=LOSSES,
    )  # fmt: skip

    init: str = fixed("anchors")
    alpha0: float | str = fixed(0.0)
    background: bool = fixed(False)
    decomposition: str = fixed("joint")
    starts: str = fixed("random")
    max_words: int | None = fixed(None)
    decompose_on: str = fixed("client")


class IndependentTopics(TopicModel):
    """Topics with independent amounts in each document, by central moments and a few passes of refinement.

    A document has an amount of every topic. The amounts are independent of each other, and their distributions are
    skewed or have excess kurtosis (see ``orders``); the count of every word is Poisson distributed with mean
    ``sum_i amount_i topic_i``. Amounts with Gamma distributions of one scale give the documents of `SpectralLDA`,
    with a particular distribution of lengths; here no distribution is assumed, and alpha0 need not be known.

    Attributes
    ----------
    n_components_, components_, weights_, alpha_, vocabulary_, label_names_, n_features_in_
        As in `SpectralLDA`.
    diagnostics_ : dict
        ``skewness`` is the skewness of the amounts. With the fourth order, ``kurtosis`` is their excess kurtosis,
        and ``separation``, ``skewness_level``, ``kurtosis_level``, ``n_found`` and ``n_rejected`` are as in `ECA`.

    Notes
    -----
    Factorial moments of counts, such as ``E[c c' - diag c]``, equal the moments of ``sum_i amount_i topic_i``
    (Anandkumar, Foster, Hsu, Kakade, Liu, "A Spectral Algorithm for Latent Dirichlet Allocation", section 3.1,
    algorithms 1 and 2, and remark 4).
    """

    orders: str = parameter(
        "Find topics by the skewness of their amounts (3), by their excess kurtosis (4), or by both together "
        "(both). 4 and both require documents of at least four words, take up to two more passes, and leave out "
        "topics that cannot be distinguished given their sampling errors.",
        default="3", choices=tuple(ORDERS),
    )  # fmt: skip

    init: str = fixed("factors")
    alpha0: float | str = fixed(0.0)
    background: bool = fixed(False)
    starts: str = fixed("random")
    weighting: str = fixed("counts")
    max_count: int | None = fixed(None)
