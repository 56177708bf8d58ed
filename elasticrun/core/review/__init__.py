"""A job in review: the values of its report."""
