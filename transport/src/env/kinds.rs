//! Kinds of values in the environment: each reads, shows and describes one sort of value.

use std::fmt::Display;
use std::marker::PhantomData;
use std::path::PathBuf;

use ipnet::IpNet;

use super::choices::Choice;
use crate::topology::NicPeMapping;

/// One way to write a value. [`Kind::parse`] reads the output of [`Kind::show`].
pub trait Kind {
    /// The type of the value.
    type Value;
    /// The kind's name, for the documentation's type column.
    const NAME: &'static str;
    /// A description of accepted values, which completes the sentence "use …".
    fn accepted() -> String;
    /// Reads a value. `text` is trimmed and not empty. Returns `None` when it is not accepted.
    fn parse(text: &str) -> Option<Self::Value>;
    /// Writes a value. An empty string means "unset".
    fn show(value: &Self::Value) -> String;
}

/// One word of an enum, in any case.
pub struct OneOf<T>(PhantomData<T>);

impl<T: Choice> Kind for OneOf<T> {
    type Value = T;
    const NAME: &'static str = "choice";
    fn accepted() -> String {
        T::VARIANTS.iter().map(|value| (*value).into()).collect::<Vec<&str>>().join("|")
    }
    fn parse(text: &str) -> Option<T> {
        T::VARIANTS.iter().copied().find(|&value| Into::<&str>::into(value).eq_ignore_ascii_case(text))
    }
    fn show(value: &T) -> String {
        Into::<&str>::into(*value).into()
    }
}

/// Off or on.
pub struct Switch;

impl Kind for Switch {
    type Value = bool;
    const NAME: &'static str = "switch";
    fn accepted() -> String {
        "0|false|no|off or 1|true|yes|on".into()
    }
    fn parse(text: &str) -> Option<bool> {
        let is = |words: [&str; 4]| words.iter().any(|word| word.eq_ignore_ascii_case(text));
        match (is(["0", "false", "no", "off"]), is(["1", "true", "yes", "on"])) {
            (true, _) => Some(false),
            (_, true) => Some(true),
            _ => None,
        }
    }
    fn show(value: &bool) -> String {
        u8::from(*value).to_string()
    }
}

/// A whole number from `MIN` to `MAX`.
pub struct Whole<T, const MIN: u64, const MAX: u64>(PhantomData<T>);

impl<T: TryFrom<u64> + Display, const MIN: u64, const MAX: u64> Kind for Whole<T, MIN, MAX> {
    type Value = T;
    const NAME: &'static str = "number";
    fn accepted() -> String {
        format!("a whole number from {MIN} to {MAX}")
    }
    fn parse(text: &str) -> Option<T> {
        let value: u64 = text.parse().ok()?;
        (MIN..=MAX).contains(&value).then(|| T::try_from(value).ok())?
    }
    fn show(value: &T) -> String {
        value.to_string()
    }
}

/// A value, or `auto` (also `-1`, as other libraries write it).
pub struct OrAuto<K>(PhantomData<K>);

impl<K: Kind> Kind for OrAuto<K> {
    type Value = Option<K::Value>;
    const NAME: &'static str = K::NAME;
    fn accepted() -> String {
        format!("auto, -1 (the same) or {}", K::accepted())
    }
    fn parse(text: &str) -> Option<Self::Value> {
        if text == "-1" || text.eq_ignore_ascii_case("auto") { Some(None) } else { K::parse(text).map(Some) }
    }
    fn show(value: &Self::Value) -> String {
        value.as_ref().map_or_else(|| "auto".into(), K::show)
    }
}

/// A value that may stay unset.
pub struct Maybe<K>(PhantomData<K>);

impl<K: Kind> Kind for Maybe<K> {
    type Value = Option<K::Value>;
    const NAME: &'static str = K::NAME;
    fn accepted() -> String {
        K::accepted()
    }
    fn parse(text: &str) -> Option<Self::Value> {
        K::parse(text).map(Some)
    }
    fn show(value: &Self::Value) -> String {
        value.as_ref().map(K::show).unwrap_or_default()
    }
}

/// A number of bytes from `MIN` to `MAX`; `64K`, `64k`, `64KB` and `64KiB` are all 65,536.
pub struct Size<const MIN: u64, const MAX: u64 = { u64::MAX }>;

const SUFFIXES: [(char, u32); 4] = [('T', 40), ('G', 30), ('M', 20), ('K', 10)];

impl<const MIN: u64, const MAX: u64> Kind for Size<MIN, MAX> {
    type Value = usize;
    const NAME: &'static str = "size";
    fn accepted() -> String {
        let most = if MAX == u64::MAX { String::new() } else { format!(" to {}", size_text(MAX)) };
        format!(
            "a number of bytes from {}{most}, with an optional suffix K, M, G or T (powers of 1024)",
            size_text(MIN)
        )
    }
    fn parse(text: &str) -> Option<usize> {
        let text = text.to_ascii_uppercase();
        let digits = text.trim_end_matches(|c: char| !c.is_ascii_digit());
        let number: u64 = digits.parse().ok()?;
        let suffix = text[digits.len()..].trim_start();
        let shift = match suffix {
            "" | "B" => 0,
            _ => {
                let (letter, shift) = SUFFIXES.iter().find(|(letter, _)| suffix.starts_with(*letter))?;
                matches!(suffix.strip_prefix(*letter)?, "" | "B" | "IB").then_some(*shift)?
            }
        };
        let bytes = number.checked_mul(1 << shift)?;
        (MIN..=MAX).contains(&bytes).then(|| usize::try_from(bytes).ok())?
    }
    fn show(value: &usize) -> String {
        size_text(*value as u64)
    }
}

/// Writes bytes with the largest suffix that divides them.
fn size_text(bytes: u64) -> String {
    SUFFIXES
        .iter()
        .find(|(_, shift)| bytes != 0 && bytes.trailing_zeros() >= *shift)
        .map_or_else(|| bytes.to_string(), |(letter, shift)| format!("{}{letter}", bytes >> shift))
}

/// Text without white space: a provider's or a host's name.
pub struct Name;

impl Kind for Name {
    type Value = String;
    const NAME: &'static str = "name";
    fn accepted() -> String {
        "a name without spaces".into()
    }
    fn parse(text: &str) -> Option<String> {
        (!text.is_empty() && !text.contains(|c: char| c.is_whitespace() || c.is_control())).then(|| text.into())
    }
    fn show(value: &String) -> String {
        value.clone()
    }
}

/// The path of a file. Opening it shows whether it exists.
pub struct File;

impl Kind for File {
    type Value = PathBuf;
    const NAME: &'static str = "path";
    fn accepted() -> String {
        "a path or file name in UTF-8".into()
    }
    fn parse(text: &str) -> Option<PathBuf> {
        (!text.is_empty() && !text.contains('\0')).then(|| text.into())
    }
    fn show(value: &PathBuf) -> String {
        value.display().to_string()
    }
}

/// NICs to use (or, with a leading `^`, not to use), by rail name.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct NicList {
    /// Whether the names exclude NICs instead of including them.
    pub exclude: bool,
    /// Rail names: devices, domains or addresses.
    pub names: Vec<String>,
}

impl Kind for NicList {
    type Value = NicList;
    const NAME: &'static str = "list";
    fn accepted() -> String {
        "rail names with commas between them (as `symrail info` lists them), or ^ and the names to leave out".into()
    }
    fn parse(text: &str) -> Option<NicList> {
        let (exclude, list) = text.strip_prefix('^').map_or((false, text), |rest| (true, rest));
        // A second ^ is a misunderstanding, as no name contains it: the first one applies to the whole list.
        let names = list.split(',').map(|name| Name::parse(name.trim()).filter(|name| !name.contains('^')));
        names.collect::<Option<Vec<_>>>().map(|names| NicList { exclude, names })
    }
    fn show(value: &NicList) -> String {
        format!("{}{}", if value.exclude { "^" } else { "" }, value.names.join(","))
    }
}

/// A [`NicPeMapping`], kept as text.
pub struct Mapping;

impl Kind for Mapping {
    type Value = String;
    const NAME: &'static str = "list";
    fn accepted() -> String {
        NicPeMapping::ACCEPTED.into()
    }
    fn parse(text: &str) -> Option<String> {
        text.parse::<NicPeMapping>().is_ok().then(|| text.into())
    }
    fn show(value: &String) -> String {
        value.clone()
    }
}

/// A range of addresses.
pub struct AddressRange;

impl Kind for AddressRange {
    type Value = IpNet;
    const NAME: &'static str = "range";
    fn accepted() -> String {
        "an IPv4 or IPv6 network as address/prefix length, such as 10.1.0.0/16".into()
    }
    fn parse(text: &str) -> Option<IpNet> {
        text.parse().ok()
    }
    fn show(value: &IpNet) -> String {
        value.to_string()
    }
}

/// A log filter: a level, or `target=level` pairs, with commas between them.
pub struct LogFilter;

const LEVELS: [&str; 6] = ["off", "error", "warn", "info", "debug", "trace"];

impl Kind for LogFilter {
    type Value = String;
    const NAME: &'static str = "filter";
    fn accepted() -> String {
        format!("{}, or target=level pairs with commas between them", LEVELS.join("|"))
    }
    fn parse(text: &str) -> Option<String> {
        let good = |part: &str| {
            let (target, level) = part.split_once('=').unwrap_or(("all", part));
            Name::parse(target).is_some() && LEVELS.iter().any(|known| known.eq_ignore_ascii_case(level))
        };
        text.split(',').all(good).then(|| text.into())
    }
    fn show(value: &String) -> String {
        value.clone()
    }
}
