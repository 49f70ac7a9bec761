//! The graph that a stream is capturing, and its order among other work.

use std::ffi::c_uint;
use std::ptr::{null, null_mut};

use cudarc::driver::sys::{self, CUgraph, CUgraphNode};

use crate::driver::Gpu;
use crate::error::{CudaError, Result, cuda};
use crate::event::Event;
use crate::stream::Stream;

/// A stream's capture, as far as it has come.
pub(crate) struct Capture {
    gpu: i32,
    graph: CUgraph,
    /// Its number, which no other capture of this process has had or will have.
    pub id: u64,
    /// The nodes that the stream's next work follows.
    pub nodes: Vec<Node>,
}

/// A node of a graph that is being captured.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
#[repr(transparent)]
pub(crate) struct Node(CUgraphNode);

// SAFETY: a handle, which the driver accepts on any thread.
unsafe impl Send for Node {}

impl Capture {
    /// That of a stream which is capturing.
    ///
    /// # Errors
    /// The driver's error, or it is older than CUDA 12.3, which began to tell a graph's edges.
    pub fn of(stream: &Stream) -> Result<Capture> {
        let gpu = stream.gpu().ordinal();
        if Gpu::driver_version() < 12_030 {
            let what = "has a driver that does not order graphs (cuStreamGetCaptureInfo_v3)";
            return Err(CudaError::Lacks { gpu, what, remedy: "update the driver to CUDA 12.3 or newer" });
        }
        let mut status = sys::CUstreamCaptureStatus::CU_STREAM_CAPTURE_STATUS_NONE;
        let (mut id, mut graph, mut nodes, mut count) = (0, null_mut(), null::<CUgraphNode>(), 0);
        // SAFETY: a live stream; the driver writes one value to each place.
        unsafe {
            let info = (&raw mut id, &raw mut graph, &raw mut nodes);
            cuda!(
                gpu,
                cuStreamGetCaptureInfo_v3(
                    stream.raw(),
                    &raw mut status,
                    info.0,
                    info.1,
                    info.2,
                    null_mut(),
                    &raw mut count
                )
            )
        }?;
        let place = |i| {
            // SAFETY: the driver keeps so many nodes there until the stream's next call.
            Node(unsafe { *nodes.add(i) })
        };
        Ok(Capture { gpu, graph, id, nodes: (0..count).map(place).collect() })
    }

    /// Adds a node that records an event behind the nodes so far. No captured work follows it, so it delays none.
    ///
    /// # Errors
    /// The driver's error.
    pub fn record(&self, event: &Event) -> Result<Node> {
        let mut node = null_mut();
        let nodes = self.nodes.as_ptr().cast::<CUgraphNode>();
        // SAFETY: nodes of this graph, which is being captured; a live event; the driver writes one handle.
        unsafe {
            cuda!(self.gpu, cuGraphAddEventRecordNode(&raw mut node, self.graph, nodes, self.nodes.len(), event.raw()))
        }?;
        Ok(Node(node))
    }

    /// Makes a node follow the nodes so far in place of `before`, which these follow or are.
    ///
    /// # Errors
    /// The driver's error.
    pub fn move_behind(&self, node: Node, before: &[Node]) -> Result<()> {
        let (added, removed) = (missing_in(before, &self.nodes), missing_in(&self.nodes, before));
        let to = vec![node; added.len().max(removed.len())];
        let raw = |nodes: &[Node]| nodes.as_ptr().cast::<CUgraphNode>();
        // The driver refuses an edge that is there already. A launch of no kernel adds no node.
        if !added.is_empty() {
            // SAFETY: nodes of this graph, which is being captured; edges without data.
            unsafe {
                cuda!(self.gpu, cuGraphAddDependencies_v2(self.graph, raw(&added), raw(&to), null(), added.len()))
            }?;
        }
        if removed.is_empty() {
            return Ok(());
        }
        // SAFETY: as above; these edges were added when `before` were the nodes so far.
        unsafe {
            cuda!(self.gpu, cuGraphRemoveDependencies_v2(self.graph, raw(&removed), raw(&to), null(), removed.len()))
        }
    }

    /// Makes the stream's next work follow further nodes of the graph.
    ///
    /// # Errors
    /// The driver's error.
    pub fn follow(&self, stream: &Stream, nodes: &[Node]) -> Result<()> {
        let mut more = missing_in(&self.nodes, nodes);
        if more.is_empty() {
            return Ok(());
        }
        let add = sys::CUstreamUpdateCaptureDependencies_flags::CU_STREAM_ADD_CAPTURE_DEPENDENCIES as c_uint;
        let places = more.as_mut_ptr().cast::<CUgraphNode>();
        // SAFETY: nodes of the graph that the stream is capturing; edges without data.
        unsafe { cuda!(self.gpu, cuStreamUpdateCaptureDependencies_v2(stream.raw(), places, null(), more.len(), add)) }
    }
}

/// The nodes that are not among `known`.
fn missing_in(known: &[Node], nodes: &[Node]) -> Vec<Node> {
    nodes.iter().copied().filter(|node| !known.contains(node)).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn edges_that_stay_are_neither_added_nor_removed() {
        let [a, b, c] = [1, 2, 3].map(|at| Node(std::ptr::without_provenance_mut(at)));
        assert_eq!(missing_in(&[a, b], &[b, c]), [c]);
        assert_eq!(missing_in(&[b, c], &[a, b]), [a]);
        assert_eq!(missing_in(&[a, b], &[b, a]), [], "a launch of nothing");
    }
}
