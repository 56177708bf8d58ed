"""The adapter to Kubernetes: the custom resource ElasticJob, its operator, and the pods of its replicas."""
