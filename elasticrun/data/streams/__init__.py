"""Streams: endless partitions of records, read by offsets that are saved with the model.

* ``source.py``: what a ``StreamDataset`` asks of a broker's client.
* ``kafka.py``, ``redis.py``: two clients. Their packages are imported when one is made.
* ``prefetch.py``: reads ahead of the loop.
* ``ranks.py``: who reads which partition, and from where.
* ``telling.py``: tells the broker what is durable.
* ``dataset.py``: the ``StreamDataset``; ``options.py``: its options.
"""
