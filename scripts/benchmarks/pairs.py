"""Tests that come with torch, and those of this project that check the same on two ranks.

Left out are originals that do not run on gloo without a GPU, and those of barriers, which sleep.
"""

from __future__ import annotations

#: A method of torch's ``DistributedTest._DistTestBase`` -> a test in tests/testing/test_collectives.py.
PAIRS = {
    "test_all_reduce_sum": "test_all_reduce[SUM-3]",
    "test_all_reduce_product": "test_all_reduce[PRODUCT-2]",
    "test_all_reduce_min": "test_all_reduce[MIN-1]",
    "test_all_reduce_max": "test_all_reduce[MAX-2]",
    "test_all_reduce_sum_async": "test_all_reduce_that_is_waited_for",
    "test_all_reduce_sum_complex": "test_all_reduce_of_a_type[complex64]",
    "test_all_reduce_full_group_sum": "test_all_reduce_in_a_group_of_all",
    "test_sparse_all_reduce_sum": "test_all_reduce_of_sparse_tensors",
    "test_broadcast": "test_broadcast[0]",
    "test_reduce_sum": "test_reduce_to_one[SUM-3]",
    "test_reduce_product": "test_reduce_to_one[PRODUCT-2]",
    "test_reduce_min": "test_reduce_to_one[MIN-1]",
    "test_reduce_max": "test_reduce_to_one[MAX-2]",
    "test_all_gather": "test_all_gather",
    "test_gather": "test_gather",
    "test_scatter": "test_scatter",
    "test_send_recv": "test_send_and_receive",
    "test_send_recv_with_tag": "test_receive_by_tag",
    "test_send_recv_any_source": "test_receive_from_whoever_sends",
    "test_isend": "test_send_that_is_waited_for",
    "test_batch_isend_irecv_gloo": "test_send_and_receive_side_by_side",
    "test_scatter_object_list": "test_objects_of_any_kind",
    "test_DistributedDataParallelCPU": "test_gradients_are_averaged",
}
