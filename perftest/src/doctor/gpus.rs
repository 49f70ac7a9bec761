//! GPUs: access to one another, and by NICs.

use super::Host;
use super::finding::Finding;
use crate::info::report::Gpu;

pub fn judge(host: &Host<'_>) -> Vec<Finding> {
    let cuda = &host.report.cuda;
    let present = host.nvidia();
    if cuda.devices.is_empty() {
        let missing = cuda.missing.as_ref();
        return match (present.is_empty(), missing) {
            // The missing library is a finding of its own.
            (true, _) | (false, None) => vec![Finding::ok("GPU", "the CUDA driver lists none")],
            (false, Some(missing)) => {
                let found = format!("PCI {}: {}", present.join(", "), missing.reason);
                vec![Finding::problem("GPU", found, missing.remedy.as_str())]
            }
        };
    }
    let mut findings: Vec<Finding> = cuda.devices.iter().filter_map(unmapped).collect();
    if findings.is_empty() {
        findings
            .push(Finding::ok("GPU", format!("{}, each reaches all others by loads and stores", cuda.devices.len())));
    }
    if !host.rdma().is_empty() {
        findings.extend(cuda.devices.iter().map(|gpu| by_nics(host, gpu)));
        findings.push(iommu(host));
    }
    findings
}

fn unmapped(gpu: &Gpu) -> Option<Finding> {
    let others: Vec<String> = gpu.cannot_map.iter().map(ToString::to_string).collect();
    (!others.is_empty()).then(|| {
        let found =
            format!("GPU {} cannot map the memory of GPU {}: transfers are staged", gpu.number, others.join(", "));
        let remedy = "nvidia-smi topo -p2p rw says why; choose GPUs that can by CUDA_VISIBLE_DEVICES, disable PCIe \
                      ACS, or give the container all GPUs";
        Finding::problem("GPU", found, remedy)
    })
}

/// Whether NICs read and write a GPU's memory themselves.
fn by_nics(host: &Host<'_>, gpu: &Gpu) -> Finding {
    let number = gpu.number;
    if gpu.dmabuf {
        Finding::ok("GPUDirect", format!("GPU {number} exports its memory to NICs as a dmabuf"))
    } else if host.names("module").iter().any(|name| name == "nvidia_peermem" || name == "nv_peer_mem") {
        Finding::ok("GPUDirect", format!("GPU {number} is reached by NICs through nvidia_peermem"))
    } else {
        Finding::problem(
            "GPUDirect",
            format!("NICs do not reach GPU {number}: no dmabuf, and the module nvidia_peermem is not loaded"),
            "modprobe nvidia_peermem; or install NVIDIA's open kernel modules, which have dmabuf",
        )
    }
}

/// Transfers between NICs and GPUs pass an IOMMU that translates by way of the host bridge.
fn iommu(host: &Host<'_>) -> Finding {
    let kind = |group: &String| host.read(format!("kernel/iommu_groups/{group}/type"));
    let groups = host.names("kernel/iommu_groups");
    match groups.iter().filter_map(kind).find(|kind| kind.starts_with("DMA")) {
        Some(kind) => Finding::problem(
            "IOMMU",
            format!("it translates addresses (domains of type {kind}), which slows or stops transfers between devices"),
            "add iommu=pt to the kernel's command line, and disable ACS on PCIe switches",
        ),
        None => Finding::ok("IOMMU", "off, or passes addresses through"),
    }
}
