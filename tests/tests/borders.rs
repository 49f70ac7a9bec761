//! What safe code must not be able to say does not compile: raw addresses, freed memory, and implementations that
//! engines trust with memory.

/// The compiler's words are compared too, so that a program fails for the reason that is meant. After a change of
/// compiler: `TRYBUILD=overwrite cargo test -p symrail-tests --test borders`, and read what changed.
#[test]
fn what_safe_code_cannot_say() {
    trybuild::TestCases::new().compile_fail("borders/*.rs");
}
