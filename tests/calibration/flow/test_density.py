"""A flow as a density: as good as the truth where that is known, better than any Gaussian where none fits."""

import numpy as np

from jaxvec import Flow


def test_a_gaussian_is_learned_to_its_entropy():
    rng = np.random.default_rng(0)
    scales = np.sqrt(np.geomspace(100, 1, 16))
    rotation = np.linalg.qr(rng.normal(size=(16, 16)))[0]
    train, held = (
        (rng.normal(size=(n, 16)) * scales @ rotation).astype(np.float32) for n in (50_000, 10_000)
    )
    flow = Flow.fit(train, levels=1, depth=1, hidden=16, epochs=1, batch_size=512)
    entropy = 0.5 * np.log(2 * np.pi * np.e * scales**2).mean()
    assert -float(flow.log_likelihood(held).mean()) / 16 <= entropy + 0.02


def moons(count, rng):
    angle, upper = rng.uniform(0, np.pi, count), rng.random(count) < 0.5
    x = np.where(upper, np.cos(angle), 1 - np.cos(angle))
    y = np.where(upper, np.sin(angle), 0.5 - np.sin(angle))
    return (np.stack([x, y], axis=1) + 0.1 * rng.normal(size=(count, 2))).astype(np.float32)


def test_two_moons_are_no_gaussian():
    rng = np.random.default_rng(0)
    train, held = moons(20_000, rng), moons(5_000, rng)
    free = {"noise": 0.0, "drift": 1.0, "learning_rate": 1e-2, "ema": 0.95}
    flow = Flow.fit(train, levels=1, depth=3, hidden=16, epochs=4, batch_size=200, **free)
    offset, covariance = held - train.mean(0), np.cov(train.T)
    distance = (offset * np.linalg.solve(covariance, offset.T).T).sum(1)
    gaussian = -0.5 * (np.linalg.slogdet(2 * np.pi * covariance)[1] + distance.mean())
    assert float(flow.log_likelihood(held).mean()) > gaussian + 0.3
