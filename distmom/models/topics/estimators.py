"""Topic models from moments: a start by tensor or anchor words, and a few passes of refinement.

Sources: Anandkumar, Ge, Hsu, Kakade, Telgarsky, "Tensor Decompositions for Learning Latent Variable Models",
theorems 3.1 and 3.5; Arora et al., "A Practical Algorithm for Topic Modeling with Provable Guarantees".
"""

from __future__ import annotations

from distmom.models.topics.program import TopicModel
from distmom.models.topics.refine import ETA


class SpectralLDA(TopicModel):
    """Topics of documents that mix them, by moments of orders one to three and a few passes of refinement.

    Parameters
    ----------
    n_components : int or "auto"
        Topics; ``auto`` counts those that come back in the other half of the documents (`distmom.spectral.rank`),
        100 at most.
    alpha0 : float or "auto"
        Sum of the Dirichlet parameters that the moments are corrected for. ``auto`` tries a few and keeps the one
        whose topics, refined by one pass, complete held-out documents best.
    init : {"auto", "tensor", "anchors"}
        Decompose the third moment, take anchor words of the second, or try both as with ``alpha0="auto"``.
    n_refine : int or "auto"
        Passes of refinement; 0 leaves the topics as the moments have them, zero at words they do not see. ``auto``
        is 2 where refinement is collapsed, else 4.
    refine : {"auto", "em", "vb", "cvb"}
        EM for shares of largest posterior, variational Bayes, or the same collapsed (CVB0); ``auto`` takes the
        last where documents have fewer than 30 words in the mean, else the first.
    min_df : float or "auto"
        Share of the documents that a word is in at least, for the moments to see it; refinement sees all words.
        ``auto`` is 0.005, or less where that leaves fewer than 30 positions of a document in the mean.
    max_df : float
        Share of the documents that a word of the moments is in at most.
    max_count : int or None
        Largest count of a word in a document that the moments see.
    scale_words : bool
        Scale words in the moments by the inverse root of their frequency.
    weighting : {"tokens", "length", "document", "pooled"}
        How much each document counts in the moments (see `distmom.moments.weighting`).
    background : bool
        Let one of the topics start as the distribution of all words, which takes the words that all documents
        share; for long documents.
    eta : float
        What refinement adds to the count of every word in every topic.
    decomposition : {"joint", "power", "power-stop", "eca", "flatten", "jennrich"}
        Method for the whitened third moment.
    n_oversamples : int or None
        Columns of the sketch beyond the topics; None: the half of them, 20 at least.
    n_power_iter : int
        Power passes of the sketch.
    precision : {"single", "double"}
        Type in which blocks are multiplied; sums of moments are double in any case.
    decompose_on : {"scheduler", "client"}
        Where the tensor is decomposed when there is a cluster.
    random_state : int
        Seed.

    Attributes
    ----------
    n_components_ : int
        Topics.
    components_ : ndarray of shape (n_components_, n_words)
        Word probabilities of the topics, rows sum to one.
    components_error_, weights_error_ : ndarray or None
        Standard errors of `components_` and `weights_`, of a model from `fit_moments`.
    alpha_ : ndarray of shape (n_components_,)
        Dirichlet parameters that documents are read with; their sum is chosen on documents held out at first,
        unless refinement finds it.
    weights_ : ndarray of shape (n_components_,)
        Shares of the topics in the corpus.
    init_ : str
        The start that was taken.
    selection_ : dict or None
        Held-out perplexity of every start that was tried.
    diagnostics_ : dict
        Among others ``sum_rules``, relative residuals that are zero but for rounding where the moments of all
        orders are of the same documents.
    vocabulary_, label_names_ : list of str
        Names of the words, and of the labels of the corpus if it has some.
    n_features_in_ : int

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

    def __init__(
        self,
        n_components: int | str = 100,
        *,
        alpha0: float | str = "auto",
        init: str = "auto",
        n_refine: int | str = "auto",
        refine: str = "auto",
        min_df: float | str = "auto",
        max_df: float = 0.5,
        max_count: int | None = 2,
        scale_words: bool = True,
        weighting: str = "tokens",
        background: bool = False,
        eta: float = ETA,
        decomposition: str = "joint",
        n_oversamples: int | None = None,
        n_power_iter: int = 4,
        precision: str = "single",
        decompose_on: str = "scheduler",
        random_state: int = 0,
    ) -> None:
        self.n_components = n_components
        self.background = background
        self.alpha0 = alpha0
        self.init = init
        self.n_refine = n_refine
        self.refine = refine
        self.min_df = min_df
        self.max_df = max_df
        self.max_count = max_count
        self.scale_words = scale_words
        self.weighting = weighting
        self.eta = eta
        self.decomposition = decomposition
        self.n_oversamples = n_oversamples
        self.n_power_iter = n_power_iter
        self.precision = precision
        self.decompose_on = decompose_on
        self.random_state = random_state


class SingleTopic(TopicModel):
    """Topics of documents that have one topic each, by moments and a few passes of EM for the mixture.

    Parameters
    ----------
    n_components : int or "auto"
        Topics, as in `SpectralLDA`.
    n_refine : int or "auto"
        Passes of EM; 0 leaves the topics as the moments have them, zero at words they do not see.
    min_df, max_df, max_count, scale_words, weighting, eta, decomposition, n_oversamples, n_power_iter
        As in `SpectralLDA`.
    precision, decompose_on, random_state
        As in `SpectralLDA`.

    Attributes
    ----------
    n_components_, components_, weights_, alpha_, components_error_, weights_error_
        As in `SpectralLDA`.
    diagnostics_, vocabulary_, label_names_, n_features_in_
        As in `SpectralLDA`.
    """

    refine = "mixture"

    def __init__(
        self,
        n_components: int | str = 100,
        *,
        n_refine: int | str = "auto",
        min_df: float | str = "auto",
        max_df: float = 0.5,
        max_count: int | None = 2,
        scale_words: bool = True,
        weighting: str = "tokens",
        eta: float = ETA,
        decomposition: str = "joint",
        n_oversamples: int | None = None,
        n_power_iter: int = 4,
        precision: str = "single",
        decompose_on: str = "scheduler",
        random_state: int = 0,
    ) -> None:
        self.n_components = n_components
        self.n_refine = n_refine
        self.min_df = min_df
        self.max_df = max_df
        self.max_count = max_count
        self.scale_words = scale_words
        self.weighting = weighting
        self.eta = eta
        self.decomposition = decomposition
        self.n_oversamples = n_oversamples
        self.n_power_iter = n_power_iter
        self.precision = precision
        self.decompose_on = decompose_on
        self.random_state = random_state


class AnchorTopics(TopicModel):
    """Topics by anchor words, from moments of the first two orders, and a few passes of refinement.

    Parameters
    ----------
    n_components : int or "auto"
        Topics, as in `SpectralLDA`.
    n_refine : int or "auto"
        Passes of refinement; 0 leaves the topics as the moments have them, zero at words they do not see.
    refine, min_df, max_df, max_count, scale_words, weighting, eta, n_oversamples, n_power_iter
        As in `SpectralLDA`.
    precision, random_state
        As in `SpectralLDA`.

    Attributes
    ----------
    n_components_, components_, components_error_, weights_, weights_error_, alpha_
        As in `SpectralLDA`.
    vocabulary_, label_names_, n_features_in_
        As in `SpectralLDA`.
    diagnostics_ : dict
        ``anchors`` are the anchor words.
    """

    init = "anchors"

    def __init__(
        self,
        n_components: int | str = 100,
        *,
        n_refine: int | str = "auto",
        refine: str = "auto",
        min_df: float | str = "auto",
        max_df: float = 0.5,
        max_count: int | None = 2,
        scale_words: bool = True,
        weighting: str = "tokens",
        eta: float = ETA,
        n_oversamples: int | None = None,
        n_power_iter: int = 4,
        precision: str = "single",
        random_state: int = 0,
    ) -> None:
        self.n_components = n_components
        self.n_refine = n_refine
        self.refine = refine
        self.min_df = min_df
        self.max_df = max_df
        self.max_count = max_count
        self.scale_words = scale_words
        self.weighting = weighting
        self.eta = eta
        self.n_oversamples = n_oversamples
        self.n_power_iter = n_power_iter
        self.precision = precision
        self.random_state = random_state


class IndependentTopics(TopicModel):
    """Topics that documents have in independent amounts, by central moments and a few passes of refinement.

    A document has an amount of every topic, independent of each other and not symmetric about their means, and the
    count of every word is Poisson distributed about ``sum_i amount_i topic_i``. Amounts that follow Gamma
    distributions of one scale make up the documents of `SpectralLDA`, with lengths of a law of their own; here no
    law is assumed, and no alpha0 is to be known.

    Parameters
    ----------
    n_components : int or "auto"
        Topics, as in `SpectralLDA`.
    n_refine : int or "auto"
        Passes of refinement; 0 leaves the topics as the moments have them, zero at words that they do not see.
    refine, min_df, max_df, scale_words, eta, decomposition, n_oversamples, n_power_iter
        As in `SpectralLDA`.
    precision, decompose_on, random_state
        As in `SpectralLDA`.

    Attributes
    ----------
    n_components_, components_, weights_, alpha_, vocabulary_, label_names_, n_features_in_
        As in `SpectralLDA`.
    diagnostics_ : dict
        ``skewness`` is that of the amounts.

    Notes
    -----
    Factorial moments of counts, ``E[c c' - diag c]`` and so on, are those of the amounts (Anandkumar, Foster, Hsu,
    Kakade, Liu, "A Spectral Algorithm for Latent Dirichlet Allocation", section 3.1 and algorithm 1).
    """

    init = "factors"
    inits = ("factors",)
    weighting = "counts"
    weightings = ("counts",)
    max_count = None

    def __init__(
        self,
        n_components: int | str = 100,
        *,
        n_refine: int | str = "auto",
        refine: str = "auto",
        min_df: float | str = "auto",
        max_df: float = 0.5,
        scale_words: bool = True,
        eta: float = ETA,
        decomposition: str = "joint",
        n_oversamples: int | None = None,
        n_power_iter: int = 4,
        precision: str = "single",
        decompose_on: str = "scheduler",
        random_state: int = 0,
    ) -> None:
        self.n_components = n_components
        self.n_refine = n_refine
        self.refine = refine
        self.min_df = min_df
        self.max_df = max_df
        self.scale_words = scale_words
        self.eta = eta
        self.decomposition = decomposition
        self.n_oversamples = n_oversamples
        self.n_power_iter = n_power_iter
        self.precision = precision
        self.decompose_on = decompose_on
        self.random_state = random_state
