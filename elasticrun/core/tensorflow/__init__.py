"""Tasks of a TensorFlow cluster: who restarts alone, how many there are, where copies go."""
