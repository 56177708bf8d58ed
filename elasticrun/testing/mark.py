"""The mark of distributed tests: ``@pytest.mark.distributed``. Every session of pytest loads this."""

NAME = "distributed"
#: Of the ranks' process group, unless a mark names another one.
BACKEND = "gloo"
HELP = (
    f"{NAME}(nproc=2, nodes=1, backend='{BACKEND}', timeout=60, **options): run the test on every rank "
    "of a job; options are those of elasticrun.launch"
)
