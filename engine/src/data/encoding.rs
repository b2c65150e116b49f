//! From bytes to text: byte order marks, UTF-16, and the two legacy encodings spreadsheets still write.

use encoding_rs::{Encoding, GB18030, UTF_16BE, UTF_16LE, WINDOWS_1252};

/// A file's text and what its reader should know about it.
#[derive(Debug, Default)]
pub(crate) struct Decoded {
    /// The text without its byte order mark.
    pub(crate) text: String,
    /// The encoding, where it isn't UTF-8.
    pub(crate) notes: Vec<String>,
    /// Physical lines (from 1) with bytes that are not UTF-8, and the first such byte of each; ascending.
    pub(crate) broken_lines: Vec<(usize, u8)>,
}

impl Decoded {
    /// The first byte that is not text on the lines `first..=last`.
    pub(crate) fn broken_between(&self, first: usize, last: usize) -> Option<(usize, u8)> {
        let at = self.broken_lines.partition_point(|&(line, _)| line < first);
        self.broken_lines.get(at).copied().filter(|&(line, _)| line <= last)
    }
}

/// Names what `bytes` are, where they are no text file at all.
pub(crate) fn foreign_kind(bytes: &[u8]) -> Option<&'static str> {
    let kinds: [(&[u8], &str); 10] = [
        (b"PAR1", "a Parquet file"),
        (b"PK\x03\x04", "a zip archive or an Excel workbook"),
        (b"\xD0\xCF\x11\xE0", "an old Excel or Word file"),
        (b"\x1F\x8B", "a gzip archive"),
        (b"\x28\xB5\x2F\xFD", "a zstd archive"),
        (b"ARROW1", "an Arrow file"),
        (b"SQLite format 3", "a SQLite database"),
        (b"%PDF", "a PDF"),
        (b"version https://git-lfs", "a Git LFS pointer (the file itself was never downloaded)"),
        (b"GGUF", "a GGUF model"),
    ];
    if let Some((_, name)) = kinds.iter().find(|(magic, _)| bytes.starts_with(magic)) {
        return Some(name);
    }
    let head = String::from_utf8_lossy(&bytes[..bytes.len().min(200)]).trim_start().to_ascii_lowercase();
    (head.starts_with("<!doctype html") || head.starts_with("<html")).then_some("a web page")
}

/// Decodes a whole file. The order of evidence: a byte order mark; the zero bytes of UTF-16; valid UTF-8; UTF-8 with
/// a few broken bytes (those lines are listed, the rest is kept); GB18030 (which contains GBK); Windows-1252.
pub(crate) fn decode(bytes: &[u8]) -> Decoded {
    if let Some((encoding, mark)) = Encoding::for_bom(bytes) {
        let bytes = &bytes[mark..];
        return if encoding == encoding_rs::UTF_8 { utf8(bytes) } else { legacy(bytes, encoding) };
    }
    if let Some(encoding) = utf16_without_mark(bytes) {
        return legacy(bytes, encoding);
    }
    if std::str::from_utf8(bytes).is_ok() || mostly_utf8(bytes) {
        return utf8(bytes);
    }
    if looks_like_gbk(bytes) && GB18030.decode_without_bom_handling_and_without_replacement(bytes).is_some() {
        return legacy(bytes, GB18030);
    }
    legacy(bytes, WINDOWS_1252)
}

fn legacy(bytes: &[u8], encoding: &'static Encoding) -> Decoded {
    let (text, had_errors) = encoding.decode_without_bom_handling(bytes);
    let mut notes = vec![format!(
        "The file was read as {}, not UTF-8. If characters look wrong, save it as UTF-8 and open it again.",
        encoding.name()
    )];
    if had_errors {
        notes.push(format!("Some bytes are not {}; they became U+FFFD.", encoding.name()));
    }
    Decoded { text: text.into_owned(), notes, broken_lines: Vec::new() }
}

/// UTF-8 in which broken bytes become U+FFFD and are remembered by line.
fn utf8(bytes: &[u8]) -> Decoded {
    let mut decoded = Decoded { text: String::with_capacity(bytes.len()), ..Default::default() };
    let mut line = 1;
    for chunk in bytes.utf8_chunks() {
        decoded.text.push_str(chunk.valid());
        line += super::lines::count_breaks(chunk.valid());
        if let Some(&first) = chunk.invalid().first() {
            decoded.text.push('\u{FFFD}');
            if decoded.broken_lines.last().is_none_or(|&(last, _)| last != line) {
                decoded.broken_lines.push((line, first));
            }
        }
    }
    decoded
}

/// True where multi-byte UTF-8 characters clearly outnumber broken bytes: a damaged UTF-8 file, not another encoding.
fn mostly_utf8(bytes: &[u8]) -> bool {
    let (mut good, mut bad) = (0usize, 0usize);
    for chunk in bytes.utf8_chunks() {
        good += chunk.valid().chars().filter(|c| !c.is_ascii()).count();
        bad += chunk.invalid().len();
    }
    good > 4 * bad
}

/// UTF-16 without a mark has a zero in every other byte of its ASCII characters, and structure is ASCII here.
fn utf16_without_mark(bytes: &[u8]) -> Option<&'static Encoding> {
    let head = &bytes[..bytes.len().min(4096) & !1];
    if head.len() < 4 {
        return None;
    }
    let zeros = |offset: usize| head.iter().skip(offset).step_by(2).filter(|&&b| b == 0).count();
    let (even, odd, pairs) = (zeros(0), zeros(1), head.len() / 2);
    match () {
        _ if odd * 4 > pairs && even == 0 => Some(UTF_16LE),
        _ if even * 4 > pairs && odd == 0 => Some(UTF_16BE),
        _ => None,
    }
}

/// Chinese text in GBK comes in runs of byte pairs with the high bit set; accented letters of Western text stand alone.
fn looks_like_gbk(bytes: &[u8]) -> bool {
    let (mut in_pairs, mut alone) = (0usize, 0usize);
    let mut rest = bytes;
    while let Some(start) = rest.iter().position(|b| !b.is_ascii()) {
        let run = rest[start..].iter().position(|b| b.is_ascii()).unwrap_or(rest.len() - start);
        if run >= 2 {
            in_pairs += run;
        } else {
            alone += 1;
        }
        rest = &rest[start + run..];
    }
    in_pairs > 4 * alone
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn only_the_leading_mark_is_removed() {
        let decoded = decode("\u{FEFF}a,b\r\nca\u{FEFF}t,d".as_bytes());
        assert_eq!(decoded.text, "a,b\r\nca\u{FEFF}t,d");
        assert!(decoded.notes.is_empty());
    }

    #[test]
    fn utf16_is_read_with_and_without_a_mark() {
        for mark in ["\u{FEFF}", ""] {
            let text = format!("{mark}prompt,completion\r\n\u{4F60}\u{597D},ok\r\n");
            let le: Vec<u8> = text.encode_utf16().flat_map(u16::to_le_bytes).collect();
            let be: Vec<u8> = text.encode_utf16().flat_map(u16::to_be_bytes).collect();
            for bytes in [le, be] {
                let decoded = decode(&bytes);
                assert_eq!(decoded.text, "prompt,completion\r\n\u{4F60}\u{597D},ok\r\n");
                assert!(decoded.notes[0].contains("UTF-16"), "{:?}", decoded.notes);
            }
        }
    }

    #[test]
    fn gbk_and_windows_1252_are_told_apart() {
        let (gbk, _, _) = GB18030.encode("instruction,output\n你好吗,我很好\n");
        assert_eq!(decode(&gbk).text, "instruction,output\n你好吗,我很好\n");
        let western = "instruction,output\nÜbersetze: l'été,“Sommer” à la carte\nfaçade,über\n";
        let (cp1252, _, _) = WINDOWS_1252.encode(western);
        assert_eq!(decode(&cp1252).text, western);
    }

    #[test]
    fn one_broken_byte_does_not_change_the_encoding_of_the_file() {
        let mut bytes = "你好\r\nabc ".as_bytes().to_vec();
        bytes.push(0xE9);
        bytes.extend("\r\n再见再见\r\n".as_bytes());
        let decoded = decode(&bytes);
        assert_eq!(decoded.broken_lines, [(2, 0xE9)]);
        assert_eq!(decoded.broken_between(1, 1), None);
        assert_eq!(decoded.broken_between(1, 3), Some((2, 0xE9)));
        assert!(decoded.text.ends_with("再见再见\r\n"));
    }

    #[test]
    fn other_kinds_of_file_are_named() {
        assert_eq!(foreign_kind(b"PAR1\0\0"), Some("a Parquet file"));
        assert_eq!(foreign_kind(b"\n<!DOCTYPE html><html>"), Some("a web page"));
        assert_eq!(foreign_kind(b"{\"a\":1}"), None);
    }
}
