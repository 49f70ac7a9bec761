//! Generates the headers from their templates and the routines.

use std::collections::BTreeSet;
use std::fmt::Write;

use crate::routines::{Family, Row, TYPED, TYPED_EXTENSIONS, UNTYPED, UNTYPED_EXTENSIONS};

/// The text of `shmem.h`.
pub fn shmem_h() -> String {
    // The template itself declares the p and g routines of long double.
    let by_value: &[&str] =
        &["void shmem_@{T}_p(@{C} *dest, {C} value, int pe);", "{C} shmem_@{T}_g(@const {C} *source, int pe);"];
    let longdouble = Family { types: &[("longdouble", "long double")], routines: by_value, generic: true };
    let mut families: Vec<&Family> = TYPED.iter().collect();
    families.push(&longdouble);
    let mut generic = generic("SYMRAIL_CHOOSE", &families);
    // The first argument is a team, or the first PE of an active set.
    generic.push_str(
        "#define shmem_sync(...) \\\n    _Generic((SYMRAIL_ARG1(__VA_ARGS__)), shmem_team_t: shmem_team_sync, default: shmem_sync)(__VA_ARGS__)\n",
    );
    let mut overloads = overloads(&families);
    overloads.push_str("static inline int shmem_sync(shmem_team_t team) { return shmem_team_sync(team); }\n");
    fill(include_str!("shmem.h.in"), UNTYPED, &prototypes(TYPED), &generic, &overloads)
}

/// The text of `shmemx.h`.
pub fn shmemx_h() -> String {
    let families: Vec<&Family> = TYPED_EXTENSIONS.iter().collect();
    let mut generic = generic("SYMRAILX_CHOOSE", &families);
    for name in ["signal_add", "signal_set"] {
        // Writing to a string cannot fail.
        let _ = writeln!(
            generic,
            "#define shmemx_{name}(...) \\\n    _Generic((SYMRAIL_ARG1(__VA_ARGS__)), shmem_ctx_t: shmemx_ctx_{name}, default: shmemx_{name})(__VA_ARGS__)"
        );
    }
    let mut overloads = overloads(&families);
    for name in ["signal_add", "signal_set"] {
        let _ = writeln!(
            overloads,
            "static inline void shmemx_{name}(shmem_ctx_t ctx, uint64_t *sig_addr, uint64_t signal, int pe) {{ shmemx_ctx_{name}(ctx, sig_addr, signal, pe); }}"
        );
    }
    fill(include_str!("shmemx.h.in"), UNTYPED_EXTENSIONS, &prototypes(TYPED_EXTENSIONS), &generic, &overloads)
}

/// The text of `pshmem.h`: every routine of the library under its second name.
pub fn pshmem_h() -> String {
    let untyped = [UNTYPED, UNTYPED_EXTENSIONS].concat();
    let typed = [prototypes(TYPED), prototypes(TYPED_EXTENSIONS)].concat();
    let mut routines = String::new();
    for line in untyped.lines().chain(typed.lines()).filter(|line| line.contains('(') && !line.starts_with("/*")) {
        let Some((head, arguments)) = line.split_once('(') else { continue };
        let at = head.rfind([' ', '*']).map_or(0, |at| at + 1);
        let _ = writeln!(routines, "{}p{}({arguments}", &head[..at], &head[at..]);
    }
    include_str!("pshmem.h.in").replace("@ROUTINES@", &routines)
}

/// The names of all functions that the headers declare as the library's.
pub fn exported() -> BTreeSet<String> {
    let untyped = [UNTYPED, UNTYPED_EXTENSIONS].concat();
    let typed = [prototypes(TYPED), prototypes(TYPED_EXTENSIONS)].concat();
    let name = |line: &str| Some(line.split_once('(')?.0.rsplit([' ', '*']).next()?.to_owned());
    untyped.lines().chain(typed.lines()).filter(|line| line.ends_with(';')).filter_map(name).collect()
}

fn fill(template: &str, untyped: &str, typed: &str, generic: &str, overloads: &str) -> String {
    let parts =
        [("@UNTYPED@", untyped.trim_start()), ("@TYPED@", typed), ("@GENERIC@", generic), ("@OVERLOADS@", overloads)];
    parts.iter().fold(template.to_owned(), |text, (place, part)| text.replace(place, part))
}

/// A routine for one type, with or without a context.
fn instance(routine: &str, (name, c): Row, context: bool) -> String {
    let c = match name {
        "complexf" => "symrail_complexf",
        "complexd" => "symrail_complexd",
        _ => c,
    };
    let (in_name, in_arguments) = if context { ("ctx_", "shmem_ctx_t ctx, ") } else { ("", "") };
    routine.replace("{T}", name).replace("{C}", c).replacen('@', in_name, 1).replacen('@', in_arguments, 1)
}

fn prototypes(families: &[Family]) -> String {
    let mut text = String::new();
    for family in families {
        for routine in family.routines {
            for &row in family.types {
                for context in [false, true] {
                    if !context || routine.contains('@') {
                        let _ = writeln!(text, "{}", instance(routine, row, context));
                    }
                }
            }
        }
        text.push('\n');
    }
    text
}

/// The type that a C type is another name of, on systems with 64-bit `long`.
fn canonical(c: &str) -> &str {
    match c {
        "int8_t" => "signed char",
        "int16_t" => "short",
        "int32_t" => "int",
        "int64_t" | "ptrdiff_t" => "long",
        "uint8_t" => "unsigned char",
        "uint16_t" => "unsigned short",
        "uint32_t" => "unsigned int",
        "uint64_t" | "size_t" => "unsigned long",
        other => other,
    }
}

/// One row for each distinct type.
fn different(types: &[Row]) -> Vec<Row> {
    let mut seen = BTreeSet::new();
    types.iter().filter(|(_, c)| seen.insert(canonical(c))).map(|&(name, c)| (name, canonical(c))).collect()
}

/// The parts of a routine's name around the type: `shmem_` (or `shmemx_`) and `_put`.
fn around(routine: &str) -> (&str, &str) {
    let before = routine.split_once("{T}_").map_or("", |(before, _)| before);
    let prefix = before.trim_end_matches('@').rsplit(' ').next().unwrap_or("");
    let suffix = routine.split_once("{T}_").and_then(|(_, rest)| rest.split_once('(')).map_or("", |(name, _)| name);
    (prefix, suffix)
}

/// A C11 generic selection: a macro that chooses by its arguments' types. `own` prefixes the names of helpers.
fn generic(own: &str, families: &[&Family]) -> String {
    let (mut helpers, mut macros) = (String::new(), String::new());
    let mut lists: Vec<Vec<Row>> = Vec::new();
    let mut done = BTreeSet::new();
    for family in families.iter().filter(|f| f.generic) {
        for routine in family.routines {
            let (prefix, suffix) = around(routine);
            if !done.insert(format!("{prefix}{suffix}")) {
                continue;
            }
            // All families that have this routine for other types.
            let types: Vec<Row> =
                families.iter().filter(|f| f.routines.contains(routine)).flat_map(|f| f.types).copied().collect();
            let types = different(&types);
            let list = lists.iter().position(|known| *known == types).unwrap_or_else(|| {
                helpers.push_str(&chooser(&format!("{own}_{}", lists.len()), &types));
                lists.push(types);
                lists.len() - 1
            });
            let choose = |context: &str, argument: u32| {
                format!("{own}_{list}({prefix}{context}, _{suffix}, SYMRAIL_ARG{argument}(__VA_ARGS__))")
            };
            let body = if routine.contains('@') {
                let (with, without) = (choose("ctx_", 2), choose("", 1));
                format!("_Generic((SYMRAIL_ARG1(__VA_ARGS__)), shmem_ctx_t: {with}, default: {without})")
            } else {
                choose("", if routine.contains("(shmem_team_t") { 2 } else { 1 })
            };
            let _ = writeln!(macros, "#define {prefix}{suffix}(...) \\\n    {body}(__VA_ARGS__)");
        }
    }
    helpers + &macros
}

/// A macro that builds a name: the name of the type that `x` points to, between `before` and `after`.
fn chooser(name: &str, types: &[Row]) -> String {
    let mut text = format!("#define {name}(before, after, x) _Generic((x)");
    for (row, c) in types {
        for qualified in ["", "const ", "volatile "] {
            let _ = write!(text, ", \\\n    {qualified}{c} *: before##{row}##after");
        }
    }
    text.push_str(", \\\n    default: symrail_no_routine_for_this_type)\n");
    text
}

/// C++ overloads of the functions.
fn overloads(families: &[&Family]) -> String {
    let mut text = String::new();
    for family in families.iter().filter(|f| f.generic) {
        for routine in family.routines {
            let (prefix, suffix) = around(routine);
            for (name, c) in different(family.types) {
                // A function of this name with these arguments exists already.
                if (suffix, c) == ("wait_until", "long") {
                    continue;
                }
                for context in [false, true] {
                    if context && !routine.contains('@') {
                        continue;
                    }
                    let one = instance(routine, (name, c), context);
                    let Some((head, arguments)) = one.trim_end_matches(");").split_once('(') else { continue };
                    let Some((result, function)) = head.rsplit_once(' ') else { continue };
                    let passed: Vec<&str> = arguments.split(", ").filter_map(|a| a.rsplit([' ', '*']).next()).collect();
                    let _ = writeln!(
                        text,
                        "static inline {result} {prefix}{suffix}({arguments}) {{ return {function}({}); }}",
                        passed.join(", ")
                    );
                }
            }
        }
    }
    text
}
