"""Which replicas of a job a platform should run: decided from what is wished and what is seen."""
