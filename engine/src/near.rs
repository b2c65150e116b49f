//! Known names that are near a mistyped one.

/// Named at once.
const MOST: usize = 5;
/// With more edits than this, or than a quarter of the letters, the likeness is chance.
const MOST_EDITS: usize = 3;

/// Of `known`, the names nearest to `name`, the nearest first; few, and none where nothing is near. Case and punctuation
/// do not count, and a part of a name is near it.
pub fn near<'a>(name: &str, known: impl IntoIterator<Item = &'a str>) -> Vec<&'a str> {
    let asked = squeezed(name);
    let most = asked.len().div_ceil(4).min(MOST_EDITS);
    let mut near: Vec<(bool, usize, &str)> = known
        .into_iter()
        .filter_map(|known| {
            let other = squeezed(known);
            let is_part = !asked.is_empty() && (other.contains(&asked) || asked.contains(&other));
            let edits = edits(asked.as_bytes(), other.as_bytes());
            (is_part || edits <= most).then_some((!is_part, edits, known))
        })
        .collect();
    // Stable: equally near ones stay in the order in which they were given.
    near.sort_by_key(|&(is_whole, edits, _)| (is_whole, edits));
    near.truncate(MOST);
    near.into_iter().map(|(_, _, known)| known).collect()
}

/// Letters and digits only, in small letters: `llama-3.1-8b` and `Llama3.1 8B` are one name.
fn squeezed(name: &str) -> String {
    name.chars().filter(char::is_ascii_alphanumeric).map(|letter| letter.to_ascii_lowercase()).collect()
}

/// Insertions, deletions and replacements that make one of the other (Levenshtein 1966).
fn edits(a: &[u8], b: &[u8]) -> usize {
    let mut row: Vec<usize> = (0..=b.len()).collect();
    for (i, x) in a.iter().enumerate() {
        let mut diagonal = i;
        row[0] = i + 1;
        for (j, y) in b.iter().enumerate() {
            let replaced = diagonal + usize::from(x != y);
            diagonal = row[j + 1];
            row[j + 1] = replaced.min(row[j] + 1).min(diagonal + 1);
        }
    }
    row[b.len()]
}

#[cfg(test)]
mod tests {
    use super::*;

    const KNOWN: [&str; 6] =
        ["llama-3.2-1b", "llama-3.1-8b", "llama-3-8b", "mistral-7b-v0.3", "rtx-3060-laptop-6gb", "rtx-3060-12gb"];

    #[test]
    fn a_mistyped_name_has_near_ones_and_a_strange_one_none() {
        for (name, expected) in [
            ("lama-3.1-8b", &["llama-3.1-8b", "llama-3-8b"][..]),
            ("Llama 3.1 8B instruct", &["llama-3.1-8b"]),
            ("llama-8b", &["llama-3-8b", "llama-3.1-8b"]),
            ("mistral", &["mistral-7b-v0.3"]),
            ("RTX 3060", &["rtx-3060-12gb", "rtx-3060-laptop-6gb"]),
            ("qwen3-8b", &[]),
            ("", &[]),
            ("我的 🔥", &[]),
        ] {
            assert_eq!(near(name, KNOWN), expected, "{name}");
        }
    }

    #[test]
    fn edits_are_counted() {
        for (a, b, n) in [("", "", 0), ("", "abc", 3), ("abc", "abc", 0), ("kitten", "sitting", 3), ("ab", "ba", 2)] {
            assert_eq!(edits(a.as_bytes(), b.as_bytes()), n, "{a} {b}");
            assert_eq!(edits(b.as_bytes(), a.as_bytes()), n, "{b} {a}");
        }
    }
}
