"""Tasks of a TensorFlow cluster: which restart alone, how many there are, where copies go."""
