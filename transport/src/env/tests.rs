#![allow(clippy::unwrap_used)]
use proptest::prelude::*;

use super::*;

fn read(pairs: &[(&str, &str)]) -> Result<Settings> {
    Settings::from_iter(pairs.iter().map(|(name, value)| (format!("SYMRAIL_{name}"), *value)))
}

fn refusal(name: &str, value: &str) -> String {
    match read(&[(name, value)]) {
        Err(error @ Error::Setting { .. }) => error.to_string(),
        other => format!("not refused: {other:?}"),
    }
}

#[test]
fn nothing_set_is_the_default() {
    assert_eq!(read(&[]).unwrap(), Settings::default());
    assert_eq!(read(&[("HEAP_SIZE", ""), ("IB_PORT", "")]).unwrap(), Settings::default());
    assert_eq!(Settings::from_iter([("PATH", "/bin"), ("SYMRAILX", "1")]).unwrap(), Settings::default());
}

#[test]
fn each_kind_is_read() {
    let settings = read(&[
        ("TRANSPORT", "Libfabric"),
        ("LIBFABRIC_PROVIDER", "tcp;ofi_rxm"),
        ("LIBFABRIC_SO", "/opt/lib/libfabric.so.1"),
        ("NIC_LIST", "^lo, eth0"),
        ("NIC_PE_MAPPING", "a:1:2"),
        ("STRIPE_THRESHOLD", "64KiB"),
        ("IB_PORT", "2"),
        ("IB_GID_INDEX", "-1"),
        ("IB_ADDR_RANGE", "fd00::/8"),
        ("IB_RELAXED_ORDERING", "yes"),
        ("HEAP_SIZE", "2g"),
        ("TIMEOUT_S", " 5 "),
        ("LOG", "warn,symrail_transport=debug"),
        ("TRACE", "/tmp/trace.json"),
    ])
    .unwrap();
    assert_eq!(settings.transport, TransportKind::Libfabric);
    assert_eq!(settings.libfabric_provider.as_deref(), Some("tcp;ofi_rxm"));
    assert_eq!(settings.libfabric_so, Some("/opt/lib/libfabric.so.1".into()));
    assert_eq!(settings.nic_list, Some(NicList { exclude: true, names: vec!["lo".into(), "eth0".into()] }));
    assert_eq!(settings.nic_pe_mapping.as_deref(), Some("a:1:2"));
    assert_eq!(settings.stripe_threshold, 65536);
    assert_eq!((settings.ib_port, settings.ib_gid_index), (Some(2), None));
    assert!(settings.ib_addr_range.unwrap().contains(&"fd00::1".parse::<std::net::IpAddr>().unwrap()));
    assert!(settings.ib_relaxed_ordering);
    assert_eq!((settings.heap_size, settings.timeout_s), (2 << 30, 5));
    assert_eq!(settings.changed().count(), 13);
}

#[test]
fn a_bad_value_names_variable_value_and_accepted_values() {
    assert_eq!(
        refusal("TRANSPORT", "\u{1b}[31m"),
        "SYMRAIL_TRANSPORT=\\u{1b}[31m: not accepted; use auto|libfabric|ibverbs"
    );
    assert_eq!(refusal("TRANSPORT", "tcp"), "SYMRAIL_TRANSPORT=tcp: not accepted; use auto|libfabric|ibverbs");
    let bytes = "a number of bytes from 64K to 64T, with an optional suffix K, M, G or T (powers of 1024)";
    assert_eq!(refusal("HEAP_SIZE", "65T"), format!("SYMRAIL_HEAP_SIZE=65T: not accepted; use {bytes}"));
    assert_eq!(read(&[("HEAP_SIZE", "64T")]).unwrap().heap_size, 1 << 46);
    assert_eq!(refusal("IB_SL", "16"), "SYMRAIL_IB_SL=16: not accepted; use a whole number from 0 to 15");
    for (name, value) in [
        ("DISABLE_P2P", "maybe"),
        ("HEAP_SIZE", "1"),
        ("HEAP_SIZE", "512X"),
        ("HEAP_SIZE", "-1"),
        ("HEAP_SIZE", "K"),
        ("HEAP_SIZE", "65T"),
        ("HEAP_SIZE", "99999999999T"),
        ("HEAP_SIZE", "1.5G"),
        ("NIC_LIST", "^"),
        ("NIC_LIST", "a,,b"),
        ("NIC_LIST", "a,^b"),
        ("NIC_PE_MAPPING", "a:b"),
        ("IB_PORT", "0"),
        ("IB_GID_INDEX", "-2"),
        ("IB_ADDR_RANGE", "10.0.0.1"),
        ("IB_TIMEOUT", "0"),
        ("LOG", "loud"),
        ("LOG", "a=b=c"),
        ("FAKE_HOST", "two words"),
        ("TIMEOUT_S", "\u{663}"),
    ] {
        let refusal = refusal(name, value);
        assert!(refusal.starts_with(&format!("SYMRAIL_{name}={value}: not accepted; use ")), "{refusal}");
    }
}

#[cfg(unix)]
#[test]
fn a_value_that_is_not_utf8_is_refused() {
    use std::os::unix::ffi::OsStringExt;
    let bad = OsString::from_vec(vec![b'1', 0xff]);
    let error = Settings::from_iter([("SYMRAIL_TIMEOUT_S", bad)]).unwrap_err();
    assert!(error.to_string().starts_with("SYMRAIL_TIMEOUT_S="), "{error}");
}

#[test]
fn an_unknown_name_is_kept_with_the_nearest_one() {
    let settings = read(&[
        ("HEAPSIZE", "1G"),
        ("LIBFABRIC_PROVDIER", "tcp"),
        ("XYZZY_PLUGH_QUUX", "1"),
        ("LAUNCHER_FD", "3"),
        ("BOOTSTRAP_X", "3"),
    ]);
    let said: Vec<_> = settings.unwrap().unknown.iter().map(ToString::to_string).collect();
    assert_eq!(
        said,
        [
            "SYMRAIL_HEAPSIZE is not a known variable and has no effect; did you mean SYMRAIL_HEAP_SIZE?",
            "SYMRAIL_LIBFABRIC_PROVDIER is not a known variable and has no effect; did you mean SYMRAIL_LIBFABRIC_PROVIDER?",
            "SYMRAIL_XYZZY_PLUGH_QUUX is not a known variable and has no effect; `symrail info --env` lists those that exist",
        ]
    );
}

/// Every default can be parsed from its shown form, so documentation and parser cannot disagree.
#[test]
fn defaults_are_accepted_as_shown() {
    let default = Settings::default();
    for variable in VARIABLES {
        let text = (variable.show)(&default);
        if !text.is_empty() {
            let again = Settings::from_iter([(variable.name, text)]).unwrap();
            assert_eq!(again, default, "{}", variable.name);
        }
    }
}

#[test]
fn names_are_unique_and_sentences_are_sentences() {
    let mut names: Vec<_> = VARIABLES.iter().map(|variable| variable.name).collect();
    names.sort_unstable();
    names.dedup();
    assert_eq!(names.len(), VARIABLES.len());
    for variable in VARIABLES {
        assert!(variable.about.ends_with('.'), "{}", variable.name);
    }
}

#[test]
fn names_are_those_of_the_fields() {
    let fields = format!("{:#?}", Settings::default());
    let fields = fields.lines().filter_map(|line| line.strip_prefix("    ")?.split_once(':')).map(|(name, _)| name);
    let fields: Vec<_> = fields.filter(|name| !name.starts_with(' ')).map(str::to_uppercase).collect();
    let mut lines: Vec<_> = VARIABLES.iter().map(|variable| &variable.name[PREFIX.len()..]).collect();
    lines.extend(["HEAP_ADDED", "UNKNOWN"]);
    assert_eq!(fields, lines);
}

/// `SYMRAIL_TEST_WRITE_DOCS=1 cargo test -p symrail-transport documentation` writes the file anew.
#[test]
fn documentation_equals_the_table() {
    let path = std::path::Path::new(env!("CARGO_MANIFEST_DIR")).join("../docs/environment.md");
    if std::env::var_os("SYMRAIL_TEST_WRITE_DOCS").is_some() {
        std::fs::write(&path, render::markdown()).unwrap();
    }
    let written = std::fs::read_to_string(&path).unwrap_or_default();
    assert!(
        written == render::markdown(),
        "docs/environment.md is not what the table says; run this test with SYMRAIL_TEST_WRITE_DOCS=1 to write it anew"
    );
}

#[test]
fn the_terminal_table_marks_what_differs() {
    let text = render::text(&read(&[("IB_SL", "3")]).unwrap());
    assert!(text.contains("* SYMRAIL_IB_SL=3   (default 0)"), "{text}");
    assert!(text.contains("  SYMRAIL_LIBFABRIC_SO=(unset)"), "{text}");
}

fn any_variable() -> impl Strategy<Value = &'static Variable> {
    (0..VARIABLES.len()).prop_map(|i| &VARIABLES[i])
}

proptest! {
    /// Any value is accepted or refused, and an accepted one is shown in a form that parses to the same value.
    #[test]
    fn any_value_is_read_or_refused(variable in any_variable(), value in "\\PC*|[-^0-9KMGTkmgtibB:,.=/ a-z]{0,12}") {
        match Settings::from_iter([(variable.name, &value)]) {
            Ok(settings) => {
                let again = Settings::from_iter([(variable.name, (variable.show)(&settings))]).unwrap();
                prop_assert_eq!(again, settings);
            }
            Err(error) => prop_assert!(error.to_string().starts_with(variable.name)),
        }
    }

    #[test]
    fn any_bytes_and_names_are_survived(name in "SYMRAIL_\\PC{0,20}", value in proptest::collection::vec(any::<u8>(), 0..40)) {
        use std::os::unix::ffi::OsStringExt;
        let _ = Settings::from_iter([(name, OsString::from_vec(value))]);
    }

    #[test]
    fn sizes_mean_powers_of_1024(n in 1u64..1024, suffix in 0usize..5, tail in 0usize..3) {
        let (letter, shift) = [("", 0), ("k", 10), ("M", 20), ("g", 30), ("T", 40)][suffix];
        let tail = if letter.is_empty() { "" } else { ["", "B", "iB"][tail] };
        let settings = Settings::from_iter([("SYMRAIL_STRIPE_THRESHOLD", format!("{n}{letter}{tail}"))]).unwrap();
        prop_assert_eq!(settings.stripe_threshold as u64, n << shift);
    }
}
