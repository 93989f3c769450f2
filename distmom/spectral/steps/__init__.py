"""Steps that programs share: bases, moments in them, whitening and decomposition, and recovery in all features."""
