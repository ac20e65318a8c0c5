"""The measures of isotropy equal the papers' formulas, written here in float64 NumPy, and obey their laws."""

import numpy as np
import pytest

from jaxvec import InputError, Moments, whitening
from jaxvec.evaluation.isotropy import (
    effective_rank,
    iso_score,
    mean_cosine,
    measure_isotropy,
    partition_ratio,
    spectrum,
)
from jaxvec.evaluation.pairwise import BLOCK, alignment, uniformity


def sample(n=700, d=12, seed=0):
    """Vectors in a cone, with unequal variances and one row of zeros."""
    rng = np.random.default_rng(seed)
    x = rng.normal(size=(n, d)) @ rng.normal(size=(d, d)) + 3 * rng.normal(size=d)
    x[n // 2] = 0
    return x.astype(np.float32)


def unit(x):
    x = x.astype(np.float64)
    return x / np.maximum(np.linalg.norm(x, axis=1, keepdims=True), 1e-300)


def published_iso_score(x):
    """Rudman et al. 2022, Algorithm 1, step by step."""
    n = x.shape[1]
    _, directions = np.linalg.eigh(np.cov(x.T.astype(np.float64)))
    diagonal = np.diag(np.cov((x @ directions).T))
    scaled = np.sqrt(n) * diagonal / np.linalg.norm(diagonal)
    defect = np.linalg.norm(scaled - np.ones(n)) / np.sqrt(2 * (n - np.sqrt(n)))
    share = (n - defect**2 * (n - np.sqrt(n))) ** 2 / n**2
    return (n * share - 1) / (n - 1)


def published_uniformity(x, t):
    """Wang & Isola 2020: the log of the mean potential over all pairs i < j."""
    u = unit(x)
    squares = ((u[:, None] - u[None]) ** 2).sum(-1)
    return np.log(np.exp(-t * squares[np.triu_indices(len(x), 1)]).mean())


def published_effective_rank(x):
    """Roy & Vetterli 2007, of the centred matrix, by its singular values."""
    share = np.linalg.svd(x - x.mean(0, dtype=np.float64), compute_uv=False)
    share = share / share.sum()
    return np.exp(-(share * np.log(share)).sum())


def published_partition_ratio(x):
    """Mu & Viswanath 2018: the extremes of Z over the eigenvectors of XᵀX, both signs."""
    x = x.astype(np.float64)
    _, directions = np.linalg.eigh(x.T @ x)
    z = np.exp(np.hstack([x @ directions, -x @ directions])).sum(0)
    return z.min() / z.max()


@pytest.mark.parametrize("seed", range(3))
def test_equal_the_published_formulas(seed):
    x = sample(seed=seed)
    moments = Moments.of(x)
    cosines = (unit(x) @ unit(x).T)[np.triu_indices(len(x), 1)]
    assert iso_score(moments) == pytest.approx(published_iso_score(x), abs=1e-6)
    assert effective_rank(moments) == pytest.approx(published_effective_rank(x), abs=1e-5)
    assert mean_cosine(Moments.of(unit(x).astype(np.float32))) == pytest.approx(cosines.mean(), abs=1e-6)
    small = x / 10
    assert partition_ratio(small) == pytest.approx(published_partition_ratio(small), rel=1e-4)
    expected = np.linalg.eigvalsh(np.cov(x.T))[::-1]
    np.testing.assert_allclose(spectrum(moments), expected, atol=1e-6 * expected[0])


@pytest.mark.parametrize("n", [2, 100, BLOCK, BLOCK + 1, 2 * BLOCK + 7])
@pytest.mark.parametrize("t", [2.0, 0.5])
def test_uniformity_equals_the_published_formula_for_any_number_of_rows(n, t):
    x = sample(n, 5)
    assert uniformity(x, t) == pytest.approx(published_uniformity(x, t), abs=1e-5)


@pytest.mark.parametrize("alpha", [1.0, 2.0])
def test_alignment_equals_the_published_formula(alpha):
    x, y = sample(seed=1), sample(seed=2)
    expected = (np.linalg.norm(unit(x) - unit(y), axis=1) ** alpha).mean()
    assert alignment(x, y, alpha) == pytest.approx(expected, abs=1e-6)


def test_one_report_holds_every_measure():
    x = sample()
    report = measure_isotropy(x)
    moments, units = Moments.of(x), unit(x).astype(np.float32)
    assert report.count == len(x)
    assert report.dim == x.shape[1]
    assert report.mean_norm == pytest.approx(np.linalg.norm(x, axis=1).mean(), rel=1e-6)
    assert report.mean_cosine == pytest.approx(mean_cosine(Moments.of(units)), abs=1e-6)
    assert report.iso_score == iso_score(moments)
    assert report.effective_rank == effective_rank(moments)
    assert report.partition_ratio == pytest.approx(published_partition_ratio(units), rel=1e-4)
    assert report.uniformity == pytest.approx(uniformity(x), abs=1e-6)
    assert report.figures()["spectrum"] == pytest.approx(report.spectrum.tolist())


def test_whitened_vectors_are_isotropic_by_every_measure():
    x = sample(5000)
    before = measure_isotropy(x)
    after = measure_isotropy(np.asarray(whitening(Moments.of(x))(x)))
    assert before.mean_cosine > 0.2
    assert abs(after.mean_cosine) < 1e-3
    assert before.iso_score < 0.9
    assert after.iso_score == pytest.approx(1, abs=1e-4)
    assert after.effective_rank == pytest.approx(12, abs=1e-3)
    assert before.partition_ratio < 0.6
    assert after.partition_ratio > 0.95
    assert after.uniformity < before.uniformity


def test_measures_that_should_not_see_a_rotation_or_a_scale_do_not():
    x = sample()
    rotation = np.linalg.qr(np.random.default_rng(5).normal(size=(12, 12)))[0]
    one, other = measure_isotropy(x), measure_isotropy((3 * x @ rotation).astype(np.float32))
    for name in ("mean_cosine", "iso_score", "effective_rank", "partition_ratio", "uniformity"):
        assert getattr(one, name) == pytest.approx(getattr(other, name), rel=1e-3, abs=1e-5), name


def test_a_stream_gives_the_mean_cosine_in_constant_memory():
    units = unit(sample(3000)).astype(np.float32)
    moments = Moments.empty(12)
    for chunk in np.array_split(units, 7):
        moments = moments.update(chunk)
    assert mean_cosine(moments) == pytest.approx(mean_cosine(Moments.of(units)), abs=1e-7)


def test_what_is_undefined_is_nan():
    same = np.ones((5, 12), np.float32)
    assert np.isnan(iso_score(Moments.of(same)))
    assert np.isnan(effective_rank(Moments.of(same)))
    assert np.isnan(iso_score(Moments.of(sample(d=1))))
    assert uniformity(same) == pytest.approx(0, abs=1e-6)
    assert mean_cosine(Moments.of(same / np.float32(12**0.5))) == pytest.approx(1, abs=1e-6)


def test_bad_input_is_one_clear_error():
    one = np.ones((1, 12), np.float32)
    for measure in (measure_isotropy, partition_ratio, uniformity):
        with pytest.raises(InputError, match="2 or more vectors"):
            measure(one)
    broken = sample()
    broken[3, 1] = np.nan
    with pytest.raises(InputError, match="row 3"):
        measure_isotropy(broken)
    with pytest.raises(InputError, match="pairs"):
        alignment(sample(), sample(10))
