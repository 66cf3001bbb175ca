//! OPERATORS.md is what the example `operators` prints.

#[allow(dead_code, reason = "its main is the example's")]
#[path = "../examples/operators.rs"]
mod operators;

#[test]
fn operators_md_is_what_the_example_prints() {
    let path = std::path::Path::new(env!("CARGO_MANIFEST_DIR")).join("../OPERATORS.md");
    if std::env::var_os("BLESS").is_some() {
        std::fs::write(&path, operators::text()).unwrap();
    }
    let (kept, printed) = (std::fs::read_to_string(path).unwrap(), operators::text());
    let differs = kept.lines().zip(printed.lines()).find(|(k, p)| k != p);
    assert!(kept == printed, "first difference: {differs:?}; BLESS=1 rewrites it");
}
