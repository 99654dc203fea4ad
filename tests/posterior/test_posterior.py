"""What a `Posterior` says of its particles."""

from __future__ import annotations

import json
import math

import numpy as np
import pytest

from smcprog.errors import SMCError
from smcprog.smc.posterior import Particle, Posterior, RoundInfo

from .synthetic import dead_posterior, posterior

LOG2 = math.log(2)


def particle(text: str, log_weight: float, log_target: float = -1.0) -> Particle:
    dead = log_weight == -math.inf
    return Particle(text, [7, 0], log_weight, [-0.5, -0.5], log_target, "dead" if dead else "eos")


def small(**changes: object) -> Posterior:
    """Weights 1/4, 1/2, 1/4, 0; the dead particle has the largest log γ."""
    fields: dict = {
        "particles": [
            particle("yes", 0.0, -3.0),
            particle("no", LOG2, -2.5),
            particle("Yes", 0.0, -2.0),
            particle("never", -math.inf, -0.1),
        ],
        "rounds": [],
        "log_evidence": -1.25,
        "sample_index": 1,
        "seed": 3,
    }
    return Posterior(**{**fields, **changes})


def test_weights_ess_and_choice() -> None:
    post = small()
    np.testing.assert_allclose(post.weights, [0.25, 0.5, 0.25, 0.0])
    assert post.weights.dtype == np.float64
    assert post.ess == pytest.approx(1 / (0.0625 + 0.25 + 0.0625))
    assert post.text == "no"
    assert post.tokens == [7, 0]
    assert post.sample is post.particles[1]


def test_best_has_the_largest_target_among_the_living() -> None:
    post = small()
    assert post.best.text == "Yes"
    assert post.best_index == 2
    tie = small(particles=[particle("a", 0.0), particle("b", 5.0)], sample_index=0)
    assert tie.best.text == "a"


def test_probabilities_add_up_and_are_sorted() -> None:
    post = small()
    assert list(post.probabilities().items()) == [
        ("no", pytest.approx(0.5)),
        ("yes", pytest.approx(0.25)),
        ("Yes", pytest.approx(0.25)),
    ]
    by_answer = post.probabilities(str.lower)
    assert by_answer == {"no": pytest.approx(0.5), "yes": pytest.approx(0.5)}
    assert sum(post.probabilities(len).values()) == pytest.approx(1.0)


def test_it_is_a_sequence_of_its_particles() -> None:
    post = small()
    assert len(post) == 4
    assert [p.text for p in post] == ["yes", "no", "Yes", "never"]
    assert post[-1].text == "never"


def test_standard_error_comes_from_the_rounds() -> None:
    def info(resampled: bool, ancestors: list[int]) -> RoundInfo:
        return RoundInfo(1.0, resampled, ancestors, -1.0, 1, 4, [0.0] * 4)

    two_families = small(rounds=[info(True, [0, 0, 1, 1]), info(False, [0, 1, 2, 3])])
    # Families of weight 3/4 and 1/4: 4/3 · (10/16 − 1/4) = 1/2.
    assert two_families.log_evidence_se == pytest.approx(math.sqrt(0.5))
    assert two_families.log_evidence_se_approximate
    exact = small(rounds=[info(True, [0, 0, 1, 1])], resampling="multinomial")
    assert not exact.log_evidence_se_approximate
    # 1 − (4/3)² (1 − 10/16) = 1/3.
    assert exact.log_evidence_se == pytest.approx(math.sqrt(1 / 3))
    assert math.isnan(small(rounds=[info(True, [2, 2, 2, 2])]).log_evidence_se)


def test_all_dead() -> None:
    post = dead_posterior()
    assert post.text == ""
    assert post.tokens == []
    assert post.sample is None
    assert not post.alive
    assert post.weights.tolist() == [0.0] * 4
    assert post.ess == 0.0
    assert post.log_evidence == -math.inf
    assert math.isnan(post.log_evidence_se)
    assert post.probabilities() == {}
    assert post.best_index is None
    with pytest.raises(SMCError, match="all 4 particles have weight zero"):
        _ = post.best
    assert "log_evidence=-inf" in repr(post)


def test_repr_is_short() -> None:
    assert repr(small()) == (
        "Posterior('no', particles=4, log_evidence=-1.2500 ± ~0.41, ess=2.67, seed=3)"
    )
    long = small(particles=[particle("x" * 10_000, 0.0)], sample_index=0)
    assert len(repr(long)) < 200
    assert len(repr(long.particles[0])) < 200


@pytest.mark.parametrize("post", [small(), dead_posterior(), posterior(8, 12, death=0.05)])
def test_to_dict_is_strict_json(post: Posterior) -> None:
    data = json.loads(json.dumps(post.to_dict(), allow_nan=False))
    assert data["text"] == post.text
    assert data["seed"] == post.seed
    assert data["log_evidence"] == (post.log_evidence if post.alive else None)
    assert data["ess"] == post.ess
    assert len(data["particles"]) == len(post)
    for shown, held in zip(data["particles"], post, strict=True):
        assert shown["tokens"] == held.tokens
        assert shown["log_weight"] == (held.log_weight if held.alive else None)
        assert shown["finish_reason"] == held.finish_reason
    assert [p["weight"] for p in data["particles"]] == post.weights.tolist()
    assert len(data["rounds"]) == len(post.rounds)
    assert "rounds" not in post.to_dict(rounds=False)


def test_to_dict_takes_what_timing_holds() -> None:
    timing = {"total_s": np.float64(1.5), "steps": np.arange(2), "bad": math.nan, "n": np.int64(3)}
    shown = small(timing=timing).to_dict()["timing"]
    assert shown == {"total_s": 1.5, "steps": [0, 1], "bad": None, "n": 3}
    json.dumps(shown, allow_nan=False)


@pytest.mark.parametrize("index", [4, -1, 3])  # out of range twice, and a dead particle
def test_sample_index_must_name_a_living_particle(index: int) -> None:
    with pytest.raises(ValueError, match="sample_index must name"):
        small(sample_index=index)


def test_needs_particles() -> None:
    with pytest.raises(ValueError, match="at least one particle"):
        small(particles=[], sample_index=None)
