"""Segment photographs from one pixel of each segment, by search and by k-means from the same pixels.

    pip install pillow
    python workflows/segment_images.py bsds500.tar --pictures segments

Source: Ray, Neeman, Sanghavi, Shakkottai, "The Search Problem in Mixture Models", section 4.2. Images and human
segmentations are those of BSDS500, of which segmentations with two or three segments are used. A random pixel of
each segment is given. `GaussianSearch` is fitted once per image and finds the mean of each segment from its pixel
alone; k-means begins with the features of all pixels ("s-kmeans"). Each pixel then belongs to the nearest mean.
The features of a pixel, which the paper does not state, are the colours (CIE Lab) at nine places around it in a
blurred image.

The score of a segmentation is the normalised mutual information of the best of some draws of the pixels, as in the
paper, and that of an average draw; scores are averaged over the segmentations of an image, then over images.
"""

from __future__ import annotations

import argparse
import io
import json
import tarfile
import time
from collections.abc import Iterator
from pathlib import Path

import numpy as np
from scipy.io import loadmat
from scipy.ndimage import gaussian_filter
from sklearn.cluster import KMeans
from sklearn.metrics import normalized_mutual_info_score

from distmom.blas import one_blas_thread
from distmom.models import GaussianSearch

SYSTEMS = ("search", "s-kmeans")
#: most segments of a segmentation, as in the paper
MOST_SEGMENTS = 3
#: every pixel of this row and column number is segmented
STRIDE = 3
#: standard deviation of the blur, and distance of the outer places from the pixel, in pixels
BLUR, REACH = 2.0, 4
#: linear RGB to XYZ, relative to the white point D65
TO_XYZ = np.array([[0.4124, 0.3576, 0.1805], [0.2126, 0.7152, 0.0722], [0.0193, 0.1192, 0.9505]])
WHITE = np.array([0.9505, 1.0, 1.089])


def images(archive: Path) -> Iterator[tuple[str, np.ndarray, list[np.ndarray]]]:
    """Yield name, RGB values (h, w, 3) and segmentations (h, w) of every image of an archive."""
    from PIL import Image

    with tarfile.open(archive) as tar:
        members = {Path(each.name).name: each for each in tar.getmembers() if each.isfile()}

        def content(name: str) -> io.BytesIO:
            stream = tar.extractfile(members[name])
            assert stream is not None
            return io.BytesIO(stream.read())

        for name in sorted(members):
            if name.endswith(".jpg"):
                rgb = np.asarray(Image.open(content(name)).convert("RGB"), np.float64)
                cell = loadmat(content(f"{Path(name).stem}.mat"))["groundTruth"][0]
                yield Path(name).stem, rgb, [np.asarray(own["Segmentation"][0, 0], int) for own in cell]


def features(rgb: np.ndarray) -> np.ndarray:
    """Return the colours at nine places around each pixel that is segmented, (h', w', 27)."""
    share = rgb / 255.0
    linear = np.where(share > 0.04045, ((share + 0.055) / 1.055) ** 2.4, share / 12.92)
    xyz = linear @ TO_XYZ.T / WHITE
    bent = np.where(xyz > 0.008856, np.cbrt(xyz), 7.787 * xyz + 16 / 116)
    x, y, z = np.moveaxis(bent, -1, 0)
    lab = np.stack([gaussian_filter(c, BLUR) for c in (116 * y - 16, 500 * (x - y), 200 * (y - z))], axis=-1)
    h, w = lab.shape[:2]
    padded = np.pad(lab, ((REACH, REACH), (REACH, REACH), (0, 0)), mode="reflect")
    steps = (0, REACH, 2 * REACH)
    return np.concatenate([padded[a : a + h, b : b + w] for a in steps for b in steps], axis=-1)[
        ::STRIDE, ::STRIDE
    ]


def by_search(model: GaussianSearch, X: np.ndarray, pixels: np.ndarray) -> np.ndarray:
    """Return the segment of every row, by the means that are found from single rows."""
    means = np.stack([model.search(rows=X[[pixel]], force=True).mean for pixel in pixels])
    distances = (means**2).sum(axis=1) - 2.0 * X @ means.T
    return np.asarray(distances.argmin(axis=1))


def by_clusters(X: np.ndarray, pixels: np.ndarray) -> np.ndarray:
    """Return the segment of every row, by k-means that begins with some rows."""
    return np.asarray(KMeans(len(pixels), init=X[pixels], n_init=1).fit_predict(X))


def draw(folder: Path, name: str, rgb: np.ndarray, found: dict[str, np.ndarray]) -> None:
    """Write the image, the true segments and those found side by side, each in its average colour."""
    from PIL import Image

    small = rgb[::STRIDE, ::STRIDE]
    panels = [small]
    for segments in found.values():
        panel = np.zeros_like(small)
        for i in np.unique(segments):
            panel[segments == i] = small[segments == i].mean(axis=0)
        panels.append(panel)
    Image.fromarray(np.concatenate(panels, axis=1).astype(np.uint8)).save(folder / f"{name}.png")


def main(arguments: list[str] | None = None) -> None:
    """Segment all images and print the scores."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("archive", type=Path, help="bsds500.tar")
    parser.add_argument("--draws", type=int, default=5, help="draws of the given pixels [%(default)s]")
    parser.add_argument("--seed", type=int, default=0, help="[%(default)s]")
    parser.add_argument("--pictures", type=Path, help="folder for a picture of each image")
    parser.add_argument("--json", type=Path, help="file for the scores of every image")
    options = parser.parse_args(arguments)
    if options.pictures is not None:
        options.pictures.mkdir(parents=True, exist_ok=True)
    rng, seconds, rows = np.random.default_rng(options.seed), dict.fromkeys(SYSTEMS, 0.0), []
    for name, rgb, segmentations in images(options.archive):
        cut = [own[::STRIDE, ::STRIDE] for own in segmentations]
        truths = [own for own in cut if 2 <= len(np.unique(own)) <= MOST_SEGMENTS]
        if not truths:
            continue
        shaped = features(rgb)
        X = shaped.reshape(-1, shaped.shape[2])
        models = dict[int, GaussianSearch]()
        scores: dict[str, list[list[float]]] = {system: [] for system in SYSTEMS}
        for truth in truths:
            ids, flat = np.unique(truth), truth.ravel()
            found = dict[str, np.ndarray]()
            for system in SYSTEMS:
                scores[system].append([])
            for _ in range(options.draws):
                pixels = np.array([rng.choice(np.flatnonzero(flat == i)) for i in ids])
                for system in SYSTEMS:
                    with one_blas_thread():
                        started = time.perf_counter()
                        if system == "search":
                            if len(ids) not in models:
                                models[len(ids)] = GaussianSearch(len(ids)).fit(X)
                            own = by_search(models[len(ids)], X, pixels)
                        else:
                            own = by_clusters(X, pixels)
                        seconds[system] += time.perf_counter() - started
                    found[system] = own.reshape(truth.shape)
                    scores[system][-1].append(float(normalized_mutual_info_score(flat, own)))
        if options.pictures is not None:
            draw(options.pictures, name, rgb, {"truth": truth, **found})
        rows.append(
            {"image": name, "n_segmentations": len(truths)}
            | {
                f"{system} {kind}": float(np.mean([which(own) for own in scores[system]]))
                for system in SYSTEMS
                for kind, which in (("best", max), ("mean", np.mean))
            }
        )
    print(f"{len(rows)} images, {sum(row['n_segmentations'] for row in rows)} segmentations")
    print("| system | best draw | average draw | seconds |\n|---|---:|---:|---:|")
    for system in SYSTEMS:
        best, mean = (np.mean([row[f"{system} {kind}"] for row in rows]) for kind in ("best", "mean"))
        print(f"| {system} | {best:.3f} | {mean:.3f} | {seconds[system]:.1f} |")
    if options.json is not None:
        options.json.write_text(json.dumps(rows, indent=1) + "\n")


if __name__ == "__main__":
    main()
