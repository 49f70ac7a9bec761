//! A plan in its file's form: the JSON that MSCCL++'s language writes, field by field.

use std::path::Path;

use serde::{Deserialize, Serialize};

use crate::error::{Error, Result};
use crate::number::ReduceOp;

/// A plan for all ranks.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct Document {
    /// Its name.
    pub name: String,
    /// Its collective: `allreduce`, `allgather`, ….
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
    /// Threads of a block on a GPU.
    #[serde(default = "default_threads")]
    pub num_threads_per_block: u32,
    /// Calls alternate between two halves of the scratch buffer.
    #[serde(default)]
    pub use_double_scratch_buffer: bool,
    /// Chunks begin at multiples of so many bytes.
    #[serde(default = "default_alignment")]
    pub buffer_alignment: u64,
    /// The smallest message for which it is intended, in bytes.
    #[serde(default)]
    pub min_message_size: u64,
    /// The largest message for which it is intended, in bytes.
    #[serde(default = "default_max")]
    pub max_message_size: u64,
}

impl Document {
    /// Reads a plan's file.
    ///
    /// # Errors
    /// The file cannot be read, or is malformed: the error names the file and the field.
    pub fn load(path: impl AsRef<Path>) -> Result<Document> {
        let path = path.as_ref();
        let shown = path.display().to_string();
        match std::fs::read_to_string(path) {
            Ok(text) => Document::from_json(&text, &shown),
            Err(source) => Err(Error::Read { path: shown, source }),
        }
    }

    /// Reads a plan in JSON, which is from `origin`.
    ///
    /// # Errors
    /// As for [`Document::load`].
    pub fn from_json(text: &str, origin: &str) -> Result<Document> {
        let mut json = serde_json::Deserializer::from_str(text);
        let refuse = |field: String, source| Error::Syntax { plan: origin.into(), field, source };
        let document = serde_path_to_error::deserialize(&mut json).map_err(|error| {
            // The path of the whole document is a dot, and an unknown field's is a question mark.
            let path = error.path().to_string();
            let path = path.trim_end_matches(['.', '?']);
            let field = if path.is_empty() { String::new() } else { format!(", field {path}") };
            refuse(field, error.into_inner())
        })?;
        json.end().map_err(|source| refuse(String::new(), source))?;
        Ok(document)
    }
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

/// The protocol of data.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
pub enum Protocol {
    /// Plain data.
    Simple,
    /// Packets with flags in the data.
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
    /// Buffers of other ranks that it accesses.
    #[serde(default)]
    pub remote_buffers: Vec<RemoteBuffer>,
    /// Semaphores between its blocks.
    #[serde(default)]
    pub semaphores: Vec<Semaphore>,
}

/// How a channel moves data.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, PartialOrd, Ord, Serialize, Deserialize, strum::Display)]
#[serde(rename_all = "lowercase")]
#[strum(serialize_all = "lowercase")]
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
    /// For a switch channel: the buffer behind it.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub buffer_type: Option<BufferType>,
    /// For a switch channel: its ranks.
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
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, PartialOrd, Ord, Serialize, Deserialize, strum::Display)]
#[strum(serialize_all = "lowercase")]
pub enum BufferType {
    /// The input.
    #[serde(rename = "i")]
    Input,
    /// The output.
    #[serde(rename = "o")]
    Output,
    /// The scratch buffer.
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
    /// The channels that give access to it.
    pub access_channel_types: Vec<ChannelType>,
}

/// A semaphore between blocks of a rank.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct Semaphore {
    /// Its initial value.
    pub init_value: u64,
}

/// A block of a rank.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct ThreadBlock {
    /// Its number.
    pub id: usize,
    /// Its operations, in order.
    pub ops: Vec<Op>,
    /// Its channels: indexes into the rank's channels of that type.
    #[serde(default)]
    pub channels: Vec<ChannelRefs>,
    /// Its remote buffers: indexes into the rank's list.
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
    /// The type of the channels that give access.
    pub access_channel_type: ChannelType,
    /// Their indexes.
    pub remote_buffer_ids: Vec<usize>,
}

/// An operation. Its fields depend on its name.
#[derive(Debug, Clone, PartialEq, Default, Serialize, Deserialize)]
pub struct Op {
    /// Its name.
    pub name: String,
    /// The sources.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub src_buff: Vec<Chunks>,
    /// The destinations.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub dst_buff: Vec<Chunks>,
    /// Indexes into the block's channels.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub channel_ids: Vec<usize>,
    /// The type of the channels, and of the remote buffers' access.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub channel_type: Option<ChannelType>,
    /// This block's share of the data, if several blocks share an operation.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub tbg_info: Option<Group>,
    /// The barrier of the rank.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub barrier_id: Option<usize>,
    /// The number of blocks at the barrier.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub num_threadblocks: Option<usize>,
    /// The semaphores of the rank.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub semaphore_ids: Vec<usize>,
    /// The iterations of a pipeline.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub iter_context: Option<Iterations>,
    /// A pipeline's operations.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub ops: Vec<Op>,
    /// The reduction; by default the call's.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub reduce_op: Option<ReduceOp>,
}

/// Chunks of a buffer.
#[derive(Debug, Clone, PartialEq, Default, Serialize, Deserialize)]
pub struct Chunks {
    /// In this rank's buffer of this type, …
    #[serde(rename = "type", default, skip_serializing_if = "Option::is_none")]
    pub buffer: Option<BufferType>,
    /// … or in the block's remote buffer with this index, …
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub buffer_id: Option<usize>,
    /// … or in the buffers behind a switch channel.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub switch_channel_id: Option<usize>,
    /// The first chunk.
    pub index: u64,
    /// The number of chunks.
    pub size: u64,
}

/// A block's number in a group that shares an operation.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
pub struct Group {
    /// Its number in the group.
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
