"""The names of the classes of classifiers."""

WEATHER = {0: "sun", 1: "rain", 2: "storm"}


def label_names(names):
    """The arguments of a configuration that name the classes."""
    return {"id2label": names, "label2id": {name: label for label, name in names.items()}}
