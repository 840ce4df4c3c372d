"""Groups of one class alone: group AUC has no value, and nothing else suffers."""

from fieldwise.evaluation import binary_metrics
from fieldwise.evaluation.ranking import mixed_groups


def test_counts_groups_with_both_classes():
    assert mixed_groups([0, 1, 1, 1, 0], ["a", "a", "b", "b", "c"]) == 1
    assert mixed_groups([0, 1], [1, 2]) == 0
    assert mixed_groups([], []) == 0


def test_without_a_mixed_group_the_other_metrics_stand():
    plain = binary_metrics([0, 1, 1], [-1.0, 0.5, 2.0])
    grouped = binary_metrics([0, 1, 1], [-1.0, 0.5, 2.0], group=[1, 2, 3])
    assert grouped == {**plain, "gauc_groups": 0}
