"""What only TensorFlow programs need; the one part of the package that imports tensorflow."""
