//! The staging rule: whether data goes straight from and to the user's buffers, or through the workspace.
//!
//! The rule is a pure function of the kind of the buffer and of the workspace, the path to the peer, and the operation.
//! The allocator reports the kind of memory (for a GPU the driver does, for the handle of the very allocation). It
//! never comes from a setting, since a setting holds what was wanted, not what was allocated.
//!
//! | peer is reached by | sending, straight from the input | receiving, straight into the output |
//! |---|---|---|
//! | itself, in another buffer | yes | yes |
//! | itself, in the same buffer | yes | no: it would overwrite what is still to be sent |
//! | loads and stores of one host | yes: this PE's CPU or GPU reads it | if peers have it mapped |
//! | NVLink between hosts | yes: this PE's GPU reads it | if it has a fabric handle |
//! | rails | if registered, contiguous and not overwritten | if registered and contiguous |
//!
//! Where the output cannot receive data directly, the workspace must. Over NVLink between hosts a workspace without a
//! fabric handle cannot, and data then goes over rails.

use symrail::kernels::cuda::Sharing;

/// The handle by which a GPU's allocation is exported to other processes.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Handle {
    /// No handle.
    None,
    /// A file descriptor, for processes of this host.
    Descriptor,
    /// A fabric handle, for processes of the same NVLink clique on any host.
    Fabric,
}

/// The kind of memory of a buffer.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Memory {
    /// Host memory of this process alone.
    Private,
    /// Host memory in the symmetric heap: mapped by peers of this host, registered with the NICs.
    Symmetric,
    /// Memory of a GPU. It is in the symmetric heap, and so registered with the NICs, or not.
    Device {
        /// How it is exported.
        handle: Handle,
        /// Whether it is in the symmetric heap.
        symmetric: bool,
    },
    /// Memory that a driver moves between host and GPU at will.
    Managed,
}

impl Memory {
    /// The kind of memory that a GPU reaches, from the driver's report on its allocation. `symmetric`: the memory is in
    /// the symmetric heap. `in_gpus`: that heap is in GPUs, not in host memory.
    #[must_use]
    pub fn of_gpu(sharing: &Sharing, symmetric: bool, in_gpus: bool) -> Memory {
        let handle = match sharing {
            Sharing { fabric: true, .. } => Handle::Fabric,
            Sharing { descriptor: true, .. } => Handle::Descriptor,
            _ => Handle::None,
        };
        match (symmetric, in_gpus) {
            _ if sharing.managed => Memory::Managed,
            (true, false) => Memory::Symmetric,
            _ => Memory::Device { handle, symmetric },
        }
    }
}

/// The path by which a PE reaches a peer.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Path {
    /// The peer is this PE.
    Own,
    /// By loads and stores on this host.
    Mapped,
    /// By loads and stores over NVLink, from host to host.
    NvLink,
    /// Over rails.
    Rails,
}

/// The use of the user's buffer.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Operation {
    /// Data leaves it.
    Send,
    /// Data arrives in it.
    Receive,
}

/// A block of data between a buffer and a peer.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Block {
    /// The use of the buffer.
    pub operation: Operation,
    /// Whether the block's elements are contiguous in the buffer, in the receiver's order, as they travel.
    pub contiguous: bool,
    /// Whether the operation overwrites its input.
    pub in_place: bool,
}

/// The result of the rule, with the reason.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Route {
    /// Straight from or to the user's buffer.
    Direct,
    /// Through the workspace.
    Staged(Reason),
    /// Through the workspace, and over rails although NVLink exists.
    StagedOverRails(Reason),
}

/// The reason why data goes through the workspace.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Reason {
    /// Arriving data would overwrite data that have not been sent.
    InPlace,
    /// The buffer is memory of this process alone, which no peer has mapped and no NIC has registered.
    NotSymmetric,
    /// The buffer's allocation has no handle by which a process of this host could map it.
    NoHandle,
    /// The buffer's allocation has no handle for other hosts of the clique.
    NoFabricHandle,
    /// Neither the buffer nor the workspace has a fabric handle.
    WorkspaceNotOnFabric,
    /// The driver may move the buffer's pages.
    Managed,
    /// The block's elements are not contiguous in the buffer, or in another order.
    NotContiguous,
    /// The mode of the plan is staged.
    Asked,
    /// Small blocks go through buffers of their own, without a signal before.
    Small,
}

impl std::fmt::Display for Route {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        let (how, reason) = match self {
            Route::Direct => return f.write_str("direct"),
            Route::Staged(reason) => ("staged", reason),
            Route::StagedOverRails(reason) => ("staged over rails", reason),
        };
        let why = match reason {
            Reason::InPlace => "the operation overwrites its input",
            Reason::NotSymmetric => "the buffer is not in the symmetric heap",
            Reason::NoHandle => "the buffer has no handle for other processes",
            Reason::NoFabricHandle => "the buffer has no fabric handle for other hosts",
            Reason::WorkspaceNotOnFabric => "neither the buffer nor the workspace has a fabric handle",
            Reason::Managed => "the buffer is managed memory",
            Reason::NotContiguous => "the block is not contiguous in the buffer",
            Reason::Asked => "the plan was made so",
            Reason::Small => "small blocks have room of their own",
        };
        write!(f, "{how}: {why}")
    }
}

/// Whether a block goes straight from or to the user's `buffer`, or through the `workspace`.
#[must_use]
pub fn route(buffer: Memory, workspace: Memory, path: Path, block: Block) -> Route {
    let staged = match (path, block.operation) {
        (Path::Rails, _) => over_rails(buffer, block),
        (_, Operation::Send) => None,
        _ if block.in_place => Some(Reason::InPlace),
        (Path::Own, _) => None,
        (Path::Mapped, _) => within_host(buffer),
        (Path::NvLink, _) => across_hosts(buffer),
    };
    let on_fabric = matches!(workspace, Memory::Device { handle: Handle::Fabric, symmetric: true });
    match staged {
        None => Route::Direct,
        Some(Reason::NoFabricHandle) if !on_fabric => Route::StagedOverRails(Reason::WorkspaceNotOnFabric),
        Some(reason) if path == Path::NvLink && !on_fabric => Route::StagedOverRails(reason),
        Some(reason) => Route::Staged(reason),
    }
}

fn over_rails(buffer: Memory, block: Block) -> Option<Reason> {
    match buffer {
        _ if block.in_place => Some(Reason::InPlace),
        Memory::Managed => Some(Reason::Managed),
        Memory::Private | Memory::Device { symmetric: false, .. } => Some(Reason::NotSymmetric),
        _ if !block.contiguous => Some(Reason::NotContiguous),
        _ => None,
    }
}

fn within_host(buffer: Memory) -> Option<Reason> {
    match buffer {
        Memory::Managed => Some(Reason::Managed),
        Memory::Private | Memory::Device { symmetric: false, .. } => Some(Reason::NotSymmetric),
        Memory::Device { handle: Handle::None, .. } => Some(Reason::NoHandle),
        _ => None,
    }
}

fn across_hosts(buffer: Memory) -> Option<Reason> {
    match buffer {
        Memory::Managed => Some(Reason::Managed),
        Memory::Device { handle: Handle::Fabric, symmetric: true } => None,
        Memory::Device { symmetric: true, .. } | Memory::Symmetric => Some(Reason::NoFabricHandle),
        _ => Some(Reason::NotSymmetric),
    }
}

/// The place of a PE's GPU.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Site {
    /// The host.
    pub host: u64,
    /// The NVLink cluster's UUID; all zero without one.
    pub cluster: [u8; 16],
    /// The clique within the cluster.
    pub clique: u32,
}

/// How one PE reaches another. NVLink between hosts needs one clique of one cluster with a UUID.
#[must_use]
pub fn path(own: &Site, peer: &Site, same_pe: bool) -> Path {
    let one_clique = own.cluster != [0; 16] && (own.cluster, own.clique) == (peer.cluster, peer.clique);
    match () {
        () if same_pe => Path::Own,
        () if own.host == peer.host => Path::Mapped,
        () if one_clique => Path::NvLink,
        () => Path::Rails,
    }
}

#[cfg(test)]
mod tests {
    use super::Reason::*;
    use super::Route::{Direct, Staged, StagedOverRails};
    use super::*;

    const HANDLES: [Handle; 3] = [Handle::None, Handle::Descriptor, Handle::Fabric];

    fn device(handle: Handle, symmetric: bool) -> Memory {
        Memory::Device { handle, symmetric }
    }

    fn memories() -> Vec<Memory> {
        let devices = HANDLES.into_iter().flat_map(|handle| [device(handle, false), device(handle, true)]);
        devices.chain([Memory::Private, Memory::Symmetric, Memory::Managed]).collect()
    }

    /// Compares every combination with another statement of the rule: the conditions under which a buffer can send or
    /// receive data itself.
    #[test]
    fn the_rule_holds_for_every_combination() {
        let mut seen = 0;
        for buffer in memories() {
            for workspace in memories() {
                for path in [Path::Own, Path::Mapped, Path::NvLink, Path::Rails] {
                    for bits in 0..8 {
                        let operation = [Operation::Send, Operation::Receive][bits & 1];
                        let block = Block { operation, contiguous: bits & 2 != 0, in_place: bits & 4 != 0 };
                        let said = route(buffer, workspace, path, block);
                        let shared = matches!(buffer, Memory::Symmetric | Memory::Device { symmetric: true, .. });
                        let mappable = buffer == Memory::Symmetric
                            || [Handle::Descriptor, Handle::Fabric].iter().any(|&h| buffer == device(h, true));
                        let direct = match (path, operation) {
                            (Path::Rails, _) => shared && block.contiguous && !block.in_place,
                            (_, Operation::Send) => true,
                            (Path::Own, _) => !block.in_place,
                            (Path::Mapped, _) => mappable && !block.in_place,
                            (Path::NvLink, _) => buffer == device(Handle::Fabric, true) && !block.in_place,
                        };
                        assert_eq!(said == Direct, direct, "{buffer:?} {workspace:?} {path:?} {block:?}: {said}");
                        let to_rails = !direct && path == Path::NvLink && workspace != device(Handle::Fabric, true);
                        let is_to_rails = matches!(said, StagedOverRails(_));
                        assert_eq!(is_to_rails, to_rails, "{buffer:?} {workspace:?} {path:?} {block:?}: {said}");
                        seen += 1;
                    }
                }
            }
        }
        assert_eq!(seen, 9 * 9 * 4 * 8);
    }

    #[test]
    fn reasons_are_those_that_a_user_can_do_something_about() {
        let receive = Block { operation: Operation::Receive, contiguous: false, in_place: false };
        let send = Block { operation: Operation::Send, contiguous: true, in_place: false };
        let fabric = device(Handle::Fabric, true);
        let fd = device(Handle::Descriptor, true);
        for (buffer, workspace, path, block, said) in [
            (Memory::Private, Memory::Symmetric, Path::Mapped, receive, Staged(NotSymmetric)),
            (Memory::Symmetric, Memory::Symmetric, Path::Rails, receive, Staged(NotContiguous)),
            (Memory::Symmetric, Memory::Symmetric, Path::Rails, send, Direct),
            (Memory::Private, Memory::Symmetric, Path::Rails, send, Staged(NotSymmetric)),
            (device(Handle::None, true), fd, Path::Mapped, receive, Staged(NoHandle)),
            // A workspace with descriptors only is enough on one host, and the buffer is still used directly.
            (fd, fd, Path::Mapped, receive, Direct),
            // Plain memory under multi-node NVLink goes through the fabric workspace.
            (fd, fabric, Path::NvLink, receive, Staged(NoFabricHandle)),
            (device(Handle::None, false), fabric, Path::NvLink, receive, Staged(NotSymmetric)),
            (fd, fd, Path::NvLink, receive, StagedOverRails(WorkspaceNotOnFabric)),
            (fabric, fabric, Path::NvLink, Block { in_place: true, ..receive }, Staged(InPlace)),
            (Memory::Managed, fabric, Path::NvLink, receive, Staged(Managed)),
            (Memory::Managed, fabric, Path::Mapped, receive, Staged(Managed)),
        ] {
            assert_eq!(route(buffer, workspace, path, block), said, "{buffer:?} {workspace:?} {path:?} {block:?}");
        }
    }

    #[test]
    fn handles_are_those_that_the_driver_tells_of() {
        let told = |managed, descriptor, fabric| Sharing { managed, descriptor, fabric };
        for (sharing, symmetric, in_gpus, expected) in [
            (told(false, true, false), true, true, device(Handle::Descriptor, true)),
            (told(false, true, true), true, true, device(Handle::Fabric, true)),
            (told(false, false, true), true, true, device(Handle::Fabric, true)),
            (told(false, false, false), true, true, device(Handle::None, true)),
            (told(false, false, false), false, true, device(Handle::None, false)),
            (told(false, true, false), false, false, device(Handle::Descriptor, false)),
            (told(false, false, false), true, false, Memory::Symmetric),
            (told(true, false, false), false, true, Memory::Managed),
        ] {
            assert_eq!(Memory::of_gpu(&sharing, symmetric, in_gpus), expected, "{sharing:?} {symmetric} {in_gpus}");
        }
    }

    #[test]
    fn a_clique_without_a_cluster_is_none() {
        let site = |host, cluster: u8, clique| Site { host, cluster: [cluster; 16], clique };
        for (own, peer, expected) in [
            (site(0, 7, 1), site(0, 7, 1), Path::Mapped),
            (site(0, 7, 1), site(1, 7, 1), Path::NvLink),
            (site(0, 7, 1), site(1, 7, 2), Path::Rails),
            (site(0, 7, 1), site(1, 8, 1), Path::Rails),
            (site(0, 0, 1), site(1, 0, 1), Path::Rails),
            (site(0, 0, 1), site(0, 7, 2), Path::Mapped),
        ] {
            assert_eq!(path(&own, &peer, false), expected, "{own:?} {peer:?}");
            assert_eq!(path(&own, &own, true), Path::Own);
        }
    }
}
