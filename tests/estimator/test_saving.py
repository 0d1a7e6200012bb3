import json
import pickle

import numpy as np
import pytest
from sklearn.base import clone
from torch import nn

from bagwise.estimator import ProportionClassifier
from bagwise.functional.noise import ProportionNoise
from bagwise.model_folder import ModelFolderError
from bagwise.networks import mlp


class TestSaving:
    def test_a_loaded_model_is_the_same(self, people, wards, tmp_path, classifier):
        model = classifier().fit(people, bags="ward", proportions=wards[3])
        model.save(tmp_path / "model")
        loaded = ProportionClassifier.load(tmp_path / "model")
        np.testing.assert_array_equal(loaded.predict_proba(people), model.predict_proba(people))
        np.testing.assert_array_equal(loaded.predict(people), model.predict(people))
        assert loaded.get_params() == model.get_params()
        assert loaded.history_ == model.history_
        assert loaded.best_epoch_ == model.best_epoch_
        assert list(loaded.bag_report_) == list(model.bag_report_)
        for name, column in model.bag_report_.items():
            np.testing.assert_array_equal(loaded.bag_report_[name], column, strict=True)
        assert str(loaded.preprocessing_) == str(model.preprocessing_)
        assert loaded.feature_names_in_.tolist() == model.feature_names_in_.tolist()

    @pytest.mark.parametrize("labels", [[0, 1], [False, True], [1.0, 2.0], ["a", "b"]])
    def test_labels_of_every_type(self, labels, tmp_path, classifier):
        X = np.arange(20.0)[:, None]
        model = classifier(epochs=1, random_state=np.int64(3)).fit(X, np.array(labels * 10))
        model.save(tmp_path)
        loaded = ProportionClassifier.load(tmp_path)
        assert loaded.classes_.dtype == model.classes_.dtype
        np.testing.assert_array_equal(loaded.predict(X), model.predict(X))

    def test_parameters_of_numpy_types(self, wards, tmp_path, classifier):
        X, _, bags, counts = wards
        model = classifier(method="llp-mm", method_parameters={"order": np.int64(2)}, epochs=np.int64(1))
        model.fit(X, bags=bags, proportions=counts).save(tmp_path)
        loaded = ProportionClassifier.load(tmp_path)
        assert loaded.get_params() == model.get_params()
        assert type(loaded.method_parameters["order"]) is int

    def test_noise_of_numpy_types(self, wards, tmp_path, classifier):
        X, _, bags, counts = wards
        model = classifier(proportion_noise=ProportionNoise("laplace", np.float32(0.5)), epochs=1)
        model.fit(X, bags=bags, proportions=counts).save(tmp_path)
        assert ProportionClassifier.load(tmp_path).proportion_noise == ProportionNoise("laplace", 0.5)

    def test_a_network_of_ones_own_is_named_and_asked_for(self, wards, tmp_path, classifier):
        X, _, bags, counts = wards
        model = classifier(network=mlp, epochs=1).fit(X, bags=bags, proportions=counts)
        model.save(tmp_path)
        with pytest.raises(ValueError, match=r"of its own, bagwise\.networks:mlp\. Import it and pass it as network="):
            ProportionClassifier.load(tmp_path)
        loaded = ProportionClassifier.load(tmp_path, network=mlp)
        np.testing.assert_array_equal(loaded.predict_proba(X), model.predict_proba(X))

    def test_a_network_that_cannot_be_named_is_not_saved(self, wards, tmp_path, classifier):
        X, _, bags, counts = wards
        model = classifier(network=lambda i, k: nn.Linear(i, k), epochs=1).fit(X, bags=bags, proportions=counts)
        with pytest.raises(ValueError, match="not importable by name"):
            model.save(tmp_path / "model")
        assert not (tmp_path / "model").exists()

    def test_weights_of_another_network_are_refused(self, fitted, tmp_path):
        model = clone(fitted).set_params(network=mlp, epochs=1).fit(np.eye(4), [0, 1, 0, 1])
        model.save(tmp_path)
        import bagwise.networks as networks

        real = networks.mlp
        with pytest.MonkeyPatch.context() as patch:
            changed = lambda i, k: real(i, k, hidden=(3,))  # noqa: E731
            changed.__module__, changed.__qualname__ = "bagwise.networks", "mlp"
            patch.setattr(networks, "mlp", changed)
            with pytest.raises(ModelFolderError, match="do not fit the network"):
                ProportionClassifier.load(tmp_path, network=changed)

    def test_pickle_still_works_for_those_who_trust_it(self, wards, fitted):
        loaded = pickle.loads(pickle.dumps(fitted))
        np.testing.assert_array_equal(loaded.predict_proba(wards[0]), fitted.predict_proba(wards[0]))


def test_onnx_gives_the_same_probabilities(tmp_path, classifier):
    pytest.importorskip("onnxscript")
    runtime = pytest.importorskip("onnxruntime")
    rng = np.random.default_rng(0)
    X = rng.normal(size=(200, 4)) * [1, 1e3, 1, 1] + [0, 1e9, 0, 0]
    X[:, 3] = 7  # constant
    y = (X[:, 0] > 0).astype(int)
    X[rng.random(200) < 0.2, 1] = np.nan
    model = classifier(network="mlp", epochs=3, learning_rate=0.01).fit(X, y)
    model.export_onnx(tmp_path / "model.onnx")
    session = runtime.InferenceSession(tmp_path / "model.onnx")
    for rows in (1, 7, 200):
        (got,) = session.run(["probabilities"], {"x": X[:rows]})
        np.testing.assert_allclose(got, model.predict_proba(X[:rows]), atol=1e-5)
    extreme = np.array([[1e300, 1e9, 0, 7], [-1.7e308, np.nan, 0, 7], [0, -1e300, 0, 7], [0, 1e9, 1e13, 1e300]])
    (got,) = session.run(["probabilities"], {"x": extreme})
    assert np.isfinite(got).all()
    np.testing.assert_allclose(got, model.predict_proba(extreme), atol=1e-5)


def test_onnx_is_for_numbers(people, wards, tmp_path, classifier):
    model = classifier(epochs=1).fit(people, bags="ward", proportions=wards[3])
    with pytest.raises(ValueError, match="only columns of numbers and booleans can be exported, but 'side' holds text"):
        model.export_onnx(tmp_path / "model.onnx")


def test_the_saved_model_is_readable(fitted, tmp_path):
    fitted.save(tmp_path)
    model = json.loads((tmp_path / "model.json").read_text())["model"]
    assert model["classes"] == ["no", "yes"]
    assert model["preprocessing"]["numbers"]["names"] == ["x0", "x1"]
