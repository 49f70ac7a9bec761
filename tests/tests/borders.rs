//! Forbidden safe code does not compile: raw addresses, freed memory, and implementations to which engines entrust
//! memory.

/// The compiler's messages are compared too, so that a program fails for the intended reason. After a change of
/// compiler: `TRYBUILD=overwrite cargo test -p symrail-tests --test borders`, and read the changes.
#[test]
fn what_safe_code_cannot_say() {
    trybuild::TestCases::new().compile_fail("borders/*.rs");
}
