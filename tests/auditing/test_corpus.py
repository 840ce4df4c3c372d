"""Planted faults of the corpus are found by kind and column, and clean tables have no high finding."""

import pytest
from auditing.corpus import clean_tables, faults, striking_tables

import fieldwise
from fieldwise.auditing.added import columns_that_add_most
from fieldwise.auditing.columns import columns_alone
from fieldwise.auditing.drift import columns_that_tell_the_part
from fieldwise.auditing.future import changed_copies, knows_later_labels, later_times
from fieldwise.auditing.labels import contradicting_labels, groups_of_one_class, smallest_difference
from fieldwise.auditing.negatives import context_of_drawn_negatives
from fieldwise.auditing.own_labels import own_labels
from fieldwise.auditing.prepared_elsewhere import learned_on_all_rows
from fieldwise.auditing.purity import copies_of_label, pure_values
from fieldwise.auditing.split_rows import equal_rows, groups_on_both_sides, identity_alone
from fieldwise.auditing.split_time import split_against_time
from fieldwise.auditing.table import of_table

DETECTORS = {
    "predicts-alone": columns_alone,
    "absence": columns_alone,
    "precision": columns_alone,
    "length": columns_alone,
    "row-order": columns_alone,
    "pure-values": pure_values,
    "adds-most": columns_that_add_most,
    "own-label": own_labels,
    "later-labels": knows_later_labels,
    "later-time": later_times,
    "equal-rows": equal_rows,
    "near-equal-rows": equal_rows,
    "identity": identity_alone,
    "split-against-time": split_against_time,
    "learned-on-all-rows": learned_on_all_rows,
    "tells-the-part": columns_that_tell_the_part,
    "drawn-negatives": context_of_drawn_negatives,
    "groups-apart": groups_on_both_sides,
    "changed-copies": changed_copies,
    "contradictions": contradicting_labels,
    "one-class-groups": groups_of_one_class,
    "underpowered": smallest_difference,
    "equals-label": copies_of_label,
}


def label_of(frame):
    return "liked" if "liked" in frame.columns else "clicked"


def is_named(fault, findings):
    return any(f.kind in fault.kinds and fault.column in (None, f.column) for f in findings)


def found_by_detectors(fault):
    table = of_table(fault.frame, label_of(fault.frame), (), fault.split, seed=0)
    findings = []
    for detector in {DETECTORS[kind] for kind in fault.kinds}:
        findings += detector(table)
    return findings


def test_one_fault_of_each_kind_is_found(subtests):
    planted = {fault.name: fault for fault in faults()}
    assert len(planted) == 56
    assert sum(fault.is_strong for fault in planted.values()) == 29
    for name in (
        "mean of the user's labels",
        "mean of the user's other labels",
        "smoothed mean",
        "mean up to and with the row",
        "shipped after the order",
        "copied test rows",
        "nearly copied",
        "scaled over all rows",
        "filled by the mean of all rows",
        "other scale in test",
        "context of a few negatives",
        "some rows of test users in training",
        "some later changes",
        "some contradicting labels",
        "copies but for noise",
        "most users of one label",
        "400 test rows",
        "vocabulary of all rows",
        "a fifth of an amount",
    ):
        with subtests.test(name):
            assert is_named(planted[name], found_by_detectors(planted[name]))


@pytest.mark.slow
@pytest.mark.parametrize("seed", [1, 2])
def test_faults_of_other_seeds_are_found_by_the_whole_audit(seed):
    missed = {True: [], False: []}
    for fault in faults(seed):
        report = fieldwise.audit(fault.frame, label_of(fault.frame), split=fault.split)
        if not is_named(fault, report.findings):
            missed[fault.is_strong].append(fault.name)
    print(f"seed {seed}: {missed}")
    strong = sum(fault.is_strong for fault in faults(seed))
    assert missed[True] == []
    assert len(missed[False]) <= 0.2 * (56 - strong), missed


@pytest.mark.slow
def test_clean_tables_have_no_finding_to_look_at(subtests):
    tables = clean_tables()
    assert len(tables) == 8
    for name, frame, split in tables:
        with subtests.test(name):
            report = fieldwise.audit(frame, label_of(frame), split=split)
            assert report.failing("medium") == []


@pytest.mark.slow
def test_striking_tables_have_no_high_finding(subtests):
    for name, frame, split in striking_tables():
        with subtests.test(name):
            assert fieldwise.audit(frame, "liked", split=split).failing("high") == []
