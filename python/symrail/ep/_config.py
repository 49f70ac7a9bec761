"""The size of blocks, and of buffers for them."""

from __future__ import annotations

from .. import _symrail


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
        """Bytes of each rank's heap for tokens of `hidden_bytes` bytes. Any number of tokens passes through them."""
        return _symrail.ep_high_throughput_bytes(num_ranks, self.num_max_nvl_chunked_recv_tokens, hidden_bytes)

    def get_rdma_buffer_size_hint(self, hidden_bytes: int, num_ranks: int) -> int:
        """0: the same buffers serve ranks that are not mapped."""
        return 0
