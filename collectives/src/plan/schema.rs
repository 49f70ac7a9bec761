//! A plan as its file has it: the JSON that MSCCL++'s language writes, field by field.

use serde::{Deserialize, Serialize};

use crate::number::ReduceOp;

/// A plan for all ranks.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct Document {
    /// What people call it.
    pub name: String,
    /// What it does: `allreduce`, `allgather`, ….
    pub collective: String,
    /// `Simple`, or `LL`: data travels in packets.
    pub protocol: Protocol,
    /// Input and output are the same memory.
    pub inplace: bool,
    /// Scratch chunks may be smaller than those of input and output.
    #[serde(default)]
    pub reuse_resources: bool,
    /// One entry for each rank.
    pub gpus: Vec<Gpu>,
    /// Threads that a block has on a GPU.
    #[serde(default = "default_threads")]
    pub num_threads_per_block: u32,
    /// Calls use two halves of the scratch buffer in turn.
    #[serde(default)]
    pub use_double_scratch_buffer: bool,
    /// Chunks begin at multiples of so many bytes.
    #[serde(default = "default_alignment")]
    pub buffer_alignment: u64,
    /// The smallest message it is meant for, in bytes.
    #[serde(default)]
    pub min_message_size: u64,
    /// The largest message it is meant for, in bytes.
    #[serde(default = "default_max")]
    pub max_message_size: u64,
}

fn default_threads() -> u32 {
    1024
}

fn default_alignment() -> u64 {
    16
}

fn default_max() -> u64 {
    u64::MAX
}

/// How data travels.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
pub enum Protocol {
    /// As it is.
    Simple,
    /// In packets that have flags inside.
    LL,
}

/// A rank.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct Gpu {
    /// Its number.
    pub id: usize,
    /// Chunks of its input.
    pub input_chunks: u64,
    /// Chunks of its output.
    pub output_chunks: u64,
    /// Chunks of its scratch buffer.
    pub scratch_chunks: u64,
    /// Its blocks.
    pub threadblocks: Vec<ThreadBlock>,
    /// Its channels, by type.
    #[serde(default)]
    pub channels: Vec<Channels>,
    /// Buffers of other ranks that it reaches.
    #[serde(default)]
    pub remote_buffers: Vec<RemoteBuffer>,
    /// Semaphores between its blocks.
    #[serde(default)]
    pub semaphores: Vec<Semaphore>,
}

/// How a channel moves data.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, PartialOrd, Ord, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum ChannelType {
    /// Loads and stores.
    Memory,
    /// The proxy.
    Port,
    /// Multicast.
    Switch,
    /// None.
    None,
}

/// A rank's channels of one type.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct Channels {
    /// The type.
    pub channel_type: ChannelType,
    /// The rank at the other end of each.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub connected_to: Vec<usize>,
    /// Of a switch channel: the buffer behind it.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub buffer_type: Option<BufferType>,
    /// Of a switch channel: who is in it.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub rank_groups: Vec<RankGroup>,
}

/// Ranks of a switch channel.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct RankGroup {
    /// Chunks of the buffer.
    pub size: u64,
    /// The ranks.
    pub ranks: Vec<usize>,
}

/// A buffer of a call.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, PartialOrd, Ord, Serialize, Deserialize)]
pub enum BufferType {
    /// What is sent.
    #[serde(rename = "i")]
    Input,
    /// What is received.
    #[serde(rename = "o")]
    Output,
    /// What lies between.
    #[serde(rename = "s")]
    Scratch,
}

/// A buffer of another rank.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct RemoteBuffer {
    /// The rank.
    pub rank: usize,
    /// Its buffer.
    #[serde(rename = "type")]
    pub buffer: BufferType,
    /// Through which channels it is reached.
    pub access_channel_types: Vec<ChannelType>,
}

/// A semaphore between blocks of a rank.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct Semaphore {
    /// What it begins with.
    pub init_value: u64,
}

/// A block of a rank.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct ThreadBlock {
    /// Its number.
    pub id: usize,
    /// What it does, in order.
    pub ops: Vec<Op>,
    /// Its channels: indexes into the rank's of that type.
    #[serde(default)]
    pub channels: Vec<ChannelRefs>,
    /// Its remote buffers: indexes into the rank's.
    #[serde(default)]
    pub remote_buffer_refs: Vec<BufferRefs>,
}

/// Channels that a block uses.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct ChannelRefs {
    /// Their type.
    pub channel_type: ChannelType,
    /// Their indexes.
    pub channel_ids: Vec<usize>,
}

/// Remote buffers that a block uses.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct BufferRefs {
    /// Through which channels.
    pub access_channel_type: ChannelType,
    /// Their indexes.
    pub remote_buffer_ids: Vec<usize>,
}

/// An operation. Which fields there are depends on its name.
#[derive(Debug, Clone, PartialEq, Default, Serialize, Deserialize)]
pub struct Op {
    /// Its name.
    pub name: String,
    /// Where it reads.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub src_buff: Vec<Chunks>,
    /// Where it writes.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub dst_buff: Vec<Chunks>,
    /// Indexes into the block's channels.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub channel_ids: Vec<usize>,
    /// The type of the channels, and of the remote buffers' access.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub channel_type: Option<ChannelType>,
    /// Which part of the data is this block's, where several share an operation.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub tbg_info: Option<Group>,
    /// Which barrier of the rank.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub barrier_id: Option<usize>,
    /// How many blocks come to the barrier.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub num_threadblocks: Option<usize>,
    /// Which semaphores of the rank.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub semaphore_ids: Vec<usize>,
    /// How often a pipeline does its operations.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub iter_context: Option<Iterations>,
    /// A pipeline's operations.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub ops: Vec<Op>,
    /// How elements are reduced; without it, as the call says.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub reduce_op: Option<ReduceOp>,
}

/// Chunks of a buffer.
#[derive(Debug, Clone, PartialEq, Default, Serialize, Deserialize)]
pub struct Chunks {
    /// Of this rank's buffer of this type, …
    #[serde(rename = "type", default, skip_serializing_if = "Option::is_none")]
    pub buffer: Option<BufferType>,
    /// … or of the block's remote buffer with this index, …
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub buffer_id: Option<usize>,
    /// … or of the buffers behind a switch channel.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub switch_channel_id: Option<usize>,
    /// The first.
    pub index: u64,
    /// Their number.
    pub size: u64,
}

/// A block's place in a group that shares an operation.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
pub struct Group {
    /// Its number there.
    pub tb_id: u64,
    /// The group's size.
    pub tbg_size: u64,
}

/// A pipeline's iterations.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
pub struct Iterations {
    /// Bytes of an iteration.
    pub unit_size: u64,
    /// Chunks of all iterations together.
    pub num_chunks: u64,
}
