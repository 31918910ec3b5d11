#!/usr/bin/env python3
"""Counts the entities of recorded tags with seqeval, and compares with the record.

    python check_tags.py crates/tealight-train/tests/golden/tags.json
"""

import json
import sys
import warnings

from seqeval.metrics import f1_score, precision_score, recall_score
from seqeval.metrics.sequence_labeling import precision_recall_fscore_support as lenient
from seqeval.metrics.v1 import precision_recall_fscore_support as strict
from seqeval.scheme import BILOU, IOB1, IOB2, IOBES, IOE1, IOE2

warnings.simplefilter("ignore")
SCHEMES = {scheme.__name__: scheme for scheme in (BILOU, IOB1, IOB2, IOBES, IOE1, IOE2)}
TOLERANCE = 1e-12


def scores(case, scheme=None):
    """Precision, recall and F1 of all entities, and the number of given entities of all types."""
    options = {"mode": "strict", "scheme": scheme} if scheme else {}
    sentences = case["true"], case["predicted"]
    of_types = strict(*sentences, scheme=scheme) if scheme else lenient(*sentences)
    means = [score(*sentences, **options) for score in (precision_score, recall_score, f1_score)]
    return *means, int(of_types[3].sum())


def is_as_recorded(record, found):
    """Whether scores and counts are those of the record."""
    *means, n_given = found
    recorded = [record[name] for name in ("precision", "recall", "f1")]
    differences = [abs(a - b) for a, b in zip(means, recorded)]
    return max(differences) < TOLERANCE and n_given == sum(counts["true"] for counts in record["counts"].values())


def main():
    """Exits with 1 if a case differs."""
    with open(sys.argv[1]) as file:
        cases = json.load(file)["sequences"]
    n_checked, wrong = 0, []
    for case in cases:
        records = {"default": case["default"]} | case["strict"]
        for name, record in records.items():
            try:
                is_right = is_as_recorded(record, scores(case, SCHEMES.get(name)))
            except ValueError:
                is_right = "refuses" in record
            n_checked += 1
            if not is_right:
                wrong.append(f"{case['name']}, {name}")
    print(f"{n_checked} checked, {len(wrong)} differ", *wrong, sep="\n")
    sys.exit(bool(wrong))


if __name__ == "__main__":
    main()
