"""The parts that all models share: estimators, programs and their plans, steps of fits, and stored states."""
