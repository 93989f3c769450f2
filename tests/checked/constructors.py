"""Calls that a type checker must accept or refuse. Only mypy reads this file; an unused ``ignore`` is an error."""

import distmom
from distmom import MultiLabelMoM, SingleTopic, SpectralLDA, TopicMoments
from distmom.models import ProductMixture

model: MultiLabelMoM = MultiLabelMoM(50, head="posterior", n_oversamples=None).fit_corpus(None)
topics: SpectralLDA = SpectralLDA(n_components="auto", alpha0=0.5, random_state=1)
moments: TopicMoments = distmom.TopicMoments(3).fit(None)
mixture: ProductMixture = ProductMixture(random_state=None)
names: list[str] = model.vocabulary_
scores: dict[str, float] = distmom.evaluate(model, distmom.open_corpus("corpus"))

MultiLabelMoM(components=50)  # type: ignore[call-arg]
MultiLabelMoM(50, "posterior")  # type: ignore[call-arg]
MultiLabelMoM(n_components="50")  # type: ignore[arg-type]
ProductMixture(n_power_iter=None)  # type: ignore[arg-type]
ProductMixture(random_state="0")  # type: ignore[arg-type]
distmom.TopicSearch(3, max_count="2")  # type: ignore[arg-type]
# A parameter that the model fixes is none of its own.
SingleTopic(3, alpha0=1.0)  # type: ignore[call-arg]
distmom.SpectralLda  # type: ignore[attr-defined]  # noqa: B018
