import numpy as np
import pytest
import torch
from scipy import sparse

from bagwise.bags import BagLayout
from bagwise.bags.stored import StoredRows
from bagwise.model_selection import shared_values
from bagwise.model_selection.shared_values import shared_value_warnings
from bagwise.tables.preprocessing import fit_sparse
from bagwise.tables.sparse import SparseRows

rng = np.random.default_rng(0)
BAG_OF = rng.permutation(np.repeat(np.arange(60), 10))
OWN = rng.normal(size=600)
AVERAGE = rng.normal(size=60)[BAG_OF]
COUNTY = (BAG_OF // 20).astype(float)


def warn(columns, bag_of=BAG_OF, wrap=torch.from_numpy):
    """What is said of `{name: values}`; a name with a dash is that of several inputs of one column."""
    inputs = wrap(np.stack(list(columns.values()), axis=1).astype(np.float32))
    layout = BagLayout.from_index(torch.from_numpy(bag_of))
    return shared_value_warnings(inputs, layout, [name.partition("-")[0] for name in columns])


@pytest.mark.parametrize("rows_at_once", [1, 7, 2**22])
@pytest.mark.parametrize("wrap", [torch.from_numpy, lambda inputs: StoredRows(torch.from_numpy(inputs))])
def test_a_column_with_one_value_in_each_bag_is_named(wrap, rows_at_once, monkeypatch):
    monkeypatch.setattr(shared_values, "_VALUES_AT_ONCE", 2 * rows_at_once)
    (warning,) = warn({"own": OWN, "average": AVERAGE}, wrap=wrap)
    assert warning == (
        "column 'average' has one value in each bag, which few other bags have: the proportions cannot tell its effect "
        "from that of the rows in the bag. Consider leaving it out (--ignore average on the command line)."
    )


def test_several_columns_share_a_line():
    (warning,) = warn({"a": AVERAGE, "own": OWN, "b": BAG_OF})
    assert warning.startswith("columns 'a', 'b' have one value in each bag")
    assert "leaving them out (--ignore a --ignore b on the command line)" in warning
    assert "(--ignore 'mean age' on the command line)" in warn({"mean age": AVERAGE})[0]
    (many,) = warn({f"x{place}": AVERAGE for place in range(20)})
    assert "'x7' and 12 more have one value" in many


def test_one_instance_that_differs_is_enough():
    for place in (0, 299, 599):
        nearly = AVERAGE.copy()
        nearly[place] += 1e-3
        assert warn({"nearly": nearly}) == []


def test_a_coarse_column_is_one_to_keep():
    assert warn({"county": COUNTY}) == []


def test_all_inputs_of_a_column_count():
    ward = {f"ward-{number}": number == BAG_OF for number in range(60)}
    assert warn(ward)[0].startswith("column 'ward' has")
    assert warn({**ward, "ward-missing": OWN > 0}) == []
    county = {f"county-{number}": number == COUNTY for number in range(3)}
    assert warn(county) == []


def test_bags_of_one_and_sparse_matrices_are_passed_over():
    assert warn({"any": OWN}, bag_of=np.arange(600)) == []
    matrix = sparse.csr_matrix(AVERAGE[:, None])
    assert warn({"any": AVERAGE}, wrap=lambda _: SparseRows(matrix, fit_sparse(matrix).numbers)) == []
