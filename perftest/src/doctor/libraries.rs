//! The libraries that are loaded at run time, beside the hardware that needs them.

use super::Host;
use super::finding::Finding;
use crate::info::libraries::{Library, find_out};

pub fn judge(host: &Host<'_>) -> Vec<Finding> {
    let gpus = host.nvidia();
    let rdma = host.rdma();
    let of = |library: &Library| {
        let needed_by = match library.name {
            "libfabric" => Some("other hosts".into()),
            "libibverbs" => (!rdma.is_empty()).then(|| rdma.join(", ")),
            _ => (!gpus.is_empty()).then(|| format!("the GPU at PCI {}", gpus.join(", "))),
        };
        match (&library.missing, needed_by) {
            (None, _) => {
                let version = library.version.as_ref().map_or_else(String::new, |version| format!(" {version}"));
                let path = library.path.as_ref().map_or_else(String::new, |path| format!(", {path}"));
                Finding::ok("library", format!("{}{version}{path}", library.name))
            }
            (Some(missing), Some(needed)) => Finding::problem(
                "library",
                format!("{}; it is needed for {needed}", missing.reason),
                missing.remedy.as_str(),
            ),
            (Some(missing), None) => Finding::ok("library", format!("{}; no hardware here needs it", missing.reason)),
        }
    };
    find_out(host.settings).iter().map(of).collect()
}
