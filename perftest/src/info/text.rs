//! The report for people.

use std::fmt::Write;

use indicatif::BinaryBytes;

use super::report::{Caps, LeftOut, Missing, Rail, Report};

/// The lines of a section: a name on the left, the details on the right.
struct Page(String);

impl Page {
    fn section(&mut self, title: &str) {
        let space = if self.0.is_empty() { "" } else { "\n" };
        // Writing to a String cannot fail, here and below.
        let _ = writeln!(self.0, "{space}{title}");
    }

    fn line(&mut self, word: &str, text: impl std::fmt::Display) {
        let _ = writeln!(self.0, "  {word:<12} {text}");
    }

    fn missing(&mut self, word: &str, missing: &Missing) {
        self.line(word, &missing.reason);
        if !missing.remedy.is_empty() {
            self.line("", &missing.remedy);
        }
    }

    fn rails(&mut self, rails: &[Rail], none: Option<&String>) {
        for (number, rail) in rails.iter().enumerate() {
            self.line(&format!("rail {number}"), &rail.details);
            self.line("", format!("distance from {}", rail.distance));
        }
        if let Some(none) = none {
            self.line("rails", none);
        }
    }
}

/// The whole report.
pub fn of(report: &Report) -> String {
    let mut page = Page(String::new());
    host(&mut page, report);
    libfabric(&mut page, report);
    ibverbs(&mut page, report);
    cuda(&mut page, report);
    chosen(&mut page, report);
    settings(&mut page, report);
    page.0
}

fn host(page: &mut Page, report: &Report) {
    let host = &report.host;
    page.section(&format!("symrail {} on {}", report.version, host.name));
    page.line("kernel", &host.kernel);
    let (packages, cores, units) = (host.packages, host.cores, host.processing_units);
    page.line("cores", format!("{cores} in {packages} package(s), {units} processing units; may use {}", host.allowed));
    page.line("memory", BinaryBytes(host.memory_bytes));
    for node in &host.numa_nodes {
        page.line(
            &format!("NUMA node {}", node.number),
            format!("cpus {}, {}", node.cpus, BinaryBytes(node.memory_bytes)),
        );
    }
    if let Some(free) = host.shm_free_bytes {
        page.line("/dev/shm", format!("{} free, for libfabric's provider shm; heaps need none", BinaryBytes(free)));
    }
    let limit = |limit| format!("{}; RDMA NICs need more for large heaps: ulimit -l unlimited", BinaryBytes(limit));
    page.line("may lock", host.memlock_bytes.map_or_else(|| "any amount of memory".into(), limit));
}

fn libfabric(page: &mut Page, report: &Report) {
    let libfabric = &report.libfabric;
    page.section("libfabric");
    if let Some(missing) = &libfabric.missing {
        return page.missing("missing", missing);
    }
    let known = |text: &Option<String>| text.clone().unwrap_or_default();
    page.line("library", format!("{} version {}", known(&libfabric.library), known(&libfabric.version)));
    if !libfabric.providers.is_empty() {
        page.line("provider", "rails  inject    queue  order kept   progress");
    }
    for provider in &libfabric.providers {
        let text = match (&provider.caps, &provider.problem) {
            (Some(caps), _) => granted(provider.rails, caps),
            (None, problem) => format!("not usable: {}", known(problem)),
        };
        page.line(&provider.name, text);
    }
    page.rails(&libfabric.rails, libfabric.no_rails.as_ref());
    for LeftOut { name, address, reason } in &libfabric.left_out {
        page.line("no rail", format!("{name} ({address}): {reason}; SYMRAIL_NIC_LIST can name it"));
    }
}

/// A line of the table of providers. Order in libfabric's terms: WAW is "a write stays behind an earlier write".
fn granted(rails: usize, caps: &Caps) -> String {
    let order = [("WAW", caps.write_after_write), ("SAW", caps.send_after_write), ("SAS", caps.send_after_send)];
    let order: Vec<&str> = order.iter().filter(|(_, kept)| *kept).map(|(name, _)| *name).collect();
    let order = if order.is_empty() { "none".into() } else { order.join(" ") };
    let (inject, queue, progress) = (BinaryBytes(caps.inject_bytes as u64), caps.queue_depth, &caps.progress);
    format!("{rails:<5}  {inject:<8}  {queue:<5}  {order:<11}  {progress}")
}

fn ibverbs(page: &mut Page, report: &Report) {
    let ibverbs = &report.ibverbs;
    page.section("ibverbs");
    if let Some(missing) = &ibverbs.missing {
        return page.missing("missing", missing);
    }
    page.line("library", ibverbs.library.as_deref().unwrap_or_default());
    for port in &ibverbs.ports {
        page.line("port", port);
    }
    page.rails(&ibverbs.rails, ibverbs.no_rails.as_ref());
}

fn cuda(page: &mut Page, report: &Report) {
    page.section("CUDA");
    if let Some(missing) = &report.cuda.missing {
        return page.missing("missing", missing);
    }
    page.line("driver", report.cuda.driver.as_deref().unwrap_or("of unknown version"));
    for gpu in &report.cuda.devices {
        let pci = gpu.pci.as_deref().unwrap_or("unknown");
        let dmabuf = if gpu.dmabuf { "dmabuf" } else { "no dmabuf" };
        let (name, memory, capability) = (&gpu.name, BinaryBytes(gpu.memory_bytes), &gpu.compute_capability);
        page.line(
            &format!("GPU {}", gpu.number),
            format!("{name}, {memory}, PCI {pci}, compute capability {capability}, {dmabuf}"),
        );
    }
    if report.cuda.devices.is_empty() {
        page.line("GPUs", "none");
    }
}

fn chosen(page: &mut Page, report: &Report) {
    let chosen = &report.chosen;
    page.section("chosen, for a PE started here");
    page.line("transport", chosen.transport);
    if !chosen.rails.is_empty() {
        page.line("rails", chosen.rails.join(", "));
        for (thread, core) in chosen.proxy_cores.iter().enumerate() {
            let core = core.map_or_else(|| "where the scheduler puts it".into(), |core| format!("core {core}"));
            page.line(&format!("proxy thread {thread}"), core);
        }
    }
    for reason in &chosen.why {
        page.line("why", reason);
    }
    page.section("what collectives of devices choose by (symrail tune)");
    for table in &report.collectives.tables {
        page.line("table", &table.file);
        let (device, pes, hosts, rows) = (&table.device, table.pes, table.hosts, table.rows);
        page.line(
            "",
            match &table.problem {
                None => format!("for {device}, {pes} PEs on {hosts} hosts; {rows} rows"),
                Some(problem) => format!("not taken: {problem}"),
            },
        );
    }
    if let Some(none) = &report.collectives.no_tables {
        page.line("tables", none);
    }
}

fn settings(page: &mut Page, report: &Report) {
    page.section("settings that differ from the default (`symrail info --env` lists all)");
    for setting in &report.changed {
        let default = if setting.default.is_empty() { "unset" } else { &setting.default };
        page.line("", format!("{}={} (default {default})", setting.name, setting.value));
    }
    if report.changed.is_empty() {
        page.line("", "none");
    }
    for warning in report.unknown.iter().chain(&report.chosen.ignored) {
        page.line("warning", warning);
    }
}
