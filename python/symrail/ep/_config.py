"""The size of blocks, and of buffers for them."""

from __future__ import annotations

from .. import _symrail
from .._gpu import local_size
from . import _groups

# The tokens of a rank for which a Buffer takes memory on a GPU.
MOST_TOKENS = 4096
# The top-k slots of a token, at most, in sizes for GPUs.
_TOP_K = 16
# The GPUs of a host that reach each other, where no launcher has set their number.
_GPUS_OF_HOST = 8


def bytes_on_gpus(ranks: int, most_tokens: int, row_bytes: int, top_k: int = _TOP_K) -> int:
    """Bytes of each rank's heap for tokens of so many bytes on GPUs."""
    each = min(ranks, local_size() or _GPUS_OF_HOST)
    k = min(max(top_k, ranks, _TOP_K), 32)
    return _symrail.ep_device_high_throughput_bytes(ranks, each, most_tokens, row_bytes, k)


class Config:
    """The numbers of a high-throughput call. On a host only the number of tokens for a rank in one block matters:
    `num_max_nvl_chunked_recv_tokens`. The others are for GPUs."""

    def __init__(
        self,
        num_sms: int = 20,
        num_max_nvl_chunked_send_tokens: int = 6,
        num_max_nvl_chunked_recv_tokens: int = 256,
        num_max_rdma_chunked_send_tokens: int = 6,
        num_max_rdma_chunked_recv_tokens: int = 256,
    ) -> None:
        self.num_sms = num_sms
        self.num_max_nvl_chunked_send_tokens = num_max_nvl_chunked_send_tokens
        self.num_max_nvl_chunked_recv_tokens = num_max_nvl_chunked_recv_tokens
        self.num_max_rdma_chunked_send_tokens = num_max_rdma_chunked_send_tokens
        self.num_max_rdma_chunked_recv_tokens = num_max_rdma_chunked_recv_tokens

    def get_nvl_buffer_size_hint(self, hidden_bytes: int, num_ranks: int) -> int:
        """Bytes of each rank's heap for tokens of `hidden_bytes` bytes. Any number of tokens passes through them; on a GPU
        they are for 4,096 tokens of each rank (`num_max_tokens_per_rank`), on hosts with as many GPUs as the launcher has
        set, or 8."""
        on_host = _symrail.ep_high_throughput_bytes(num_ranks, self.num_max_nvl_chunked_recv_tokens, hidden_bytes)
        return max(on_host, bytes_on_gpus(num_ranks, MOST_TOKENS, hidden_bytes)) if _groups.has_heap_for_gpu() else on_host

    def get_rdma_buffer_size_hint(self, hidden_bytes: int, num_ranks: int) -> int:
        """0: the same buffers serve ranks that are not mapped."""
        return 0
