"""Texts with the names of their subjects."""

import numpy as np

WORDS = {
    "fish": ["salmon", "herring", "net", "roe", "river", "Åland"],
    "trees": ["oak", "pine", "leaf", "forest", "bark", "river"],
    "stars, suns": ["nova", "comet", "orbit", "light", "dust", "ring"],
}


def draw(n=240, seed=0):
    """Texts with the names of one or two subjects each; the third document has no label."""
    rng = np.random.default_rng(seed)
    texts, labels = [], []
    for i in range(n):
        subjects = rng.choice(list(WORDS), rng.integers(1, 3), replace=False).tolist()
        words = [str(rng.choice(WORDS[name])) for name in subjects for _ in range(5)]
        texts.append(f"The {', '.join(words)}! {i}")
        labels.append(subjects if i != 2 else [])
    return texts, labels
