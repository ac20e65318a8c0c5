"""MTEB evaluates an encoder on a local task and finds the Spearman that jaxvec finds."""

import numpy as np
import pytest

from jaxvec import Moments, SentenceEncoder, whitening
from jaxvec.evaluation.evaluate import evaluate
from jaxvec.evaluation.tasks import Pairs, Task
from jaxvec.interchange.mteb import MtebEncoder

pytestmark = pytest.mark.filterwarnings("ignore")  # mteb's own and its dependencies'


@pytest.fixture(scope="module")
def pairs(texts):
    return Pairs(texts[:60], texts[60:120], np.random.default_rng(0).integers(0, 6, 60).astype(float))


def _local_task(pairs):
    datasets = pytest.importorskip("datasets")
    pytest.importorskip("mteb")
    from mteb.abstasks.sts import AbsTaskSTS
    from mteb.abstasks.task_metadata import TaskMetadata

    unknown = ("reference", "date", "domains", "task_subtypes", "license", "annotations_creators", "dialect")
    about = {
        "name": "Local",
        "description": "Made up.",
        "dataset": {"path": "local/none", "revision": "1"},
        "type": "STS",
        "category": "t2t",
        "modalities": ["text"],
        "eval_splits": ["test"],
        "eval_langs": ["eng-Latn"],
        "main_score": "cosine_spearman",
        **dict.fromkeys((*unknown, "sample_creation", "bibtex_citation")),
    }

    class Local(AbsTaskSTS):
        metadata = TaskMetadata(**about)

        def load_data(self, **_):
            columns = {"sentence1": pairs.first, "sentence2": pairs.second, "score": pairs.scores.tolist()}
            self.dataset, self.data_loaded = {"test": datasets.Dataset.from_dict(columns)}, True

    return Local()


def test_mteb_finds_the_same_spearman(bert_folder, pairs):
    task = _local_task(pairs)
    import mteb
    from mteb.models import EncoderProtocol

    encoder = SentenceEncoder.load(bert_folder)
    model = MtebEncoder(encoder)
    assert isinstance(model, EncoderProtocol)
    result = mteb.evaluate(model, [task], cache=None)
    (scores,) = result.task_results[0].scores["test"]
    (score,) = evaluate(encoder, [Task("local", "test", {"test": pairs})])
    assert scores["main_score"] == pytest.approx(score.figures["all"], abs=1e-5)
    assert scores["spearman"] == pytest.approx(score.figures["all"], abs=1e-5)
    assert result.model_name == "jaxvec/model"


def test_a_calibration_is_another_revision(bert_folder, texts):
    pytest.importorskip("mteb")
    encoder = SentenceEncoder.load(bert_folder)
    vectors = encoder.encode(texts)
    calibrated = [
        encoder.with_calibration(whitening(Moments.of(part), 4)) for part in (vectors[:99], vectors)
    ]
    revisions = {MtebEncoder(each).mteb_model_meta.revision for each in (encoder, *calibrated)}
    assert len(revisions) == 3
