//! What the macro says to wrong arguments, and where it points.

#[test]
fn errors_point_at_the_argument() {
    // Cases that need a model name it by a path from the package's folder, which trybuild moves.
    trybuild::TestCases::new().compile_fail("misuse/*.rs");
}
