//! Names in messages: the one that was probably meant, and a short list of those that there are.

use crate::error::Quoted;

/// Names that a message lists, at most.
const MAX_LISTED: usize = 8;
/// Letters of longer names are not compared.
const MAX_LETTERS: usize = 64;

/// The name that differs least from the one given: in at most a third of its letters.
pub(crate) fn nearest<'n>(given: &str, names: &[&'n str]) -> Option<&'n str> {
    let limit = (given.chars().count() / 3).max(1);
    let distance = |name: &&'n str| (letters_apart(given, name), *name);
    names.iter().map(distance).filter(|(d, _)| *d <= limit).min().map(|(_, name)| name)
}

/// Letters to change, add or remove until one is the other.
fn letters_apart(a: &str, b: &str) -> usize {
    let (a, b): (Vec<char>, Vec<char>) = (a.chars().collect(), b.chars().collect());
    if a.len().max(b.len()) > MAX_LETTERS {
        return if a == b { 0 } else { usize::MAX };
    }
    let mut row: Vec<usize> = (0..=b.len()).collect();
    for (i, x) in a.iter().enumerate() {
        let mut corner = std::mem::replace(&mut row[0], i + 1);
        for (j, y) in b.iter().enumerate() {
            let here = (corner + usize::from(x != y)).min(row[j] + 1).min(row[j + 1] + 1);
            corner = std::mem::replace(&mut row[j + 1], here);
        }
    }
    row[b.len()]
}

/// `; did you mean "x"?` where a name is near, then what there is: `the model has the inputs "x", "y"`.
pub(crate) fn known(given: &str, kind: &str, names: &[&str]) -> String {
    let near = nearest(given, names).map(|n| format!("; did you mean {}?", Quoted(n))).unwrap_or_default();
    let listed: Vec<String> = names.iter().take(MAX_LISTED).map(|n| Quoted(n).to_string()).collect();
    match names.len() {
        0 => format!("{near} (the model has no {kind}s)"),
        n if n > MAX_LISTED => {
            format!("{near} (the model has the {kind}s {} and {} more)", listed.join(", "), n - MAX_LISTED)
        }
        _ => format!("{near} (the model has the {kind}s {})", listed.join(", ")),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_nearest_name_is_meant() {
        let names = ["present.0.key", "present.0.value", "logits"];
        assert_eq!(nearest("present.0.kye", &names), Some("present.0.key"));
        assert_eq!(nearest("logit", &names), Some("logits"));
        assert_eq!(nearest("state", &names), None);
        assert_eq!(nearest("", &["a", "bc"]), Some("a"));
        assert_eq!((letters_apart("kitten", "sitting"), letters_apart("", "abc")), (3, 3));
        assert_eq!(nearest(&"x".repeat(5000), &[&"y".repeat(5000)]), None);
    }

    #[test]
    fn long_lists_are_cut() {
        let names: Vec<String> = (0..10).map(|i| format!("in{i}")).collect();
        let names: Vec<&str> = names.iter().map(String::as_str).collect();
        let text = known("im3", "input", &names);
        assert!(
            text.starts_with("; did you mean \"in3\"? (the model has the inputs \"in0\", ")
                && text.ends_with(" and 2 more)"),
            "{text}"
        );
        assert_eq!(known("a", "output", &[]), " (the model has no outputs)");
    }
}
