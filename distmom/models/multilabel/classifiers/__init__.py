"""Linear classifiers of labels, by dual coordinate descent: of all labels, of frequent ones, and of the gate."""
