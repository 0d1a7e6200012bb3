import numpy as np
from sklearn import config_context
from sklearn.model_selection import GridSearchCV, GroupKFold, cross_validate
from sklearn.pipeline import make_pipeline
from sklearn.preprocessing import StandardScaler
from sklearn.utils.estimator_checks import parametrize_with_checks

from bagwise.estimator import ProportionClassifier
from bagwise.tables import read_proportions


@parametrize_with_checks(
    [ProportionClassifier(network="linear", epochs=10, learning_rate=0.1, batch_size=64, device="cpu", random_state=0)]
)
def test_scikit_learn(estimator, check):
    check(estimator)


class TestInsideScikitLearn:
    def test_cross_validation_slices_bags_but_not_proportions(self, fast):
        rng = np.random.default_rng(0)
        X = rng.normal(size=(80, 2))
        y = (X[:, 0] > 0).astype(int)
        # as many bags as rows: what scikit-learn would slice, were it a list
        table = read_proportions({row: np.eye(2)[label] for row, label in enumerate(y)})
        params = {"bags": np.arange(80), "proportions": table}
        model = ProportionClassifier(**fast).set_params(epochs=50)
        scores = cross_validate(model, X, y, cv=3, params=params, error_score="raise")
        assert scores["test_score"].min() > 0.9

    def test_metadata_routing_through_a_search_over_a_pipeline(self, wards, classifier):
        X, _, bags, counts = wards
        with config_context(enable_metadata_routing=True):
            request = {"bags": True, "proportions": True}
            model = classifier(epochs=3).set_fit_request(**request).set_score_request(**request)
            pipeline = make_pipeline(StandardScaler(), model)
            search = GridSearchCV(
                pipeline,
                {"proportionclassifier__learning_rate": [1e-6, 0.1]},
                cv=GroupKFold(3),
                error_score="raise",
            )
            search.fit(X, groups=bags, bags=bags, proportions=read_proportions(counts))
        assert search.best_params_ == {"proportionclassifier__learning_rate": 0.1}
