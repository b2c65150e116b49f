//! Physical lines: LF, CR LF and a lone CR each end one; U+2028 and its like are text.

/// Line ends in `text`; a CR LF pair counts once.
pub(crate) fn count_breaks(text: &str) -> usize {
    let bytes = text.as_bytes();
    let mut n = 0;
    for (i, &byte) in bytes.iter().enumerate() {
        if byte == b'\r' || (byte == b'\n' && (i == 0 || bytes[i - 1] != b'\r')) {
            n += 1;
        }
    }
    n
}

/// The lines of `text` without their ends.
pub(crate) fn lines(text: &str) -> impl Iterator<Item = &str> {
    let mut rest = Some(text);
    std::iter::from_fn(move || {
        let text = rest?;
        match text.find(['\n', '\r']) {
            Some(at) => {
                let end = if text[at..].starts_with("\r\n") { at + 2 } else { at + 1 };
                rest = (end < text.len()).then(|| &text[end..]);
                Some(&text[..at])
            }
            None => {
                rest = None;
                Some(text)
            }
        }
    })
}

/// Line numbers of ascending byte offsets, counted once over the text.
pub(crate) struct LineCounter<'a> {
    text: &'a str,
    offset: usize,
    line: usize,
}

impl<'a> LineCounter<'a> {
    pub(crate) fn new(text: &'a str) -> Self {
        Self { text, offset: 0, line: 1 }
    }

    /// Line (from 1) of the byte at `offset`, which must not lie before the last one asked for.
    pub(crate) fn line_of(&mut self, offset: usize) -> usize {
        // A CR LF pair is never split here: offsets asked for are starts or ends of JSON values.
        self.line += count_breaks(&self.text[self.offset..offset]);
        self.offset = offset;
        self.line
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_line_end_counts_once() {
        let text = "a\nb\r\nc\rd\u{2028}e\n\n";
        assert_eq!(lines(text).collect::<Vec<_>>(), ["a", "b", "c", "d\u{2028}e", ""]);
        assert_eq!(count_breaks(text), 5);
        let mut counter = LineCounter::new(text);
        assert_eq!(counter.line_of(0), 1);
        assert_eq!(counter.line_of(text.find('d').unwrap()), 4);
    }
}
